//! cuBLAS and cuBLASLt. A handle of cuBLAS is shared by all threads of a candle device, and the stream is the handle's, so
//! a thread that captures uses the handle of its private stream instead, in the same modes.

use std::ffi::{c_int, c_longlong, c_void};

use cudarc::cublas::sys::{
    self as blas, cublasComputeType_t, cublasGemmAlgo_t, cublasHandle_t, cublasOperation_t, cublasStatus_t,
    cudaDataType,
};
use cudarc::cublaslt::sys as lt;

use super::gate::between_captures;
use super::library_call::{noted, Call, Matmul, Meaning, Operand};
use super::thread_capture::{self, redirected};

const MISSING: cublasStatus_t = cublasStatus_t::CUBLAS_STATUS_NOT_INITIALIZED;
const REFUSED: cublasStatus_t = cublasStatus_t::CUBLAS_STATUS_EXECUTION_FAILED;
const LT_REFUSED: lt::cublasStatus_t = lt::cublasStatus_t::CUBLAS_STATUS_EXECUTION_FAILED;

/// The handle for a call: the capture's, in the modes of the caller's, or the caller's own.
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

/// Whether `C` is read: beta is not 0, or lies on the device, where this does not look.
///
/// # Safety
/// The handle must exist, and beta be what its mode says, of the scale type of `compute` and C's type.
unsafe fn accumulates(handle: cublasHandle_t, beta: *const c_void, scale_bytes: usize) -> bool {
    let mut mode = blas::cublasPointerMode_t::CUBLAS_POINTER_MODE_DEVICE;
    // SAFETY: the caller vouches for both; on the host, beta has at least as many bytes as its scale type.
    unsafe {
        blas::cublasGetPointerMode_v2(handle, &mut mode);
        if mode != blas::cublasPointerMode_t::CUBLAS_POINTER_MODE_HOST || beta.is_null() {
            return true;
        }
        !is_zero(beta, scale_bytes)
    }
}

/// Whether a float or an integer on the host is 0 or -0.
///
/// # Safety
/// `value` must point to so many bytes.
unsafe fn is_zero(value: *const c_void, bytes: usize) -> bool {
    // SAFETY: the caller vouches for it.
    let bytes = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), bytes) };
    let (sign, rest) = (bytes[bytes.len() - 1], &bytes[..bytes.len() - 1]);
    rest.iter().all(|byte| *byte == 0) && sign & 0x7f == 0
}

/// Bytes of alpha and beta.
fn scale_bytes(compute: u32) -> usize {
    match compute {
        // CUBLAS_COMPUTE_16F and its pedantic form.
        64 | 65 => 2,
        // CUBLAS_COMPUTE_64F and its pedantic form.
        70 | 71 => 8,
        _ => 4,
    }
}

fn is_transposed(operation: cublasOperation_t) -> bool {
    operation != cublasOperation_t::CUBLAS_OP_N
}

/// The address of an operand.
fn at<T>(pointer: *const T) -> u64 {
    pointer as u64
}

/// A call whose operands lie where the host does not know.
fn unknown(name: &'static str) -> Call {
    Call { name, operands: None, meaning: Meaning::Other }
}

fn matmul(name: &'static str, of: Matmul, at: [u64; 3]) -> Call {
    Call { name, operands: Some(of.operands(at)), meaning: Meaning::Matmul(of) }
}

super::interpose! {
    /// A matmul of any types.
    fn cublasGemmEx(
        handle: cublasHandle_t, transa: cublasOperation_t, transb: cublasOperation_t, m: c_int, n: c_int, k: c_int,
        alpha: *const c_void, a: *const c_void, atype: cudaDataType, lda: c_int, b: *const c_void,
        btype: cudaDataType, ldb: c_int, beta: *const c_void, c: *mut c_void, ctype: cudaDataType, ldc: c_int,
        compute: cublasComputeType_t, algo: cublasGemmAlgo_t,
    ) -> cublasStatus_t, missing MISSING;
    |next| {
        let describe = || {
            let of = Matmul {
                m: m as u64,
                n: n as u64,
                k: k as u64,
                transposed: [is_transposed(transa), is_transposed(transb)],
                types: [atype as u32, btype as u32, ctype as u32],
                leading: [lda.into(), ldb.into(), ldc.into()],
                strides: [0; 3],
                batch: 1,
                // SAFETY: the caller vouches for the handle and beta.
                accumulates: unsafe { accumulates(handle, beta, scale_bytes(compute as u32)) },
                compute: compute as u32,
                epilogue: 1,
            };
            matmul("cublasGemmEx", of, [at(a), at(b), at(c)])
        };
        // SAFETY: the arguments are the caller's, but for the handle, which is in the same modes.
        noted(describe, REFUSED, || unsafe {
            let handle = handle_for(handle);
            next(
                handle, transa, transb, m, n, k, alpha, a, atype, lda, b, btype, ldb, beta, c, ctype, ldc, compute, algo,
            )
        })
    }
}

super::interpose! {
    /// A batch of matmuls of any types.
    fn cublasGemmStridedBatchedEx(
        handle: cublasHandle_t, transa: cublasOperation_t, transb: cublasOperation_t, m: c_int, n: c_int, k: c_int,
        alpha: *const c_void, a: *const c_void, atype: cudaDataType, lda: c_int, stridea: c_longlong,
        b: *const c_void, btype: cudaDataType, ldb: c_int, strideb: c_longlong, beta: *const c_void, c: *mut c_void,
        ctype: cudaDataType, ldc: c_int, stridec: c_longlong, batch: c_int, compute: cublasComputeType_t,
        algo: cublasGemmAlgo_t,
    ) -> cublasStatus_t, missing MISSING;
    |next| {
        let describe = || {
            let of = Matmul {
                m: m as u64,
                n: n as u64,
                k: k as u64,
                transposed: [is_transposed(transa), is_transposed(transb)],
                types: [atype as u32, btype as u32, ctype as u32],
                leading: [lda.into(), ldb.into(), ldc.into()],
                strides: [stridea, strideb, stridec],
                batch: batch as u64,
                // SAFETY: the caller vouches for the handle and beta.
                accumulates: unsafe { accumulates(handle, beta, scale_bytes(compute as u32)) },
                compute: compute as u32,
                epilogue: 1,
            };
            matmul("cublasGemmStridedBatchedEx", of, [at(a), at(b), at(c)])
        };
        // SAFETY: the arguments are the caller's, but for the handle, which is in the same modes.
        noted(describe, REFUSED, || unsafe {
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
                let describe = || {
                    let of = Matmul {
                        m: m as u64,
                        n: n as u64,
                        k: k as u64,
                        transposed: [is_transposed(transa), is_transposed(transb)],
                        types: [$data; 3],
                        leading: [lda.into(), ldb.into(), ldc.into()],
                        strides: [0; 3],
                        batch: 1,
                        // SAFETY: the caller vouches for the handle and beta.
                        accumulates: unsafe { accumulates(handle, beta.cast(), size_of::<$element>()) },
                        compute: $compute,
                        epilogue: 1,
                    };
                    matmul(stringify!($name), of, [at(a), at(b), at(c)])
                };
                // SAFETY: the arguments are the caller's, but for the handle, which is in the same modes.
                noted(describe, REFUSED, || unsafe {
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
                let describe = || {
                    let of = Matmul {
                        m: m as u64,
                        n: n as u64,
                        k: k as u64,
                        transposed: [is_transposed(transa), is_transposed(transb)],
                        types: [$data; 3],
                        leading: [lda.into(), ldb.into(), ldc.into()],
                        strides: [stridea, strideb, stridec],
                        batch: batch as u64,
                        // SAFETY: the caller vouches for the handle and beta.
                        accumulates: unsafe { accumulates(handle, beta.cast(), size_of::<$element>()) },
                        compute: $compute,
                        epilogue: 1,
                    };
                    matmul(stringify!($batched), of, [at(a), at(b), at(c)])
                };
                // SAFETY: the arguments are the caller's, but for the handle, which is in the same modes.
                noted(describe, REFUSED, || unsafe {
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

/// Defines functions of which no operands are noted.
macro_rules! others {
    ($(fn $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        super::interpose! {
            /// A call of which no operands are noted.
            fn $name(handle: cublasHandle_t, $($argument: $type),*) -> cublasStatus_t, missing MISSING;
            |next| {
                // SAFETY: the arguments are the caller's, but for the handle, which is in the same modes.
                noted(|| unknown(stringify!($name)), REFUSED, || unsafe { next(handle_for(handle), $($argument),*) })
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
    /// Makes a handle, which waits for the whole device.
    fn cublasCreate_v2(handle: *mut cublasHandle_t) -> cublasStatus_t, missing MISSING;
    |next| {
        // SAFETY: the arguments are the caller's.
        between_captures(|| unsafe { next(handle) })
    }
}

super::interpose! {
    /// Destroys a handle, which waits for the whole device.
    fn cublasDestroy_v2(handle: cublasHandle_t) -> cublasStatus_t, missing MISSING;
    |next| {
        // SAFETY: the arguments are the caller's.
        between_captures(|| unsafe { next(handle) })
    }
}

super::interpose! {
    /// A matmul with an epilogue; the stream is an argument.
    fn cublasLtMatmul(
        handle: lt::cublasLtHandle_t, operation: lt::cublasLtMatmulDesc_t, alpha: *const c_void, a: *const c_void,
        alayout: lt::cublasLtMatrixLayout_t, b: *const c_void, blayout: lt::cublasLtMatrixLayout_t,
        beta: *const c_void, c: *const c_void, clayout: lt::cublasLtMatrixLayout_t, d: *mut c_void,
        dlayout: lt::cublasLtMatrixLayout_t, algo: *const lt::cublasLtMatmulAlgo_t, workspace: *mut c_void,
        workspace_bytes: usize, stream: lt::cudaStream_t,
    ) -> lt::cublasStatus_t, missing lt::cublasStatus_t::CUBLAS_STATUS_NOT_INITIALIZED;
    |next| {
        // SAFETY: the caller vouches for the descriptors and beta.
        let describe = || unsafe {
            let of = described(operation, [alayout, blayout, dlayout], beta);
            let mut operands = of.operands([at(a), at(b), at(d)]);
            if of.accumulates && c != d {
                operands.push(Operand::read(at(c), operands[2].bytes));
            }
            let bias = attribute::<u64>(operation, lt::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER);
            operands.extend((bias != 0).then(|| Operand::read(bias, of.m * 8)));
            operands.push(Operand::read_and_written(at(workspace), workspace_bytes as u64));
            // Epilogues that read or write another matrix besides are not followed.
            let auxiliary = of.epilogue & 0xffff & !0x7f != 0 && of.epilogue & 128 != 0;
            Call {
                name: "cublasLtMatmul",
                operands: (!auxiliary).then_some(operands),
                meaning: Meaning::Matmul(of),
            }
        };
        let Some(stream) = redirected(stream.cast()) else { return LT_REFUSED };
        // SAFETY: the arguments are the caller's, but for the stream, which is of the same context.
        noted(describe, LT_REFUSED, || unsafe {
            next(
                handle, operation, alpha, a, alayout, b, blayout, beta, c, clayout, d, dlayout, algo, workspace,
                workspace_bytes, stream.raw(),
            )
        })
    }
}

/// What a matmul of cuBLASLt computes.
///
/// # Safety
/// The descriptors must exist, and beta be what the operation says.
unsafe fn described(
    operation: lt::cublasLtMatmulDesc_t,
    layouts: [lt::cublasLtMatrixLayout_t; 3],
    beta: *const c_void,
) -> Matmul {
    use lt::cublasLtMatmulDescAttributes_t::*;
    use lt::cublasLtMatrixLayoutAttribute_t::*;
    // SAFETY: each attribute is read as the type that cuBLASLt declares for it; beta lies on the host if the pointer mode
    // is 0, with as many bytes as the scale type.
    unsafe {
        let of = |layout, attribute| layout_attribute(layout, attribute);
        let transposed = [
            attribute::<i32>(operation, CUBLASLT_MATMUL_DESC_TRANSA) != 0,
            attribute::<i32>(operation, CUBLASLT_MATMUL_DESC_TRANSB) != 0,
        ];
        let compute = attribute::<i32>(operation, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE) as u32;
        let on_host = attribute::<i32>(operation, CUBLASLT_MATMUL_DESC_POINTER_MODE) == 0;
        let inner = if transposed[0] { CUBLASLT_MATRIX_LAYOUT_ROWS } else { CUBLASLT_MATRIX_LAYOUT_COLS };
        Matmul {
            m: of(layouts[2], CUBLASLT_MATRIX_LAYOUT_ROWS),
            n: of(layouts[2], CUBLASLT_MATRIX_LAYOUT_COLS),
            k: of(layouts[0], inner),
            transposed,
            types: layouts.map(|layout| of(layout, CUBLASLT_MATRIX_LAYOUT_TYPE) as u32),
            leading: layouts.map(|layout| of(layout, CUBLASLT_MATRIX_LAYOUT_LD) as i64),
            strides: layouts.map(|layout| of(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) as i64),
            batch: (of(layouts[2], CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) as u32).max(1).into(),
            accumulates: !on_host || !is_zero(beta, scale_bytes(compute)),
            compute,
            epilogue: attribute::<i32>(operation, CUBLASLT_MATMUL_DESC_EPILOGUE) as u32,
        }
    }
}

/// An attribute of an operation; zero if it has none.
///
/// # Safety
/// The operation must exist, and `T` be an integer as large as the attribute.
unsafe fn attribute<T: Default>(
    operation: lt::cublasLtMatmulDesc_t,
    attribute: lt::cublasLtMatmulDescAttributes_t,
) -> T {
    let (mut value, mut written) = (T::default(), 0);
    // SAFETY: the caller vouches for the operation and the type.
    unsafe {
        let value = (&raw mut value).cast();
        lt::cublasLtMatmulDescGetAttribute(operation, attribute, value, size_of::<T>(), &mut written);
    }
    value
}

/// An attribute of a layout: a number of 4 or 8 bytes.
///
/// # Safety
/// The layout must exist.
unsafe fn layout_attribute(layout: lt::cublasLtMatrixLayout_t, attribute: lt::cublasLtMatrixLayoutAttribute_t) -> u64 {
    let (mut value, mut written) = (0u64, 0);
    for bytes in [8, 4] {
        // SAFETY: the caller vouches for the layout; a size that is not the attribute's is refused.
        let status = unsafe {
            lt::cublasLtMatrixLayoutGetAttribute(layout, attribute, (&raw mut value).cast(), bytes, &mut written)
        };
        if status == lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
            break;
        }
    }
    value
}
