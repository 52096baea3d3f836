//! Alpha and beta, the factors of a matmul, as they lie on the host.

use std::ffi::c_void;

/// Is this float or integer on the host 0 or -0?
///
/// # Safety
/// `value` must point to `bytes` readable bytes.
pub(crate) unsafe fn is_zero(value: *const c_void, bytes: usize) -> bool {
    // SAFETY: the caller vouches for it.
    let bytes = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), bytes) };
    let (sign, rest) = (bytes[bytes.len() - 1], &bytes[..bytes.len() - 1]);
    rest.iter().all(|byte| *byte == 0) && sign & 0x7f == 0
}

/// Is this float on the host 1?
///
/// # Safety
/// `value` must point to `bytes` bytes.
pub(crate) unsafe fn is_one(value: *const c_void, bytes: usize) -> bool {
    // SAFETY: the caller vouches for it.
    let found = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), bytes) };
    match bytes {
        2 => found == half::f16::ONE.to_ne_bytes(),
        4 => found == 1f32.to_ne_bytes(),
        8 => found == 1f64.to_ne_bytes(),
        _ => false,
    }
}

/// Bytes of alpha and beta.
pub(crate) fn scale_bytes(compute: u32) -> usize {
    match compute {
        // CUBLAS_COMPUTE_16F and its pedantic form.
        64 | 65 => 2,
        // CUBLAS_COMPUTE_64F and its pedantic form.
        70 | 71 => 8,
        _ => 4,
    }
}
