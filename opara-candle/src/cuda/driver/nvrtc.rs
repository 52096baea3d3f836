//! NVRTC: CUDA C++ to machine code.

use std::ffi::{c_char, CString};

use cudarc::nvrtc::result::{compile_program, create_program, destroy_program, get_program_log, NvrtcError};
use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};

/// Compiles a source for the one architecture that the options name.
///
/// # Errors
/// What the compiler says against it.
pub(super) fn cubin(source: &str, options: &[String]) -> Result<Vec<u8>, String> {
    let source = CString::new(source).map_err(|error| error.to_string())?;
    let program = Program(create_program(&source, None).map_err(|error| error.to_string())?);
    // SAFETY: the program was created above, and so was the source that it may refer to; both live on.
    match unsafe { compile_program(program.0, options) } {
        Ok(()) => program.cubin().map_err(|error| error.to_string()),
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

/// Owns a program.
struct Program(nvrtcProgram);

impl Program {
    /// What was compiled.
    fn cubin(&self) -> Result<Vec<u8>, NvrtcError> {
        let mut bytes = 0;
        // SAFETY: the program lives, and the buffer is as long as the compiler says that it has to be.
        unsafe {
            sys::nvrtcGetCUBINSize(self.0, &mut bytes).result()?;
            let mut code = vec![0u8; bytes];
            sys::nvrtcGetCUBIN(self.0, code.as_mut_ptr().cast::<c_char>()).result()?;
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
