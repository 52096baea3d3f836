//! Stands in for `cuda` in builds without the feature: the same functions, each an error.

use std::sync::Arc;

use candle::{Device, Tensor};
use opara_plan::latency::Sample;

use crate::backend::{Function, Fusing, Recording};
use crate::examples::Examples;
use crate::{Error, Result};

fn absent<T>() -> Result<T> {
    Err(Error::NoCuda)
}

/// See the CUDA build's function.
pub fn cuda_device(_: usize) -> Result<Device> {
    absent()
}

/// See the CUDA build's type.
#[derive(Default)]
pub(crate) struct Arena;

pub(crate) fn record(_: &Function, _: &[Tensor], _: &Examples, _: &Arc<Arena>, _: Option<Fusing>) -> Result<Recording> {
    absent()
}

pub(crate) fn unwatched<T>(f: impl FnOnce() -> T) -> T {
    f()
}

/// See the CUDA build's type.
pub(crate) struct Handover;

impl Handover {
    pub fn take() -> Self {
        Self
    }

    pub fn during<T>(&self, f: impl FnOnce() -> T) -> T {
        f()
    }

    pub fn give_back(self) {}
}

pub(crate) fn hand_over(_: &[Tensor]) -> Result<()> {
    Ok(())
}

pub(crate) fn sample(_: &Device, _: impl FnOnce() -> candle::Result<()>) -> Result<Sample> {
    absent()
}

pub(crate) fn device_name(_: &Device) -> String {
    "cuda".into()
}

pub(crate) fn driver_version(_: &Device) -> String {
    "none".into()
}

pub(crate) fn free_memory(_: &Device) -> Result<usize> {
    absent()
}

pub(crate) fn used_outside_pool(_: &Device) -> Result<u64> {
    absent()
}

pub(crate) fn pool_in_use(_: &Device) -> Result<u64> {
    absent()
}

pub(crate) fn pool_peak(_: &Device) -> Result<u64> {
    absent()
}

pub(crate) fn reset_pool_peak(_: &Device) -> Result<()> {
    absent()
}

/// Operators of the CUDA build: none.
pub(crate) mod ops {
    use candle::{Result, Tensor};

    use crate::ops::{Activation, ConvConfig, PoolConfig, PoolKind, RowStarts};

    pub(crate) fn conv2d(_: &Tensor, _: &Tensor, _: Option<&Tensor>, _: &ConvConfig) -> Result<Option<Tensor>> {
        Ok(None)
    }

    pub(crate) fn weight_for(weight: &Tensor, _: usize) -> Result<Tensor> {
        Ok(weight.clone())
    }

    pub(crate) fn linear(
        _: &Tensor,
        _: &Tensor,
        _: Option<&Tensor>,
        _: Activation,
        _: impl Fn() -> Result<Tensor>,
        _: impl Fn(Tensor) -> Result<Tensor>,
    ) -> Result<Option<Tensor>> {
        Ok(None)
    }

    pub(crate) fn pool(_: &Tensor, _: PoolKind, _: &PoolConfig) -> Result<Option<Tensor>> {
        Ok(None)
    }

    pub(crate) fn subsample(_: &Tensor, _: usize, _: usize, _: (usize, usize)) -> Result<Option<Tensor>> {
        Ok(None)
    }

    pub(crate) fn layer_norm(
        _: &Tensor,
        _: Option<&Tensor>,
        _: Option<&Tensor>,
        _: &Tensor,
        _: &Tensor,
        _: f32,
    ) -> Result<Option<Tensor>> {
        Ok(None)
    }

    pub(crate) fn rms_norm(_: &Tensor, _: &Tensor, _: f32) -> Result<Option<Tensor>> {
        Ok(None)
    }

    pub(crate) fn add_rms_norm(_: &Tensor, _: &Tensor, _: &Tensor, _: f32) -> Result<Option<Tensor>> {
        Ok(None)
    }

    pub(crate) fn softmax(_: &Tensor, _: Option<&(Tensor, RowStarts)>) -> Result<Option<Tensor>> {
        Ok(None)
    }

    pub(crate) fn bias_act(_: &Tensor, _: Option<&Tensor>, _: Activation) -> Result<Option<Tensor>> {
        Ok(None)
    }

    pub(crate) fn attention(_: &Tensor, _: &Tensor, _: &Tensor, _: Option<&Tensor>, _: f64) -> Result<Option<Tensor>> {
        Ok(None)
    }

    pub(crate) fn embedding(_: &Tensor, _: &Tensor) -> Result<Option<Tensor>> {
        Ok(None)
    }

    pub(crate) fn split_heads(_: &Tensor, _: Option<&Tensor>, _: usize, _: f64) -> Result<Option<Tensor>> {
        Ok(None)
    }

    pub(crate) fn cat(_: &[&Tensor], _: usize) -> Result<Option<Tensor>> {
        Ok(None)
    }

    pub(crate) fn cat_sums(_: &[&Tensor], _: &[Option<&Tensor>], _: usize, _: Activation) -> Result<Option<Tensor>> {
        Ok(None)
    }
}
