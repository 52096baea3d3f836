//! Modules of kernels that were compiled at run time.

use std::sync::{Arc, Weak};

use candle::CudaDevice;
use cudarc::driver::{CudaFunction, CudaModule, DriverError};
use cudarc::nvrtc::Ptx;
use hashbrown::HashMap;
use parking_lot::Mutex;

/// A kernel of a module.
#[derive(Debug, Clone)]
pub(in crate::cuda) struct Compiled {
    /// Unique in the module.
    pub name: String,
    pub module: Arc<Module>,
}

/// A module: kernels that were compiled together.
#[derive(Debug)]
pub(in crate::cuda) struct Module {
    /// A cubin if the compiler supports the device, otherwise PTX. The driver assembles PTX, one module at a time.
    pub code: Vec<u8>,
    /// The loaded module of each device, while something uses its kernels.
    loaded: Mutex<HashMap<usize, Weak<CudaModule>>>,
}

impl Module {
    /// A module that is not loaded on any device yet.
    pub fn new(code: Vec<u8>) -> Self {
        Self { code, loaded: Mutex::default() }
    }
}

/// Loaded kernels. They stay loaded while this value lives, so it must outlive their launches.
#[derive(Default)]
pub(in crate::cuda) struct Kernels {
    functions: Vec<CudaFunction>,
    /// Their modules: kept so that other users of the same kernels find them.
    modules: Vec<Arc<Module>>,
}

impl Kernels {
    /// Loads a kernel's module on the device, unless it is loaded, and keeps both.
    ///
    /// # Errors
    /// The driver refuses the compiled code, for example because the driver is older than the compiler.
    pub(super) fn load(&mut self, device: &CudaDevice, kernel: &Compiled) -> Result<CudaFunction, String> {
        let stream = device.cuda_stream();
        let context = stream.context();
        let refused = |error: DriverError| format!("the driver cannot load a compiled kernel: {error}");
        let Compiled { name, module } = kernel;
        let mut loaded = module.loaded.lock();
        let on_device = match loaded.get(&context.ordinal()).and_then(Weak::upgrade) {
            Some(there) => there,
            None => {
                let there = context.load_module(Ptx::from_binary(module.code.clone())).map_err(refused)?;
                loaded.insert(context.ordinal(), Arc::downgrade(&there));
                there
            }
        };
        let function = on_device.load_function(name).map_err(refused)?;
        self.functions.push(function.clone());
        self.modules.push(module.clone());
        Ok(function)
    }
}
