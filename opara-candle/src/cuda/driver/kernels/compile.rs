//! Kernels compiled at run time, by NVRTC.

use std::fmt::Write;
use std::sync::{Arc, LazyLock, Weak};

use candle::CudaDevice;
use cudarc::driver::{CudaFunction, CudaModule};
use cudarc::nvrtc::Ptx;
use hashbrown::HashMap;
use parking_lot::Mutex;
use rayon::prelude::*;
use xxhash_rust::xxh3::xxh3_128;

use crate::cuda::driver::{nvrtc, wrap};
use crate::{Error, Result};

/// `chain.cuh` with all that it includes, CUDA's headers of 16-bit types, too: where a program runs there may be none.
const LIBRARY: &str = include_str!(concat!(env!("OUT_DIR"), "/chain.cuh"));

/// A kernel of a module.
#[derive(Debug, Clone)]
pub(in crate::cuda) struct Compiled {
    /// Another for each kernel.
    pub name: String,
    pub module: Arc<Module>,
}

/// Kernels that were compiled together.
#[derive(Debug)]
pub(in crate::cuda) struct Module {
    /// A cubin. In PTX the driver would have to assemble it, one module after the other.
    pub code: Vec<u8>,
    /// By device, as long as somebody has kernels of it.
    loaded: Mutex<HashMap<usize, Weak<CudaModule>>>,
}

impl Compiled {
    /// The kernel on the device. Its module is there as long as one of its kernels is.
    ///
    /// # Errors
    /// A module that the driver refuses.
    pub(super) fn load(&self, device: &CudaDevice) -> Result<CudaFunction> {
        let stream = device.cuda_stream();
        let context = stream.context();
        let mut loaded = self.module.loaded.lock();
        let module = match loaded.get(&context.ordinal()).and_then(Weak::upgrade) {
            Some(module) => module,
            None => {
                let code = Ptx::from_binary(self.module.code.clone());
                let module = context.load_module(code).map_err(wrap("cuModuleLoadData"))?;
                loaded.insert(context.ordinal(), Arc::downgrade(&module));
                module
            }
        };
        module.load_function(&self.name).map_err(wrap("cuModuleGetFunction"))
    }
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
    compile_for(&format!("sm_{major}{minor}"), kernels)
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
    let options = [format!("--gpu-architecture={architecture}"), "--std=c++17".into()];
    let refused = |message| Error::NotCompiled { architecture: architecture.into(), message };
    let code = nvrtc::cubin(&source, &options).map_err(refused)?;
    let module = Arc::new(Module { code, loaded: Mutex::default() });
    let compiled = |(key, name): (&&Key, String)| ((*key).clone(), Compiled { name, module: module.clone() });
    Ok(kernels.iter().zip(names).map(compiled).collect())
}
