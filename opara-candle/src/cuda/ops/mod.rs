//! Operators that candle lacks or runs badly, on a GPU.

mod attention;
mod cat;
mod choice;
mod conv;
#[cfg(feature = "cudnn")]
mod dense;
mod element;
mod embedding;
mod format;
mod launch;
mod norm;
mod pool;
mod product;
mod softmax;
mod space_to_depth;

pub(crate) use attention::attention;
pub(crate) use cat::{cat, cat_sums};
pub(crate) use conv::{conv2d, weight_for};
pub(crate) use element::{bias_act, split_heads};
pub(crate) use embedding::embedding;
pub(crate) use norm::{add_rms_norm, layer_norm, rms_norm};
pub(crate) use pool::{pool, subsample};
pub(crate) use product::linear;
pub(crate) use softmax::softmax;

/// The kernels of this folder, as the build compiled them.
pub(in crate::cuda) mod ptx {
    include!(concat!(env!("OUT_DIR"), "/ptx.rs"));
}
