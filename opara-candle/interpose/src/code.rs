//! Identifies the code of a kernel: modules that Rust loads from PTX text are known by a hash of that text.

use std::ffi::{c_char, c_void, CStr};

use cudarc::driver::sys::{self, CUfunction, CUmodule, CUresult};
use hashbrown::HashMap;
use parking_lot::RwLock;
use xxhash_rust::xxh3::xxh3_64;

/// The hash of the text of each module that was loaded from PTX.
static LOADED: RwLock<Option<HashMap<usize, u64>>> = RwLock::new(None);

/// Notes the text of a module that was loaded.
///
/// # Safety
/// `image` must be one that the driver has taken.
pub(crate) unsafe fn loaded(module: CUmodule, image: *const c_void) {
    // SAFETY: the image is one of the driver's formats.
    if let Some(text) = unsafe { ptx_text(image) } {
        LOADED.write().get_or_insert_default().insert(module as usize, xxh3_64(text));
    }
}

/// Forgets a module.
pub(crate) fn unloaded(module: CUmodule) {
    if let Some(loaded) = LOADED.write().as_mut() {
        loaded.remove(&(module as usize));
    }
}

/// The text of an image; `None` for machine code and bundles of it.
///
/// # Safety
/// `image` must be one that the driver takes: an ELF file, a fat binary, or text that ends in a zero byte.
unsafe fn ptx_text<'a>(image: *const c_void) -> Option<&'a [u8]> {
    const FAT_BINARY: [u8; 4] = 0xBA55_ED50u32.to_le_bytes();
    const ELF: [u8; 4] = *b"\x7fELF";
    let begins_with = |magic: [u8; 4]| {
        // SAFETY: bytes are read up to the first that differs, and none of these is the zero that ends a text.
        magic.iter().enumerate().all(|(i, byte)| unsafe { *image.cast::<u8>().add(i) } == *byte)
    };
    if image.is_null() || begins_with(FAT_BINARY) || begins_with(ELF) {
        return None;
    }
    // SAFETY: an image that is neither binary format is a text that ends with zero.
    Some(unsafe { CStr::from_ptr(image.cast::<c_char>()) }.to_bytes())
}

/// The hash (XXH3) of the PTX text that a kernel was loaded from; `None` for kernels that did not come from Rust as text: kernels
/// of libraries and of C++ code.
///
/// # Safety
/// The function must exist.
pub unsafe fn code_of(function: CUfunction) -> Option<u64> {
    let mut module = std::ptr::null_mut();
    // SAFETY: the caller vouches for the function; `module` receives its module.
    let status = unsafe { sys::cuFuncGetModule(&mut module, function) };
    let known = status == CUresult::CUDA_SUCCESS && !module.is_null();
    known.then(|| LOADED.read().as_ref()?.get(&(module as usize)).copied()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_told_from_machine_code() {
        // SAFETY: each ends in a zero byte.
        unsafe {
            assert_eq!(ptx_text(c".version 9.0".as_ptr().cast()), Some(&b".version 9.0"[..]));
            assert_eq!(ptx_text(c"".as_ptr().cast()), Some(&b""[..]));
            assert_eq!(ptx_text(c"\x7fELF\x02".as_ptr().cast()), None);
            assert_eq!(ptx_text(c"\x50\xed\x55\xba".as_ptr().cast()), None);
        }
    }
}
