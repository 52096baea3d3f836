//! Kernels compiled at run time, by NVRTC.

use std::sync::{Arc, LazyLock};

use candle::CudaDevice;
use cudarc::nvrtc::{compile_ptx_with_opts, CompileError, CompileOptions};
use hashbrown::HashMap;
use parking_lot::Mutex;
use rayon::prelude::*;
use xxhash_rust::xxh3::xxh3_128;

use crate::cuda::driver::wrap;
use crate::{Error, Result};

/// `chain.cuh` with all that it includes, CUDA's headers of 16-bit types, too: where a program runs there may be none.
const LIBRARY: &str = include_str!(concat!(env!("OUT_DIR"), "/chain.cuh"));

/// What a device loads.
pub(in crate::cuda) struct Compiled {
    /// Another for each code.
    pub name: String,
    /// In PTX.
    pub code: Arc<str>,
}

/// Architecture and source.
type Key = (String, String);

/// All that this process has compiled.
static COMPILED: LazyLock<Mutex<HashMap<Key, Arc<str>>>> = LazyLock::new(Mutex::default);

/// Compiles these kernels on top of `chain.cuh` for the device, as many at a time as there are threads, and each once in
/// this process.
///
/// # Errors
/// What the compiler refuses, such as a device that it is too old for.
pub(super) fn compile<'a>(device: &CudaDevice, kernels: impl Iterator<Item = &'a str>) -> Result<Vec<Compiled>> {
    let (major, minor) = device.cuda_stream().context().compute_capability().map_err(wrap("cuDeviceGetAttribute"))?;
    compile_for(&format!("compute_{major}{minor}"), kernels)
}

/// The same for an architecture, as NVRTC calls it.
///
/// # Errors
/// What the compiler refuses.
pub(in crate::cuda) fn compile_for<'a>(
    architecture: &str,
    kernels: impl Iterator<Item = &'a str>,
) -> Result<Vec<Compiled>> {
    let keys: Vec<Key> = kernels.map(|kernel| (architecture.to_string(), kernel.to_string())).collect();
    let mut missing: Vec<&Key> = {
        let compiled = COMPILED.lock();
        keys.iter().filter(|key| !compiled.contains_key(*key)).collect()
    };
    missing.sort_unstable();
    missing.dedup();
    let new = missing.into_par_iter().map(|key| Ok((key.clone(), ptx(&key.0, &key.1)?)));
    let new = new.collect::<Result<Vec<_>>>()?;
    let mut compiled = COMPILED.lock();
    compiled.extend(new);
    let known = |key: &Key| Compiled {
        name: format!("chain_{:032x}", xxh3_128(key.1.as_bytes())),
        code: compiled[key].clone(),
    };
    Ok(keys.iter().map(known).collect())
}

fn ptx(architecture: &str, kernel: &str) -> Result<Arc<str>> {
    let options = CompileOptions {
        options: vec![format!("--gpu-architecture={architecture}"), "--std=c++17".into()],
        ..CompileOptions::default()
    };
    let refused = |error| {
        let message = match error {
            CompileError::CompileError { log, .. } => log.to_string_lossy().into_owned(),
            other => other.to_string(),
        };
        Error::NotCompiled { architecture: architecture.into(), message }
    };
    let ptx = compile_ptx_with_opts(format!("{LIBRARY}\n{kernel}"), options).map_err(refused)?;
    Ok(ptx.to_src().into())
}
