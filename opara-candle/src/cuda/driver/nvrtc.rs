//! NVRTC, loaded when it is first asked for: CUDA C++ to code that the driver takes. Where it is not installed, programs run
//! without kernels that are compiled at run time.

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

/// The compiler, by the functions of it that are used.
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

/// The compiler of this process.
///
/// # Errors
/// It is not installed.
pub(super) fn nvrtc() -> Result<&'static Nvrtc, String> {
    static NVRTC: OnceLock<Result<Nvrtc, String>> = OnceLock::new();
    let load = || match &Environment::get().nvrtc {
        Some(name) => Nvrtc::load(&[name]),
        // Of the version that other libraries of CUDA are linked in; where only that version is installed, it has the longer name.
        None => Nvrtc::load(&[concat!("libnvrtc.so.", env!("OPARA_CUDA_MAJOR")), "libnvrtc.so"]),
    };
    NVRTC.get_or_init(load).as_ref().map_err(Clone::clone)
}

impl Nvrtc {
    /// The first library of these names.
    ///
    /// # Errors
    /// There is none, or it is not NVRTC.
    fn load(names: &[impl AsRef<OsStr>]) -> Result<Self, String> {
        // SAFETY: the library's constructors are NVIDIA's own, made to be loaded so.
        let library = names.iter().find_map(|name| unsafe { Library::new(name.as_ref()) }.ok()).ok_or_else(|| {
            let names: Vec<_> = names.iter().map(|name| name.as_ref().display().to_string()).collect();
            let names = names.join(" or ");
            format!("{names} was not found: NVRTC comes with CUDA's toolkit; put its folder on LD_LIBRARY_PATH")
        })?;
        // Never unloaded: what was loaded from it has no lifetime.
        let library: &'static Library = Box::leak(Box::new(library));
        /// # Safety
        /// The library must declare the name as `T`.
        unsafe fn get<T: Copy>(library: &Library, name: &str) -> Result<T, String> {
            // SAFETY: as the caller promises.
            unsafe { library.get::<T>(name.as_bytes()) }.map(|found| *found).map_err(|error| format!("{name}: {error}"))
        }
        // SAFETY: the types are those that nvrtc.h declares for these names.
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

    /// Compiles a source for the one architecture that the options name: to a cubin for `sm_90`, to PTX for `compute_90`.
    ///
    /// # Errors
    /// What the compiler says against it.
    pub fn code(&self, source: &str, options: &[String]) -> Result<Vec<u8>, String> {
        let as_c = |text: &str| CString::new(text).map_err(|error| error.to_string());
        let source = as_c(source)?;
        let options = options.iter().map(|option| as_c(option)).collect::<Result<Vec<_>, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program = Program { compiler: self, handle: std::ptr::null_mut() };
        let (none, no_headers) = (std::ptr::null(), std::ptr::null());
        // SAFETY: it writes the handle, and copies the source, which ends with a zero; there are no headers.
        let created = unsafe { (self.create)(&mut program.handle, source.as_ptr(), none, 0, no_headers, no_headers) };
        self.check(created)?;
        // SAFETY: the program was created above; there are as many options as said, each of which ends with a zero.
        match unsafe { (self.compile)(program.handle, pointers.len() as c_int, pointers.as_ptr()) } {
            SUCCESS => program.code(),
            REFUSED => Err(program.log()),
            status => self.check(status).and_then(|()| program.code()),
        }
    }

    /// Which compiler this is.
    pub fn version(&self) -> String {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: it writes the two numbers; where it fails they stay zeros.
        unsafe { (self.version)(&mut major, &mut minor) };
        format!("{major}.{minor}")
    }

    /// Compute capabilities that it knows, as in `sm_90`, in rising order.
    pub fn architectures(&self) -> Vec<i32> {
        let mut count = 0;
        // SAFETY: it writes their number; where it fails that stays zero.
        unsafe { (self.count_architectures)(&mut count) };
        let mut known = vec![0; usize::try_from(count).unwrap_or(0)];
        if !known.is_empty() {
            // SAFETY: it writes as many as it said.
            unsafe { (self.architectures)(known.as_mut_ptr()) };
        }
        known
    }

    fn check(&self, status: Status) -> Result<(), String> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: it gives a static string for any number.
        let text = unsafe { (self.error_string)(status) };
        if text.is_null() {
            return Err(format!("NVRTC's error {status}"));
        }
        // SAFETY: a string of C's that is never freed.
        Err(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
}

/// Owns a program; null if none was created.
struct Program<'a> {
    compiler: &'a Nvrtc,
    handle: Handle,
}

impl Program<'_> {
    /// What was compiled. PTX ends with a zero.
    fn code(&self) -> Result<Vec<u8>, String> {
        let Nvrtc { cubin_size, cubin, ptx_size, ptx, .. } = *self.compiler;
        let machine_code = self.bytes(cubin_size, cubin)?;
        if machine_code.is_empty() {
            self.bytes(ptx_size, ptx)
        } else {
            Ok(machine_code)
        }
    }

    /// What the compiler said.
    fn log(&self) -> String {
        let log = self.bytes(self.compiler.log_size, self.compiler.log).unwrap_or_default();
        String::from_utf8_lossy(log.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned()
    }

    /// What one function gives, which is as long as the other one says.
    fn bytes(&self, size: SizeOf, get: Get) -> Result<Vec<u8>, String> {
        let mut len = 0;
        // SAFETY: the program lives, and it writes the number.
        self.compiler.check(unsafe { size(self.handle, &mut len) })?;
        let mut bytes = vec![0u8; len];
        if len > 0 {
            // SAFETY: the program lives, and the buffer is as long as the compiler says that it has to be.
            self.compiler.check(unsafe { get(self.handle, bytes.as_mut_ptr().cast()) })?;
        }
        Ok(bytes)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: this value owns the program. What it compiled was copied.
            unsafe { (self.compiler.destroy)(&mut self.handle) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_there_is_no_compiler_it_is_said_what_to_do() {
        let message = Nvrtc::load(&["libnothing.so.13", "libnothing.so"]).err().unwrap();
        assert!(
            message.contains("libnothing.so.13 or libnothing.so") && message.contains("LD_LIBRARY_PATH"),
            "{message}"
        );
        // A library, but another one.
        let message = Nvrtc::load(&["libc.so.6"]).err().unwrap();
        assert!(message.contains("nvrtcVersion"), "{message}");
    }
}
