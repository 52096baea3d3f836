//! Modules that Rust loads from PTX text.

use std::ffi::c_void;

use cudarc::driver::sys::{CUmodule, CUresult};

use super::code;

const MISSING: CUresult = CUresult::CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;

super::interpose! {
    /// The driver's function, with the module's text hashed.
    fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CUresult, missing MISSING;
    |next| {
        // SAFETY: the arguments are the caller's.
        let status = unsafe { next(module, image) };
        if status == CUresult::CUDA_SUCCESS {
            // SAFETY: the call succeeded, so the image is one of the driver's formats and the module is written.
            unsafe { code::loaded(*module, image) };
        }
        status
    }
}

super::interpose! {
    /// The driver's function, with the module forgotten.
    fn cuModuleUnload(module: CUmodule) -> CUresult, missing MISSING;
    |next| {
        code::unloaded(module);
        // SAFETY: the arguments are the caller's.
        unsafe { next(module) }
    }
}
