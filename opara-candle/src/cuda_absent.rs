//! Stands in for `cuda` in builds without the feature: the same functions, each an error.

use std::sync::Arc;

use candle::{Device, Tensor};
use opara_plan::latency::Sample;

use crate::backend::{Function, Recording};
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

impl Arena {
    pub fn bytes(&self) -> u64 {
        0
    }

    pub fn limit_to(&self, _: u64, _: &Device) -> Result<bool> {
        absent()
    }
}

pub(crate) fn record(_: &Function, _: &[Tensor], _: &Examples, _: &Arc<Arena>) -> Result<Recording> {
    absent()
}

pub(crate) fn unwatched<T>(f: impl FnOnce() -> T) -> T {
    f()
}

/// See the CUDA build's type.
pub(crate) struct CompilerAhead;

impl CompilerAhead {
    pub fn start(_: &Device) -> Self {
        Self
    }
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

/// See the CUDA build's type.
pub(crate) struct Download<T>(std::marker::PhantomData<T>);

impl<T> Download<T> {
    pub fn new(_: &Device, _: usize) -> Result<Self> {
        absent()
    }

    pub fn enqueue(&mut self, _: &Tensor) -> Result<()> {
        absent()
    }

    pub fn room(&self) -> usize {
        0
    }

    pub fn wait(&self, _: usize) -> Result<Vec<T>> {
        absent()
    }
}

/// See the CUDA build's type.
pub(crate) struct Upload;

impl Upload {
    pub fn new(_: &Device, _: &[Tensor]) -> Result<Self> {
        absent()
    }

    pub fn fits(&self, _: &[Tensor]) -> bool {
        false
    }

    pub fn enqueue(&mut self, _: &[Tensor]) -> Result<()> {
        absent()
    }

    pub fn take(&mut self) -> Result<Vec<Tensor>> {
        absent()
    }
}

pub(crate) fn is_aligned(_: &Tensor) -> Result<bool> {
    absent()
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

pub(crate) fn software(_: &Device) -> String {
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
