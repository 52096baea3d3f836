//! cuBLAS. All threads of a candle device share one cuBLAS handle, and the stream belongs to the handle. So a capturing thread uses
//! the handle of its private stream instead, set to the same modes.

use std::ffi::{c_int, c_longlong, c_void};

use cudarc::cublas::sys::{
    self as blas, cublasComputeType_t, cublasGemmAlgo_t, cublasHandle_t, cublasOperation_t, cublasStatus_t,
    cudaDataType,
};

use super::library_call::{Call, Matmul, Meaning};
use super::noted::noted;
use super::ongoing::between_captures;
use super::scale::{is_one, is_zero, scale_bytes};
use super::thread_capture;

const MISSING: cublasStatus_t = cublasStatus_t::CUBLAS_STATUS_NOT_INITIALIZED;

/// The handle for a call: the capture's with the modes of the caller's, or the caller's handle outside of captures.
///
/// # Safety
/// The handle must exist.
unsafe fn handle_for(caller: cublasHandle_t) -> cublasHandle_t {
    let Some(own) = thread_capture::with(|capture| capture.blas) else { return caller };
    let (mut math, mut pointers, mut atomics) = (
        blas::cublasMath_t::CUBLAS_DEFAULT_MATH,
        blas::cublasPointerMode_t::CUBLAS_POINTER_MODE_HOST,
        blas::cublasAtomicsMode_t::CUBLAS_ATOMICS_NOT_ALLOWED,
    );
    // SAFETY: the caller vouches for its handle; this thread alone uses the capture's.
    unsafe {
        blas::cublasGetMathMode(caller, &mut math);
        blas::cublasGetPointerMode_v2(caller, &mut pointers);
        blas::cublasGetAtomicsMode(caller, &mut atomics);
        blas::cublasSetMathMode(own, math);
        blas::cublasSetPointerMode_v2(own, pointers);
        blas::cublasSetAtomicsMode(own, atomics);
    }
    own
}

/// Does a factor lie on the host, and does `is` accept it?
///
/// # Safety
/// The handle must exist. The factor must be a pointer of the handle's pointer mode to `scale_bytes` bytes.
unsafe fn factor_is(
    handle: cublasHandle_t,
    factor: *const c_void,
    scale_bytes: usize,
    is: unsafe fn(*const c_void, usize) -> bool,
) -> bool {
    let mut mode = blas::cublasPointerMode_t::CUBLAS_POINTER_MODE_DEVICE;
    // SAFETY: the caller vouches for both; on the host, the factor has at least as many bytes as its scale type.
    unsafe {
        blas::cublasGetPointerMode_v2(handle, &mut mode);
        mode == blas::cublasPointerMode_t::CUBLAS_POINTER_MODE_HOST && !factor.is_null() && is(factor, scale_bytes)
    }
}

/// A call whose operands are unknown to the host.
fn unknown(name: &'static str) -> Call {
    Call { name, operands: None, meaning: Meaning::Other, computes: None }
}

/// A, B or C of a matmul, or the first of each in a batch.
struct Matrix {
    address: u64,
    /// `cudaDataType`.
    dtype: u32,
    /// Elements from one column to the next.
    leading: c_int,
    /// Elements from one matrix of the batch to the next.
    stride: c_longlong,
}

/// A matrix of a call, from the arguments that cuBLAS declares for it.
fn matrix<T>(pointer: *const T, dtype: u32, leading: c_int, stride: c_longlong) -> Matrix {
    Matrix { address: pointer as u64, dtype, leading, stride }
}

/// Describes a matmul by cuBLAS's arguments. `compute` is a `cublasComputeType_t`.
///
/// # Safety
/// The handle must exist, and alpha and beta must be as its pointer mode says, of the scale type of `compute`.
unsafe fn matmul(
    name: &'static str,
    (handle, [alpha, beta]): (cublasHandle_t, [*const c_void; 2]),
    operations: [cublasOperation_t; 2],
    sizes: [c_int; 3],
    matrices: [Matrix; 3],
    batch: c_int,
    compute: u32,
) -> Call {
    let [m, n, k] = sizes.map(|size| size as u64);
    let matmul = Matmul {
        m,
        n,
        k,
        transposed: operations.map(|operation| operation != cublasOperation_t::CUBLAS_OP_N),
        types: matrices.each_ref().map(|matrix| matrix.dtype),
        leading: matrices.each_ref().map(|matrix| matrix.leading.into()),
        strides: matrices.each_ref().map(|matrix| matrix.stride),
        batch: batch as u64,
        // SAFETY: the caller vouches for the handle and beta, which counts as read where it is not known.
        accumulates: unsafe { !factor_is(handle, beta, scale_bytes(compute), is_zero) },
        compute,
        epilogue: 1,
        // SAFETY: the caller vouches for the handle and alpha.
        is_unscaled: unsafe { factor_is(handle, alpha, scale_bytes(compute), is_one) },
    };
    let addresses = matrices.map(|matrix| matrix.address);
    let (operands, computes) = (Some(matmul.operands(addresses)), matmul.computed(addresses));
    Call { name, operands, meaning: Meaning::Matmul(matmul), computes }
}

super::interpose! {
    /// A matmul with any types.
    fn cublasGemmEx(
        handle: cublasHandle_t, transa: cublasOperation_t, transb: cublasOperation_t, m: c_int, n: c_int, k: c_int,
        alpha: *const c_void, a: *const c_void, atype: cudaDataType, lda: c_int, b: *const c_void,
        btype: cudaDataType, ldb: c_int, beta: *const c_void, c: *mut c_void, ctype: cudaDataType, ldc: c_int,
        compute: cublasComputeType_t, algo: cublasGemmAlgo_t,
    ) -> cublasStatus_t, missing MISSING;
    |next| {
        // SAFETY: the caller vouches for the handle and beta.
        let describe = || unsafe {
            let matrices =
                [matrix(a, atype as u32, lda, 0), matrix(b, btype as u32, ldb, 0), matrix(c, ctype as u32, ldc, 0)];
            matmul("cublasGemmEx", (handle, [alpha, beta]), [transa, transb], [m, n, k], matrices, 1, compute as u32)
        };
        // SAFETY: the arguments are the caller's, but for the handle, which is in the same modes.
        noted(describe, || unsafe {
            let handle = handle_for(handle);
            next(
                handle, transa, transb, m, n, k, alpha, a, atype, lda, b, btype, ldb, beta, c, ctype, ldc, compute, algo,
            )
        })
    }
}

super::interpose! {
    /// A batch of matmuls with any types.
    fn cublasGemmStridedBatchedEx(
        handle: cublasHandle_t, transa: cublasOperation_t, transb: cublasOperation_t, m: c_int, n: c_int, k: c_int,
        alpha: *const c_void, a: *const c_void, atype: cudaDataType, lda: c_int, stridea: c_longlong,
        b: *const c_void, btype: cudaDataType, ldb: c_int, strideb: c_longlong, beta: *const c_void, c: *mut c_void,
        ctype: cudaDataType, ldc: c_int, stridec: c_longlong, batch: c_int, compute: cublasComputeType_t,
        algo: cublasGemmAlgo_t,
    ) -> cublasStatus_t, missing MISSING;
    |next| {
        // SAFETY: the caller vouches for the handle and beta.
        let describe = || unsafe {
            let matrices =
                [matrix(a, atype as u32, lda, stridea), matrix(b, btype as u32, ldb, strideb), matrix(c, ctype as u32, ldc, stridec)];
            matmul("cublasGemmStridedBatchedEx", (handle, [alpha, beta]), [transa, transb], [m, n, k], matrices, batch, compute as u32)
        };
        // SAFETY: the arguments are the caller's, but for the handle, which is in the same modes.
        noted(describe, || unsafe {
            let handle = handle_for(handle);
            next(
                handle, transa, transb, m, n, k, alpha, a, atype, lda, stridea, b, btype, ldb, strideb, beta, c, ctype,
                ldc, stridec, batch, compute, algo,
            )
        })
    }
}

/// Defines matmuls of one type, alone and in batches: its name in `cudaDataType`, and the compute type.
macro_rules! matmuls {
    ($($name:ident, $batched:ident, $element:ty, $data:literal, $compute:literal;)*) => {$(
        super::interpose! {
            /// A matmul of one type.
            fn $name(
                handle: cublasHandle_t, transa: cublasOperation_t, transb: cublasOperation_t, m: c_int, n: c_int,
                k: c_int, alpha: *const $element, a: *const $element, lda: c_int, b: *const $element, ldb: c_int,
                beta: *const $element, c: *mut $element, ldc: c_int,
            ) -> cublasStatus_t, missing MISSING;
            |next| {
                // SAFETY: the caller vouches for the handle and beta.
                let describe = || unsafe {
                    let matrices =
                        [matrix(a, $data, lda, 0), matrix(b, $data, ldb, 0), matrix(c, $data, ldc, 0)];
                    matmul(stringify!($name), (handle, [alpha.cast(), beta.cast()]), [transa, transb], [m, n, k], matrices, 1, $compute)
                };
                // SAFETY: the arguments are the caller's, but for the handle, which is in the same modes.
                noted(describe, || unsafe {
                    let handle = handle_for(handle);
                    next(handle, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
                })
            }
        }

        super::interpose! {
            /// A batch of matmuls of one type.
            fn $batched(
                handle: cublasHandle_t, transa: cublasOperation_t, transb: cublasOperation_t, m: c_int, n: c_int,
                k: c_int, alpha: *const $element, a: *const $element, lda: c_int, stridea: c_longlong,
                b: *const $element, ldb: c_int, strideb: c_longlong, beta: *const $element, c: *mut $element,
                ldc: c_int, stridec: c_longlong, batch: c_int,
            ) -> cublasStatus_t, missing MISSING;
            |next| {
                // SAFETY: the caller vouches for the handle and beta.
                let describe = || unsafe {
                    let matrices =
                        [matrix(a, $data, lda, stridea), matrix(b, $data, ldb, strideb), matrix(c, $data, ldc, stridec)];
                    matmul(stringify!($batched), (handle, [alpha.cast(), beta.cast()]), [transa, transb], [m, n, k], matrices, batch, $compute)
                };
                // SAFETY: the arguments are the caller's, but for the handle, which is in the same modes.
                noted(describe, || unsafe {
                    let handle = handle_for(handle);
                    next(
                        handle, transa, transb, m, n, k, alpha, a, lda, stridea, b, ldb, strideb, beta, c, ldc, stridec,
                        batch,
                    )
                })
            }
        }
    )*};
}

matmuls! {
    cublasSgemm_v2, cublasSgemmStridedBatched, f32, 0, 68;
    cublasDgemm_v2, cublasDgemmStridedBatched, f64, 1, 70;
    cublasHgemm, cublasHgemmStridedBatched, half::f16, 2, 64;
}

/// Defines functions whose operands are not recorded.
macro_rules! others {
    ($(fn $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        super::interpose! {
            /// A call whose operands are not recorded.
            fn $name(handle: cublasHandle_t, $($argument: $type),*) -> cublasStatus_t, missing MISSING;
            |next| {
                // SAFETY: the arguments are the caller's, but for the handle, which is in the same modes.
                noted(|| unknown(stringify!($name)), || unsafe { next(handle_for(handle), $($argument),*) })
            }
        }
    )*};
}

others! {
    fn cublasSgemv_v2(
        trans: cublasOperation_t, m: c_int, n: c_int, alpha: *const f32, a: *const f32, lda: c_int, x: *const f32,
        incx: c_int, beta: *const f32, y: *mut f32, incy: c_int
    );
    fn cublasDgemv_v2(
        trans: cublasOperation_t, m: c_int, n: c_int, alpha: *const f64, a: *const f64, lda: c_int, x: *const f64,
        incx: c_int, beta: *const f64, y: *mut f64, incy: c_int
    );
    fn cublasSasum_v2(n: c_int, x: *const f32, incx: c_int, result: *mut f32);
    fn cublasDasum_v2(n: c_int, x: *const f64, incx: c_int, result: *mut f64);
    fn cublasGemmBatchedEx(
        transa: cublasOperation_t, transb: cublasOperation_t, m: c_int, n: c_int, k: c_int, alpha: *const c_void,
        a: *const *const c_void, atype: cudaDataType, lda: c_int, b: *const *const c_void, btype: cudaDataType,
        ldb: c_int, beta: *const c_void, c: *const *mut c_void, ctype: cudaDataType, ldc: c_int, batch: c_int,
        compute: cublasComputeType_t, algo: cublasGemmAlgo_t
    );
    fn cublasGemmGroupedBatchedEx(
        transa: *const cublasOperation_t, transb: *const cublasOperation_t, m: *const c_int, n: *const c_int,
        k: *const c_int, alpha: *const c_void, a: *const *const c_void, atype: cudaDataType, lda: *const c_int,
        b: *const *const c_void, btype: cudaDataType, ldb: *const c_int, beta: *const c_void,
        c: *const *mut c_void, ctype: cudaDataType, ldc: *const c_int, groups: c_int, sizes: *const c_int,
        compute: cublasComputeType_t
    );
}

super::interpose! {
    /// Creates a handle; this waits for the whole device.
    fn cublasCreate_v2(handle: *mut cublasHandle_t) -> cublasStatus_t, missing MISSING;
    |next| {
        // SAFETY: the arguments are the caller's.
        between_captures(|| unsafe { next(handle) })
    }
}

super::interpose! {
    /// Destroys a handle; this waits for the whole device.
    fn cublasDestroy_v2(handle: cublasHandle_t) -> cublasStatus_t, missing MISSING, probed MISSING;
    |next| {
        // SAFETY: the arguments are the caller's.
        between_captures(|| unsafe { next(handle) })
    }
}
