//! Compilation beside the work that comes before a kernel is needed.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{Builder, JoinHandle};

use candle::Device;

use super::compile::{capability, compile, compile_nothing};
use super::fused::KernelSource;
use super::module::Compiled;
use crate::subscriber::inherited;

/// Has the compiler been loaded ahead in this process?
static IS_LOADED: AtomicBool = AtomicBool::new(false);

/// A thread that compiles. It ends when this is dropped at the latest.
///
/// Whatever fails there fails again, and is reported, where a kernel is compiled.
pub(crate) struct CompilerAhead(Option<JoinHandle<Vec<Compiled>>>);

impl CompilerAhead {
    /// Starts the first compilation of a process for a device, if that was not started before.
    pub fn start(device: &Device) -> Self {
        let capability = device.as_cuda_device().ok().and_then(|device| capability(device).ok());
        let capability = capability.filter(|_| !IS_LOADED.swap(true, Relaxed));
        let load = |capability| {
            thread(move || {
                compile_nothing(capability);
                Vec::new()
            })
        };
        Self(capability.and_then(load))
    }

    /// Starts to compile kernels, if there are any.
    pub(in crate::cuda) fn of(device: &Device, kernels: Vec<KernelSource>, folder: Option<PathBuf>) -> Option<Self> {
        let device = device.as_cuda_device().ok().filter(|_| !kernels.is_empty())?.clone();
        let work = move || {
            let kernels = kernels.iter().map(|kernel| (kernel.name, kernel.code.as_str()));
            let compiled = compile(&device, kernels, folder.as_deref()).inspect_err(|error| {
                tracing::debug!(%error, "nothing was compiled ahead");
            });
            compiled.into_iter().flatten().flatten().collect()
        };
        thread(work).map(|thread| Self(Some(thread)))
    }

    /// Waits for the kernels. Who compiles the same ones finds them as long as these are kept.
    pub(in crate::cuda) fn finish(mut self) -> Vec<Compiled> {
        self.join()
    }

    fn join(&mut self) -> Vec<Compiled> {
        // A panic of the thread was reported, and nothing depends on it.
        self.0.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

/// A thread for a compiler, if the system starts one.
fn thread(work: impl FnOnce() -> Vec<Compiled> + Send + 'static) -> Option<JoinHandle<Vec<Compiled>>> {
    Builder::new().name("opara compiler".into()).spawn(inherited(work)).ok()
}

impl Drop for CompilerAhead {
    /// The process may end after this, and the compiler's library with it.
    fn drop(&mut self) {
        self.join();
    }
}
