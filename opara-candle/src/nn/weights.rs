//! Helpers of layers for their variable builder.

use candle::{DType, Device};
use candle_nn::VarBuilder;

/// The last part of the builder's path. It labels the launches of the layer.
pub(super) fn name_of(vb: &VarBuilder) -> String {
    vb.prefix().rsplit('.').next().unwrap_or_default().to_string()
}

/// A builder that loads tensors on the host in f32, for weights that are transformed once before use.
pub(super) fn on_host(vb: VarBuilder) -> VarBuilder {
    vb.set_device(Device::Cpu).set_dtype(DType::F32)
}
