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
    /// Another for each kernel.
    pub name: String,
    pub module: Arc<Module>,
}

/// Kernels that were compiled together.
#[derive(Debug)]
pub(in crate::cuda) struct Module {
    /// A cubin, if the compiler knows the device. PTX the driver has to assemble, one module after the other.
    pub code: Vec<u8>,
    /// By device, as long as somebody has kernels of it.
    loaded: Mutex<HashMap<usize, Weak<CudaModule>>>,
}

impl Module {
    /// Of code that is on no device yet.
    pub fn new(code: Vec<u8>) -> Self {
        Self { code, loaded: Mutex::default() }
    }
}

/// Kernels on the device: they stay there as long as this lives, and so must what launches them.
#[derive(Default)]
pub(in crate::cuda) struct Kernels {
    functions: Vec<CudaFunction>,
    /// What they are of: found by whoever needs one of them, too, as long as this lives.
    modules: Vec<Arc<Module>>,
}

impl Kernels {
    /// Puts the module of a kernel on the device, unless it is there, and keeps both.
    ///
    /// # Errors
    /// Why the driver refuses what the compiler made, as one does that is older.
    pub(super) fn load(&mut self, device: &CudaDevice, kernel: &Compiled) -> Result<CudaFunction, String> {
        let stream = device.cuda_stream();
        let context = stream.context();
        let refused = |error: DriverError| format!("the driver refuses a compiled kernel: {error}");
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
