//! Compilation beside the work that comes before a kernel is needed.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{Builder, JoinHandle};

use candle::Device;

use super::compile::{capability, compile, compile_nothing};
use super::fused::KernelSource;

/// Has the compiler been loaded ahead in this process?
static IS_LOADED: AtomicBool = AtomicBool::new(false);

/// A thread that compiles. It ends when this is dropped at the latest.
///
/// Whatever fails there fails again, and is reported, where a kernel is compiled.
pub(crate) struct CompilerAhead(Option<JoinHandle<()>>);

impl CompilerAhead {
    /// Starts the first compilation of a process for a device, if that was not started before.
    pub fn start(device: &Device) -> Self {
        let capability = device.as_cuda_device().ok().and_then(|device| capability(device).ok());
        let capability = capability.filter(|_| !IS_LOADED.swap(true, Relaxed));
        Self(capability.and_then(|capability| thread(move || compile_nothing(capability))))
    }

    /// Starts to compile kernels, if there are any, which the next one who needs them finds compiled.
    pub(in crate::cuda) fn of(device: &Device, kernels: Vec<KernelSource>, folder: Option<PathBuf>) -> Option<Self> {
        let device = device.as_cuda_device().ok().filter(|_| !kernels.is_empty())?.clone();
        let work = move || {
            let kernels = kernels.iter().map(|kernel| (kernel.name, kernel.code.as_str()));
            if let Err(error) = compile(&device, kernels, folder.as_deref()) {
                tracing::debug!(%error, "nothing was compiled ahead");
            }
        };
        thread(work).map(|thread| Self(Some(thread)))
    }
}

/// A thread for a compiler, if the system starts one. Warnings go to the caller's subscriber.
fn thread(work: impl FnOnce() + Send + 'static) -> Option<JoinHandle<()>> {
    let dispatch = tracing::dispatcher::get_default(Clone::clone);
    let work = move || tracing::dispatcher::with_default(&dispatch, work);
    Builder::new().name("opara compiler".into()).spawn(work).ok()
}

impl Drop for CompilerAhead {
    /// The process may end after this, and the compiler's library with it.
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // A panic of the thread was reported, and nothing depends on it.
            let _ = thread.join();
        }
    }
}
