//! Memory effects of a kernel: which bytes it writes, and what it does with their former content.

use self::{Before::Overwritten, Extent::Elements, Factor::Argument};
use crate::kernel_catalog::ELEMENT_TYPES;

/// The effects of kernels with the same arguments. Each writes through exactly one argument.
pub(crate) struct Effects {
    /// The name in [`KernelEntry::effects`](crate::kernel_catalog::KernelEntry::effects).
    pub name: &'static str,
    /// The argument that is written.
    pub output: usize,
    /// Bytes of an element written, if the name does not end in its type.
    pub element: Option<u64>,
    /// The bytes that are written.
    pub extent: Extent,
    /// What happens to the former content of these bytes.
    pub before: Before,
    /// Arguments of which as many elements are read as are written; contiguous, unless there are `strides`.
    pub inputs: &'static [usize],
    /// The argument that points to dimensions and strides; null if all is contiguous.
    pub strides: Option<usize>,
}

/// Which bytes are written, from the output pointer on.
pub(crate) enum Extent {
    /// Contiguous elements, as many as the product of these factors.
    Elements(&'static [Factor]),
    /// The rows of a `copy2d`.
    Rows,
    /// All up to the end of the buffer, which candle allocates for this launch. The number of elements is in device memory, or
    /// not given.
    Rest,
}

/// A factor of a number of elements.
pub(crate) enum Factor {
    /// The argument of this index.
    Argument(usize),
    /// Blocks of the grid along an axis.
    Grid(usize),
    /// Threads of a block along an axis.
    Block(usize),
    /// A constant.
    Times(u64),
    /// The reciprocal of a constant.
    Over(u64),
}

/// What happens to the former content of the extent.
pub(crate) enum Before {
    /// All are overwritten, none is read.
    Overwritten,
    /// All are overwritten, and the kernel reads them only after that.
    ReadBack,
    /// All are overwritten. If this argument is null, they are read in its place.
    InPlaceOf(usize),
    /// None is read, and some are kept.
    PartlyKept,
    /// None is read. If this argument, the pointer to strides, is not null, the bytes between strides are kept.
    KeptBetween(usize),
    /// The kernel adds to them.
    AddedTo,
}

/// A kernel that writes `extent` through the argument `output`.
pub(crate) const fn writes(name: &'static str, output: usize, extent: Extent) -> Effects {
    Effects { name, output, element: None, extent, before: Overwritten, inputs: &[], strides: None }
}

/// Kernels over `numel, num_dims, info, ...`: each element of the output from one of each input.
pub(super) const fn maps(name: &'static str, inputs: &'static [usize], output: usize) -> Effects {
    writes(name, output, Elements(&[Argument(0)])).reads(inputs).strides(2)
}

impl Effects {
    pub const fn of_bytes(mut self, element: u64) -> Self {
        self.element = Some(element);
        self
    }

    pub const fn before(mut self, before: Before) -> Self {
        self.before = before;
        self
    }

    pub const fn reads(mut self, inputs: &'static [usize]) -> Self {
        self.inputs = inputs;
        self
    }

    pub const fn strides(mut self, argument: usize) -> Self {
        self.strides = Some(argument);
        self
    }

    /// Bytes of an element that the kernel of this name writes.
    pub fn written_element(&self, name: &str) -> Option<u64> {
        let last = || ELEMENT_TYPES.iter().find(|(ending, _)| name.ends_with(ending)).map(|&(_, size)| size);
        self.element.or_else(last)
    }

    /// Bytes of an element of the `inputs`: names give their type first.
    pub fn read_element(&self, name: &str) -> Option<u64> {
        ELEMENT_TYPES.iter().filter_map(|&(part, size)| Some((name.find(part)?, size))).min().map(|(_, size)| size)
    }
}
