//! Matrices that kernels read by boxes: some rows, and of each [`LINE`] bytes, which lie in shared memory as warpgroups multiply them
//! (`bulk.cuh`).

use std::ffi::c_void;
use std::sync::OnceLock;

use cudarc::driver::sys::{
    self, CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion,
    CUtensorMapSwizzle,
};
use cudarc::driver::DeviceRepr;

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
    pub fn is_known() -> bool {
        static IS_KNOWN: OnceLock<bool> = OnceLock::new();
        const ADDRESSES: [u64; 2] = [1 << 20, 0x7f12_3456_7000];
        *IS_KNOWN.get_or_init(|| {
            let [one, other] = ADDRESSES.map(|address| Self::at(address, [300, 72], 64, 2));
            let (Some(one), Some(other)) = (one, other) else { return false };
            [one.0[0], other.0[0]] == ADDRESSES && one.0[1..] == other.0[1..]
        })
    }

    /// Of rows of so many elements of `bytes` bytes at an address, which is read by boxes of `some` rows. `None` for elements that do not have
    /// 16 bits, rows that are no multiple of 16 bytes, or begin elsewhere, and boxes of more than 256 rows.
    pub fn at(address: u64, [rows, columns]: [usize; 2], some: usize, bytes: usize) -> Option<Self> {
        let pitch = columns * bytes;
        if bytes != 2 || !pitch.is_multiple_of(16) || !address.is_multiple_of(16) || some > 256 {
            return None;
        }
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
        (status == sys::CUresult::CUDA_SUCCESS).then_some(described)
    }
}

const _: () = assert!(size_of::<Matrix>() == size_of::<CUtensorMap>());
