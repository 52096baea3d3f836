//! Modules of kernels that were compiled at run time.

use std::sync::{Arc, Weak};

use candle::CudaDevice;
use cudarc::driver::{CudaFunction, CudaModule, DriverError};
use cudarc::nvrtc::Ptx;
use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::{Error, Result};

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
pub(in crate::cuda) struct Kernels(Vec<CudaFunction>);

impl Kernels {
    /// Puts the modules of kernels there that are not there yet.
    ///
    /// # Errors
    /// [`Error::NotCompiled`] where the driver refuses what the compiler made, such as a driver that is older.
    pub(super) fn load(device: &CudaDevice, kernels: &[Compiled]) -> Result<Self> {
        let stream = device.cuda_stream();
        let context = stream.context();
        let refused = |error: DriverError| Error::NotCompiled {
            architecture: format!("device {}", context.ordinal()),
            message: format!("the driver refuses it: {error}"),
        };
        let load = |Compiled { name, module }: &Compiled| {
            let mut loaded = module.loaded.lock();
            let module = match loaded.get(&context.ordinal()).and_then(Weak::upgrade) {
                Some(module) => module,
                None => {
                    let code = Ptx::from_binary(module.code.clone());
                    let module = context.load_module(code).map_err(refused)?;
                    loaded.insert(context.ordinal(), Arc::downgrade(&module));
                    module
                }
            };
            module.load_function(name).map_err(refused)
        };
        Ok(Self(kernels.iter().map(load).collect::<Result<_>>()?))
    }

    /// One for each that was loaded, in order.
    pub(super) fn functions(&self) -> &[CudaFunction] {
        &self.0
    }
}
