//! cuBLASLt. The stream is an argument of each call.

use std::ffi::c_void;

use cudarc::cublaslt::sys as lt;

use super::library_call::{Call, Matmul, Meaning, Operand};
use super::noted::noted;
use super::scale::{is_zero, scale_bytes};
use super::status::Status;
use super::thread_capture::private_stream_for;

const MISSING: lt::cublasStatus_t = lt::cublasStatus_t::CUBLAS_STATUS_NOT_INITIALIZED;

super::interpose! {
    /// A matmul with an epilogue.
    fn cublasLtMatmul(
        handle: lt::cublasLtHandle_t, operation: lt::cublasLtMatmulDesc_t, alpha: *const c_void, a: *const c_void,
        alayout: lt::cublasLtMatrixLayout_t, b: *const c_void, blayout: lt::cublasLtMatrixLayout_t,
        beta: *const c_void, c: *const c_void, clayout: lt::cublasLtMatrixLayout_t, d: *mut c_void,
        dlayout: lt::cublasLtMatrixLayout_t, algo: *const lt::cublasLtMatmulAlgo_t, workspace: *mut c_void,
        workspace_bytes: usize, stream: lt::cudaStream_t,
    ) -> lt::cublasStatus_t, missing MISSING, probed MISSING;
    |next| {
        // SAFETY: the caller vouches for the descriptors and beta.
        let describe = || unsafe {
            let of = described(operation, [alayout, blayout, dlayout], beta);
            let mut operands = of.operands([a as u64, b as u64, d as u64]);
            if of.accumulates && c != d {
                operands.push(Operand::read(c as u64, operands[2].bytes));
            }
            let bias = attribute::<u64>(operation, lt::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER);
            operands.extend((bias != 0).then(|| of_bias(&of, bias)));
            operands.push(Operand::read_and_written(workspace as u64, workspace_bytes as u64));
            // Operands of epilogues that read or write another matrix are unknown.
            let auxiliary = of.epilogue & 0xffff & !0x7f != 0 && of.epilogue & 128 != 0;
            Call {
                name: "cublasLtMatmul",
                operands: (!auxiliary).then_some(operands),
                meaning: Meaning::Matmul(of),
                computes: None,
            }
        };
        // SAFETY: the arguments are the caller's, but for the stream, which is of the same context.
        noted(describe, || unsafe {
            let Some(stream) = private_stream_for(stream.cast()) else { return lt::cublasStatus_t::REFUSED };
            next(
                handle, operation, alpha, a, alayout, b, blayout, beta, c, clayout, d, dlayout, algo, workspace,
                workspace_bytes, stream.cast(),
            )
        })
    }
}

/// The vector of an epilogue: a bias, or the sums that are the gradient of one.
fn of_bias(of: &Matmul, address: u64) -> Operand {
    use lt::cublasLtEpilogue_t::{CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADB};
    let element = of.element_bytes();
    match of.epilogue {
        epilogue if epilogue == CUBLASLT_EPILOGUE_BGRADA as u32 => Operand::written(address, of.m * element),
        epilogue if epilogue == CUBLASLT_EPILOGUE_BGRADB as u32 => Operand::written(address, of.n * element),
        // Its type may be another one.
        _ => Operand::read(address, of.m * 8),
    }
}

/// Describes a matmul by cuBLASLt's descriptors.
///
/// # Safety
/// The descriptors must exist, and beta must be as the operation says.
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
            is_unscaled: false,
        }
    }
}

/// An attribute of an operation; zero if it has none.
///
/// # Safety
/// The operation must exist, and `T` must be an integer of the attribute's size.
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
