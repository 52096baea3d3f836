//! The functions behind the interposed ones.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The library's function of the same name, looked up once.
pub(crate) struct Next<F> {
    found: AtomicPtr<c_void>,
    function: PhantomData<F>,
}

impl<F: Copy> Next<F> {
    pub const fn new() -> Self {
        Self { found: AtomicPtr::new(std::ptr::null_mut()), function: PhantomData }
    }

    /// The function; `None` if no loaded library has it.
    ///
    /// # Safety
    /// `F` must be the type of the C function `name`. `name` must end in a zero byte.
    pub unsafe fn get(&self, name: &'static str) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            // SAFETY: `name` ends in a zero byte. The search begins behind this program, so it does not find the caller.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) };
            self.found.store(found, Ordering::Relaxed);
        }
        // SAFETY: a function pointer has the size of a pointer, and the caller vouches for its type.
        (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
    }
}
