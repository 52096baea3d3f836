//! Kernels compiled at run time, by NVRTC.

use std::fmt::Write;
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

/// A kernel of a module.
#[derive(Debug, Clone)]
pub(in crate::cuda) struct Compiled {
    /// Another for each kernel.
    pub name: String,
    /// Another for each module.
    pub module: Arc<str>,
    /// The module, in PTX.
    pub code: Arc<str>,
}

/// Architecture, and the kernel's name and code.
type Key = (String, &'static str, String);

/// All that this process has compiled.
static COMPILED: LazyLock<Mutex<HashMap<Key, Compiled>>> = LazyLock::new(Mutex::default);

/// Compiles kernels on top of `chain.cuh` for the device, by all threads of the pool, and each once in this process. A kernel is
/// its name, behind which a hash comes, and its code, which calls it `KERNEL`.
///
/// # Errors
/// What the compiler refuses, such as a device that it is too old for.
pub(super) fn compile<'a>(
    device: &CudaDevice,
    kernels: impl Iterator<Item = (&'static str, &'a str)>,
) -> Result<Vec<Compiled>> {
    let (major, minor) = device.cuda_stream().context().compute_capability().map_err(wrap("cuDeviceGetAttribute"))?;
    compile_for(&format!("compute_{major}{minor}"), kernels)
}

/// The same for an architecture, as NVRTC calls it.
///
/// # Errors
/// What the compiler refuses.
pub(in crate::cuda) fn compile_for<'a>(
    architecture: &str,
    kernels: impl Iterator<Item = (&'static str, &'a str)>,
) -> Result<Vec<Compiled>> {
    let keys: Vec<Key> = kernels.map(|(name, code)| (architecture.into(), name, code.into())).collect();
    let mut missing: Vec<&Key> = {
        let compiled = COMPILED.lock();
        keys.iter().filter(|key| !compiled.contains_key(*key)).collect()
    };
    missing.sort_unstable();
    missing.dedup();
    // Most of the time of few goes into what they have in common.
    let of_a_module = missing.len().div_ceil(rayon::current_num_threads()).max(1);
    let new = missing.par_chunks(of_a_module).map(|kernels| module(architecture, kernels));
    let new = new.collect::<Result<Vec<_>>>()?;
    let mut compiled = COMPILED.lock();
    compiled.extend(new.into_iter().flatten());
    Ok(keys.iter().map(|key| compiled[key].clone()).collect())
}

fn module(architecture: &str, kernels: &[&Key]) -> Result<Vec<(Key, Compiled)>> {
    let mut source = String::from(LIBRARY);
    let mut names = Vec::new();
    for (_, name, code) in kernels {
        let name = format!("{name}_{:032x}", xxh3_128(code.as_bytes()));
        // Writing to a string does not fail.
        let _ = writeln!(source, "#define KERNEL {name}\n{code}\n#undef KERNEL");
        names.push(name);
    }
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
    let module: Arc<str> = format!("chains_{:032x}", xxh3_128(source.as_bytes())).into();
    let code: Arc<str> = compile_ptx_with_opts(source, options).map_err(refused)?.to_src().into();
    let compiled = |(key, name): (&&Key, String)| {
        let compiled = Compiled { name, module: module.clone(), code: code.clone() };
        ((*key).clone(), compiled)
    };
    Ok(kernels.iter().zip(names).map(compiled).collect())
}
