//! Memory whose free is put off.

use cudarc::driver::sys::{self, CUdeviceptr, CUstream};

/// Allocations that a module has dropped, which are freed when this is.
#[derive(Default)]
pub struct Held(Vec<(CUdeviceptr, usize)>);

impl Held {
    /// Puts off the free of an allocation on a stream.
    pub(crate) fn hold(&mut self, address: CUdeviceptr, stream: CUstream) {
        self.0.push((address, stream as usize));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for (address, stream) in self.0.drain(..) {
            // SAFETY: whoever allocated it has asked for this free, once, on this stream, which outlives the process's captures.
            unsafe { sys::cuMemFreeAsync(address, stream as CUstream) };
        }
    }
}
