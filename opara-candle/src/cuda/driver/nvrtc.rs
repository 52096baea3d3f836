//! NVRTC, loaded on demand: compiles CUDA C++ for the driver. Without it, programs run without run-time compiled
//! kernels.

use std::ffi::{c_char, c_int, c_void, CStr, CString, OsStr};
use std::sync::OnceLock;

use libloading::Library;

use crate::environment::Environment;

type Status = c_int;
const SUCCESS: Status = 0;
const REFUSED: Status = 6;
type Handle = *mut c_void;
type SizeOf = unsafe extern "C" fn(Handle, *mut usize) -> Status;
type Get = unsafe extern "C" fn(Handle, *mut c_char) -> Status;
type Create = unsafe extern "C" fn(
    *mut Handle,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> Status;

/// The functions of NVRTC that are used.
pub(super) struct Nvrtc {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status,
    count_architectures: unsafe extern "C" fn(*mut c_int) -> Status,
    architectures: unsafe extern "C" fn(*mut c_int) -> Status,
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
    create: Create,
    compile: unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> Status,
    destroy: unsafe extern "C" fn(*mut Handle) -> Status,
    log_size: SizeOf,
    log: Get,
    cubin_size: SizeOf,
    cubin: Get,
    ptx_size: SizeOf,
    ptx: Get,
}

/// The NVRTC library of this process.
///
/// # Errors
/// NVRTC is not installed.
pub(super) fn nvrtc() -> Result<&'static Nvrtc, String> {
    static NVRTC: OnceLock<Result<Nvrtc, String>> = OnceLock::new();
    let load = || match &Environment::get().nvrtc {
        Some(name) => Nvrtc::load(&[name]),
        // The major version that the other CUDA libraries are linked with; an installation with only one version has
        // only the versioned file name.
        None => Nvrtc::load(&[&format!("libnvrtc.so.{}", opara_kernels::CUDA_MAJOR), "libnvrtc.so"]),
    };
    NVRTC.get_or_init(load).as_ref().map_err(Clone::clone)
}

impl Nvrtc {
    /// Loads the first library of these names that exists.
    ///
    /// # Errors
    /// None exists, or it is not NVRTC.
    fn load(names: &[impl AsRef<OsStr>]) -> Result<Self, String> {
        // SAFETY: loading runs the library's constructors, which are NVIDIA's own.
        let library = names.iter().find_map(|name| unsafe { Library::new(name.as_ref()) }.ok()).ok_or_else(|| {
            let names: Vec<_> = names.iter().map(|name| name.as_ref().display().to_string()).collect();
            let names = names.join(" or ");
            format!("{names} was not found: NVRTC comes with CUDA's toolkit; put its folder on LD_LIBRARY_PATH")
        })?;
        // Never unloaded: the function pointers have no lifetime.
        let library: &'static Library = Box::leak(Box::new(library));
        /// # Safety
        /// The library must declare the name with type `T`.
        unsafe fn get<T: Copy>(library: &Library, name: &str) -> Result<T, String> {
            // SAFETY: the caller's promise.
            unsafe { library.get::<T>(name.as_bytes()) }.map(|found| *found).map_err(|error| format!("{name}: {error}"))
        }
        // SAFETY: the types are the declarations of these names in nvrtc.h.
        unsafe {
            Ok(Self {
                version: get(library, "nvrtcVersion")?,
                count_architectures: get(library, "nvrtcGetNumSupportedArchs")?,
                architectures: get(library, "nvrtcGetSupportedArchs")?,
                error_string: get(library, "nvrtcGetErrorString")?,
                create: get(library, "nvrtcCreateProgram")?,
                compile: get(library, "nvrtcCompileProgram")?,
                destroy: get(library, "nvrtcDestroyProgram")?,
                log_size: get(library, "nvrtcGetProgramLogSize")?,
                log: get(library, "nvrtcGetProgramLog")?,
                cubin_size: get(library, "nvrtcGetCUBINSize")?,
                cubin: get(library, "nvrtcGetCUBIN")?,
                ptx_size: get(library, "nvrtcGetPTXSize")?,
                ptx: get(library, "nvrtcGetPTX")?,
            })
        }
    }

    /// Compiles a source for the architecture in the options: to a cubin for `sm_90`, to PTX for `compute_90`.
    ///
    /// # Errors
    /// The compiler's messages.
    pub fn code(&self, source: &str, options: &[String]) -> Result<Vec<u8>, String> {
        let as_c = |text: &str| CString::new(text).map_err(|error| error.to_string());
        let source = as_c(source)?;
        let options = options.iter().map(|option| as_c(option)).collect::<Result<Vec<_>, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program = NvrtcProgram { compiler: self, handle: std::ptr::null_mut() };
        let (none, no_headers) = (std::ptr::null(), std::ptr::null());
        // SAFETY: the call writes the handle, and copies the zero-terminated source; there are no headers.
        let created = unsafe { (self.create)(&mut program.handle, source.as_ptr(), none, 0, no_headers, no_headers) };
        self.check(created)?;
        // SAFETY: the program was created above; the count matches the options, which are zero-terminated.
        match unsafe { (self.compile)(program.handle, pointers.len() as c_int, pointers.as_ptr()) } {
            SUCCESS => program.code(),
            REFUSED => Err(program.log()),
            status => self.check(status).and_then(|()| program.code()),
        }
    }

    /// The version of the compiler: major and minor.
    pub fn version(&self) -> (c_int, c_int) {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the call writes two numbers; if it fails they stay zero.
        unsafe { (self.version)(&mut major, &mut minor) };
        (major, minor)
    }

    /// Compute capabilities that it supports, as in `sm_90`, in increasing order.
    pub fn architectures(&self) -> Vec<i32> {
        let mut count = 0;
        // SAFETY: the call writes their number; if it fails that stays zero.
        unsafe { (self.count_architectures)(&mut count) };
        let mut known = vec![0; usize::try_from(count).unwrap_or(0)];
        if !known.is_empty() {
            // SAFETY: the call writes as many numbers as it reported.
            unsafe { (self.architectures)(known.as_mut_ptr()) };
        }
        known
    }

    fn check(&self, status: Status) -> Result<(), String> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: the call returns a static string for any number.
        let text = unsafe { (self.error_string)(status) };
        if text.is_null() {
            return Err(format!("NVRTC's error {status}"));
        }
        // SAFETY: a zero-terminated string that is never freed.
        Err(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
}

/// Owns a program; null if none was created.
struct NvrtcProgram<'a> {
    compiler: &'a Nvrtc,
    handle: Handle,
}

impl NvrtcProgram<'_> {
    /// The compiled code. PTX ends with a zero byte.
    fn code(&self) -> Result<Vec<u8>, String> {
        let Nvrtc { cubin_size, cubin, ptx_size, ptx, .. } = *self.compiler;
        let machine_code = self.bytes(cubin_size, cubin)?;
        if machine_code.is_empty() {
            self.bytes(ptx_size, ptx)
        } else {
            Ok(machine_code)
        }
    }

    /// The compiler's messages.
    fn log(&self) -> String {
        let log = self.bytes(self.compiler.log_size, self.compiler.log).unwrap_or_default();
        String::from_utf8_lossy(log.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned()
    }

    /// The bytes that `get` writes, whose number `size` reports.
    fn bytes(&self, size: SizeOf, get: Get) -> Result<Vec<u8>, String> {
        let mut len = 0;
        // SAFETY: the program exists, and the call writes the number.
        self.compiler.check(unsafe { size(self.handle, &mut len) })?;
        let mut bytes = vec![0u8; len];
        if len > 0 {
            // SAFETY: the program exists, and the buffer has the reported length.
            self.compiler.check(unsafe { get(self.handle, bytes.as_mut_ptr().cast()) })?;
        }
        Ok(bytes)
    }
}

impl Drop for NvrtcProgram<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: this value owns the program; the compiled code was copied.
            unsafe { (self.compiler.destroy)(&mut self.handle) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_compiler_gives_an_error_with_advice() {
        let message = Nvrtc::load(&["libnothing.so.13", "libnothing.so"]).err().unwrap();
        assert!(
            message.contains("libnothing.so.13 or libnothing.so") && message.contains("LD_LIBRARY_PATH"),
            "{message}"
        );
        // An existing library that is not NVRTC.
        let message = Nvrtc::load(&["libc.so.6"]).err().unwrap();
        assert!(message.contains("nvrtcVersion"), "{message}");
    }
}
