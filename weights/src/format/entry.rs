//! Tensors in a file.

use std::collections::BTreeMap;
use std::ops::Range;

use candle::Layout;
use safetensors::Dtype;

/// A file's tensors by name.
pub(crate) type Entries = BTreeMap<String, Entry>;

/// A tensor's entry in a file, validated against the file size.
#[derive(Debug)]
pub(crate) struct Entry {
    pub dtype: Dtype,
    /// Shape and strides in elements, relative to the first element of `bytes`.
    pub layout: Layout,
    /// The tensor's byte range in the file.
    pub bytes: Range<u64>,
}

/// The number of elements, with dimensions of zero ignored. A zero would hide an overflow of the other dimensions from
/// a size check, but not from the computation of strides.
pub(super) fn extent(shape: &[usize]) -> Option<usize> {
    shape.iter().filter(|dim| **dim != 0).try_fold(1usize, |n, dim| n.checked_mul(*dim))
}
