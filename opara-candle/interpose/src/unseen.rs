//! Whether calls of this program reach the functions that are defined here.
//!
//! They do in a program that is linked with this library. In a shared library that has this one they may not: the dynamic linker takes
//! the first definition in its order, and a library that the process has loaded globally comes before. Each library is probed by
//! itself: cuBLAS may be global where the driver is not.

use std::ffi::c_void;
use std::hint::black_box;
use std::ptr::{null, null_mut};
use std::sync::LazyLock;

use cudarc::{cublas, cublaslt, curand};

use super::probe::sees;
use super::runtime;

/// Libraries whose calls do not reach their definitions here. The driver's do, or [`is_interposed`](super::is_interposed) says that they do
/// not.
pub fn unseen() -> &'static [&'static str] {
    static UNSEEN: LazyLock<Vec<&str>> = LazyLock::new(|| {
        // One function of each library, which returns an error for a null handle, or writes no bytes.
        let matmul = || {
            let (no, none) = (null_mut(), null::<c_void>());
            // SAFETY: the function refuses null handles and descriptors.
            unsafe {
                cublaslt::sys::cublasLtMatmul(
                    no,
                    null_mut(),
                    none,
                    none,
                    null_mut(),
                    none,
                    null_mut(),
                    none,
                    none,
                    null_mut(),
                    null_mut(),
                    null_mut(),
                    null(),
                    null_mut(),
                    0,
                    null_mut(),
                )
            }
        };
        // Through a pointer that the compiler does not know: it would call the definition without asking the dynamic linker.
        let memset: unsafe extern "C" fn(_, _, _, _) -> _ = black_box(runtime::cudaMemsetAsync);
        let seen = [
            // SAFETY: no bytes are written.
            ("the CUDA runtime", sees(|| unsafe { memset(null_mut(), 0, 0, null_mut()) })),
            // SAFETY: the function refuses a null handle.
            ("cuBLAS", sees(|| unsafe { cublas::sys::cublasDestroy_v2(null_mut()) })),
            ("cuBLASLt", sees(matmul)),
            // SAFETY: the function refuses a null handle.
            ("cuRAND", sees(|| unsafe { curand::sys::curandDestroyGenerator(null_mut()) })),
            #[cfg(feature = "cudnn")]
            // SAFETY: the function refuses a null handle.
            ("cuDNN", sees(|| unsafe { cudarc::cudnn::sys::cudnnSetStream(null_mut(), null_mut()) })),
        ];
        seen.into_iter().filter(|(_, is_seen)| !is_seen).map(|(library, _)| library).collect()
    });
    &UNSEEN
}

#[cfg(all(test, feature = "interpose"))]
mod tests {
    #[test]
    fn a_program_that_is_linked_with_this_library_reaches_all_definitions() {
        assert!(super::super::is_interposed());
        assert_eq!(super::unseen(), [""; 0]);
    }
}
