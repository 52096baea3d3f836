//! The first compilation of a process, beside the work that comes before the first kernel has to be compiled.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{Builder, JoinHandle};

use candle::Device;

use super::compile::{capability, compile_nothing};

/// Has it been started in this process?
static IS_STARTED: AtomicBool = AtomicBool::new(false);

/// A thread that loads the compiler. It ends when this is dropped at the latest.
pub(crate) struct CompilerAhead(Option<JoinHandle<()>>);

impl CompilerAhead {
    /// Starts the thread for a device, if none was started before. Whatever fails here fails again, and is reported, where a kernel is
    /// compiled.
    pub fn start(device: &Device) -> Self {
        let capability = device.as_cuda_device().ok().and_then(|device| capability(device).ok());
        let start = |capability| {
            let is_first = !IS_STARTED.swap(true, Relaxed);
            let thread = Builder::new().name("opara compiler".into());
            is_first.then(|| thread.spawn(move || compile_nothing(capability)).ok()).flatten()
        };
        Self(capability.and_then(start))
    }
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
