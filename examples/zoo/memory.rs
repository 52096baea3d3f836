//! How much device memory a forward pass needs.
//!
//! candle allocates from the device's memory pool, in stream order. The pool counts the bytes in use, without those that
//! it holds ready, and keeps the highest count since that was reset. The peak of a pass is this high-water mark less the
//! count before the pass, so that weights and inputs, which are there anyway, drop out.
//!
//! What else the device has less is outside of the pool: nodes of CUDA graphs, code of kernels used for the first time,
//! handles and workspaces of cuBLAS and cuDNN, some for each thread. Other programs that use the device meanwhile would
//! disturb this count.
//!
//! Eager execution and an executor are counted in a process each: what one of them has loaded the other would get for
//! nothing.

use std::process::Command;

use anyhow::{Context, Error, Result};
use candle::{DType, Device};
use clap::ValueEnum;
use opara_candle::device_memory::{used_outside_pool, watch, Usage};
use opara_candle::Builder;
use serde::{Deserialize, Serialize};

use crate::entry::{Entry, Model, Target};

/// Bytes. A count is missing where the device has no pool.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Memory {
    /// Peak of a pass beyond weights and inputs: of a replay with all that the executor keeps.
    pub peak: Option<u64>,
    /// Taken outside the pool, by the model itself, too.
    pub outside: i64,
    /// All of it: weights, inputs, the peak of a pass, and what is outside the pool.
    pub total: Option<u64>,
}

impl Memory {
    /// Of a pass, in a process that did the work of `parts` one after the other, after `made` the model: the last is the pass.
    fn of(made: Taken, parts: &[Taken]) -> Self {
        let outside = made.outside + parts.iter().map(|part| part.outside).sum::<i64>();
        let pass = parts.last().and_then(|pass| pass.pool);
        let over = |start: Option<u64>| Some(pass?.peak.saturating_sub(start?));
        Self {
            peak: over(made.pool.map(|made| made.after)),
            outside,
            total: over(made.pool.map(|made| made.before)).map(|peak| peak.saturating_add_signed(outside)),
        }
    }

    /// What calls take in this process, which must not have used the device before.
    ///
    /// # Errors
    /// Those of the model and of the executor.
    pub fn of_calls(calls: Calls, entry: &Entry, device: &Device, dtype: DType, builder: Builder) -> Result<Self> {
        let target = Target { device: device.clone(), dtype };
        let (model, made) = taken(device, || (entry.build)(&target).context("it cannot be made"))?;
        let Model { function, inputs, .. } = &model;
        let parts = match calls {
            Calls::Eager => {
                let pass = || taken(device, || function(inputs).context("eager fails"));
                [pass()?.1, pass()?.1]
            }
            Calls::Executor => {
                let (executor, built) = taken(device, || model.executor(builder).context("the executor fails"))?;
                [built, taken(device, || Ok(executor.lend(inputs, |_| ())?))?.1]
            }
        };
        Ok(Self::of(made, &parts))
    }

    /// What calls take, in a process of their own with these further arguments.
    ///
    /// # Errors
    /// Those of the model and of the executor, and a process that cannot be started.
    pub fn of_calls_alone(calls: Calls, entry: &Entry, dtype: DType, arguments: &[&str]) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?);
        process.args(["--memory-of", calls.as_str(), "--only", entry.name, "--dtype", dtype.as_str()]).args(arguments);
        let process = process.output()?;
        let said: Result<Self, String> = serde_json::from_slice(&process.stdout)
            .with_context(|| format!("a process ends with {}", String::from_utf8_lossy(&process.stderr).trim()))?;
        said.map_err(Error::msg)
    }
}

/// Whose memory is counted.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Calls {
    Eager,
    Executor,
}

impl Calls {
    fn as_str(self) -> &'static str {
        match self {
            Self::Eager => "eager",
            Self::Executor => "executor",
        }
    }
}

/// What a piece of work takes of a device's memory.
#[derive(Debug, Clone, Copy)]
struct Taken {
    /// Of the pool.
    pool: Option<Usage>,
    /// Outside the pool, and still after it.
    outside: i64,
}

/// Does some work and finds what it takes.
fn taken<T>(device: &Device, f: impl FnOnce() -> Result<T>) -> Result<(T, Taken)> {
    let before = used_outside_pool(device)? as i64;
    let (result, pool) = watch(device, f)?;
    Ok((result, Taken { pool, outside: used_outside_pool(device)? as i64 - before }))
}
