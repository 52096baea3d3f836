//! The bytes that buffers take.

use crate::trace::{Buffer, Role};

/// The alignment of every buffer in bytes: that of the driver's allocations, for which libraries chose their kernels.
pub const ALIGNMENT: u64 = 512;

/// Bytes that a buffer takes in the arena.
pub fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGNMENT)
}

/// Bytes that a constant takes. Shape tables are many and short: an alignment of 16 bytes, the widest load, is enough.
pub fn constant_bytes(bytes: u64) -> u64 {
    const SHORT: u64 = 16;
    bytes.next_multiple_of(if bytes < ALIGNMENT { SHORT } else { ALIGNMENT })
}

/// Does a layout for this role contain this buffer?
pub fn is_planned(buffer: &Buffer, role: Role) -> bool {
    buffer.role == role && buffer.bytes > 0
}
