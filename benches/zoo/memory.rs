//! Device memory of a forward pass.
//!
//! candle allocates from the device's memory pool, in stream order. The pool counts the bytes in use, without free
//! blocks that it caches, and records the maximum since the last reset. The peak of a pass is this maximum minus the
//! count before the pass, so that weights and inputs, which are allocated anyway, cancel out.
//!
//! All other device memory that disappears is outside the pool: nodes of CUDA graphs, code of kernels used for the
//! first time, and handles and workspaces of cuBLAS and cuDNN, some per thread. Other programs on the device would
//! disturb this count.
//!
//! Eager execution and an executor are measured in separate processes: the second one would otherwise find libraries
//! and kernels already loaded by the first.

use std::process::Command;

use anyhow::{Context, Error, Result};
use candle::{DType, Device};
use clap::ValueEnum;
use opara_candle::device_memory::{used_outside_pool, watch, Usage};
use opara_candle::Builder;
use serde::{Deserialize, Serialize};

use crate::entry::{Entry, Model, Target};

/// Bytes. A count is `None` if the device has no memory pool.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Memory {
    /// Peak of a pass beyond weights and inputs. For a replay it includes all memory that the executor keeps.
    pub peak: Option<u64>,
    /// Memory outside the pool, including that of making the model.
    pub outside: i64,
    /// Total: weights, inputs, the peak of a pass, and the memory outside the pool.
    pub total: Option<u64>,
}

impl Memory {
    /// Combines the memory of making the model, `made`, with that of the later steps, `parts`, whose last is the pass.
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

    /// Measures the memory of calls in this process, which must not have used the device before.
    ///
    /// # Errors
    /// An error of the model or of the executor.
    pub fn of_calls(calls: Calls, entry: &Entry, device: &Device, dtype: DType, builder: Builder) -> Result<Self> {
        let target = Target { device: device.clone(), dtype, batch: 1, gain: 1. };
        let (model, made) = taken(device, || (entry.build)(&target).context("it cannot be made"))?;
        let Model { function, inputs, .. } = &model;
        let parts = match calls {
            Calls::Eager => {
                let pass = || taken(device, || function(inputs).context("eager fails"));
                [pass()?.1, pass()?.1]
            }
            Calls::Executor => {
                let (executor, built) = taken(device, || model.executor(builder).context("the executor fails"))?;
                [built, taken(device, || Ok(executor.call_zero_copy(inputs, |_| ())?))?.1]
            }
        };
        Ok(Self::of(made, &parts))
    }

    /// Measures the memory of calls in a separate process with these further arguments.
    ///
    /// # Errors
    /// An error of the model or of the executor, or a process that cannot be started.
    pub fn of_calls_alone(calls: Calls, entry: &Entry, dtype: DType, arguments: &[&str]) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?);
        process.args(["--memory-of", calls.as_str(), "--only", entry.name, "--dtype", dtype.as_str()]).args(arguments);
        let process = process.output()?;
        let said: Result<Self, String> = serde_json::from_slice(&process.stdout)
            .with_context(|| format!("a process ends with {}", String::from_utf8_lossy(&process.stderr).trim()))?;
        said.map_err(Error::msg)
    }
}

/// How the measured calls are executed.
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

/// The device memory taken by a piece of work.
#[derive(Debug, Clone, Copy)]
struct Taken {
    /// Use of the pool.
    pool: Option<Usage>,
    /// Growth outside the pool that remains after the work.
    outside: i64,
}

/// Runs `f` and measures the memory that it takes.
fn taken<T>(device: &Device, f: impl FnOnce() -> Result<T>) -> Result<(T, Taken)> {
    let before = used_outside_pool(device)? as i64;
    let (result, pool) = watch(device, f)?;
    Ok((result, Taken { pool, outside: used_outside_pool(device)? as i64 - before }))
}
