//! NVRTC: CUDA C++ to code that the driver takes.

use std::ffi::{c_char, CString};

use cudarc::nvrtc::result::{compile_program, create_program, destroy_program, get_program_log, NvrtcError};
use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};

/// Compiles a source for the one architecture that the options name: to a cubin for `sm_90`, to PTX for `compute_90`.
///
/// # Errors
/// What the compiler says against it.
pub(super) fn code(source: &str, options: &[String]) -> Result<Vec<u8>, String> {
    let source = CString::new(source).map_err(|error| error.to_string())?;
    let program = Program(create_program(&source, None).map_err(|error| error.to_string())?);
    // SAFETY: the program was created above, and so was the source that it may refer to; both live on.
    match unsafe { compile_program(program.0, options) } {
        Ok(()) => program.code().map_err(|error| error.to_string()),
        Err(NvrtcError(nvrtcResult::NVRTC_ERROR_COMPILATION)) => Err(program.log()),
        Err(error) => Err(error.to_string()),
    }
}

/// Which compiler this is.
pub(super) fn version() -> String {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: it writes the two numbers; where it fails they stay zeros.
    unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    format!("{major}.{minor}")
}

/// Compute capabilities that it knows, as in `sm_90`, in rising order.
pub(super) fn architectures() -> Vec<i32> {
    let mut count = 0;
    // SAFETY: it writes their number; where it fails that stays zero.
    unsafe { sys::nvrtcGetNumSupportedArchs(&mut count) };
    let mut known = vec![0; usize::try_from(count).unwrap_or(0)];
    if !known.is_empty() {
        // SAFETY: it writes as many as it said.
        unsafe { sys::nvrtcGetSupportedArchs(known.as_mut_ptr()) };
    }
    known
}

/// Owns a program.
struct Program(nvrtcProgram);

impl Program {
    /// What was compiled. PTX ends with a zero.
    fn code(&self) -> Result<Vec<u8>, NvrtcError> {
        let mut bytes = 0;
        // SAFETY: the program lives, and the buffers are as long as the compiler says that they have to be.
        unsafe {
            sys::nvrtcGetCUBINSize(self.0, &mut bytes).result()?;
            let is_machine_code = bytes > 0;
            if !is_machine_code {
                sys::nvrtcGetPTXSize(self.0, &mut bytes).result()?;
            }
            let mut code = vec![0u8; bytes];
            let to = code.as_mut_ptr().cast::<c_char>();
            let get = if is_machine_code { sys::nvrtcGetCUBIN } else { sys::nvrtcGetPTX };
            get(self.0, to).result()?;
            Ok(code)
        }
    }

    /// What the compiler said.
    fn log(&self) -> String {
        // SAFETY: the program lives.
        let log = unsafe { get_program_log(self.0) }.unwrap_or_default();
        let bytes: Vec<u8> = log.into_iter().map(|byte| byte as u8).take_while(|&byte| byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: this value owns the program. What it compiled was copied.
        let _ = unsafe { destroy_program(self.0) };
    }
}
