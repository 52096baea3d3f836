//! The allocation around an address.

use std::collections::BTreeMap;
use std::ffi::c_void;

use cudarc::driver::sys;

use super::Stream;

/// An allocation from before a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cuda) struct Allocation {
    pub start: u64,
    pub bytes: u64,
    /// Is it from a memory pool? candle's tensors are, workspaces of libraries are not.
    pub pooled: bool,
}

/// Asks the driver for the allocation around an address, and caches the answer.
#[derive(Default)]
pub(in crate::cuda) struct AllocationTable {
    known: BTreeMap<u64, Allocation>,
    unknown: hashbrown::HashSet<u64>,
}

impl AllocationTable {
    /// The allocation around `address`, if it is a device address.
    pub fn find(&mut self, stream: &Stream, address: u64) -> Option<Allocation> {
        if self.unknown.contains(&address) {
            return None;
        }
        let around = self.known.range(..=address).next_back().map(|(_, a)| *a);
        if let Some(found) = around.filter(|a| address < a.start + a.bytes) {
            return Some(found);
        }
        let found = stream.make_current().then(|| allocation_at(address)).flatten();
        match found {
            Some(allocation) => drop(self.known.insert(allocation.start, allocation)),
            None => drop(self.unknown.insert(address)),
        }
        found
    }
}

/// Asks the driver for the allocation around `address`. `None` if it is no device address.
pub(super) fn allocation_at(address: u64) -> Option<Allocation> {
    use sys::CUpointer_attribute::*;
    /// Smaller values are ordinary integers; larger values cannot be device addresses.
    const PLAUSIBLE: std::ops::Range<u64> = 1 << 16..1 << 57;
    if !PLAUSIBLE.contains(&address) {
        return None;
    }
    let (mut start, mut bytes, mut kind) = (0u64, 0usize, 0u32);
    let mut pool: sys::CUmemoryPool = std::ptr::null_mut();
    let mut attributes = [
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
    ];
    let mut values: [*mut c_void; 4] =
        [(&raw mut kind).cast(), (&raw mut start).cast(), (&raw mut bytes).cast(), (&raw mut pool).cast()];
    // SAFETY: each value points to a variable of the attribute's type. The driver accepts any address, and writes zeros
    // for an unknown one.
    let status = unsafe { sys::cuPointerGetAttributes(4, attributes.as_mut_ptr(), values.as_mut_ptr(), address) };
    let device = kind == sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32;
    let found = status == sys::CUresult::CUDA_SUCCESS && device && bytes > 0;
    found.then_some(Allocation { start, bytes: bytes as u64, pooled: !pool.is_null() })
}
