//! Matrices that kernels read by boxes: some rows, and of each [`LINE`] bytes, which lie in shared memory as warpgroups multiply them
//! (`bulk.cuh`).

use std::ffi::c_void;
use std::sync::OnceLock;

use candle::cuda_backend::WrapErr;
use candle::Result;
use cudarc::driver::sys::{
    self, CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion,
    CUtensorMapSwizzle,
};
use cudarc::driver::{CudaContext, DeviceRepr};

/// Bytes of a row of a box.
const LINE: usize = 128;

/// A matrix as the driver describes it to a kernel. The first word is its address, which a replay may replace as any pointer's.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Matrix([u64; 16]);

// SAFETY: it is plain words, which a kernel gets by value.
unsafe impl DeviceRepr for Matrix {}

impl Matrix {
    /// Whether the driver describes matrices with their address in the first word, and all else is independent of that. Asked for devices
    /// that copy boxes, from compute capability 9.0 on.
    ///
    /// # Errors
    /// A failed driver call.
    pub fn is_known(context: &CudaContext) -> Result<bool> {
        static IS_KNOWN: OnceLock<bool> = OnceLock::new();
        match IS_KNOWN.get() {
            Some(is_known) => Ok(*is_known),
            None => Ok(*IS_KNOWN.get_or_init({
                let is_known = Self::asked(context)?;
                move || is_known
            })),
        }
    }

    /// The same, asked now.
    fn asked(context: &CudaContext) -> Result<bool> {
        const ADDRESSES: [u64; 2] = [1 << 20, 0x7f12_3456_7000];
        let at = |address| Self::at(context, address, [300, 72], 64, 2);
        let (Some(one), Some(other)) = (at(ADDRESSES[0])?, at(ADDRESSES[1])?) else { return Ok(false) };
        Ok([one.0[0], other.0[0]] == ADDRESSES && one.0[1..] == other.0[1..])
    }

    /// Of rows of so many elements of `bytes` bytes at an address, which is read by boxes of `some` rows. `None` for elements that do not have
    /// 16 bits, rows that are no multiple of 16 bytes, or begin elsewhere, and boxes of more than 256 rows.
    ///
    /// # Errors
    /// A failed driver call.
    pub fn at(
        context: &CudaContext,
        address: u64,
        [rows, columns]: [usize; 2],
        some: usize,
        bytes: usize,
    ) -> Result<Option<Self>> {
        let pitch = columns * bytes;
        if bytes != 2 || !pitch.is_multiple_of(16) || !address.is_multiple_of(16) || some > 256 {
            return Ok(None);
        }
        // On a thread that has no context the driver describes nothing.
        context.bind_to_thread().w()?;
        let sizes = [columns as u64, rows as u64];
        let (of_box, steps) = ([(LINE / bytes) as u32, some as u32], [1, 1]);
        let mut described = Self([0; 16]);
        // SAFETY: the arrays have as many numbers as there are dimensions, but for strides, which have one less, and the description has
        // the size and the alignment of the driver's. The driver does not read through the address.
        let status = unsafe {
            sys::cuTensorMapEncodeTiled(
                (&raw mut described).cast::<CUtensorMap>(),
                CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT16,
                2,
                address as usize as *mut c_void,
                sizes.as_ptr(),
                [pitch as u64].as_ptr(),
                of_box.as_ptr(),
                steps.as_ptr(),
                CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                // Zeros.
                CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        Ok((status == sys::CUresult::CUDA_SUCCESS).then_some(described))
    }
}

const _: () = assert!(size_of::<Matrix>() == size_of::<CUtensorMap>());

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_device::gpu;

    /// Needs a GPU; skips without one.
    #[test]
    fn matrices_are_described_on_threads_that_never_used_the_device() -> Result<()> {
        let Some(device) = gpu() else { return Ok(()) };
        let context = device.as_cuda_device()?.cuda_stream().context().clone();
        let is_hopper = context.compute_capability().w()?.0 >= 9;
        let asked = std::thread::spawn(move || Matrix::asked(&context)).join().expect("it does not panic");
        assert_eq!(asked?, is_hopper);
        Ok(())
    }
}
