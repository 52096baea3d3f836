//! Memory effects of a kernel: the bytes that it writes, and whether it depends on their previous content.

use self::{Before::Overwritten, Extent::Elements, Factor::Argument};
use opara_plan::kernel_catalog::ELEMENT_TYPES;

/// The effects of kernels with the same signature. Almost all of them write through exactly one argument.
pub(crate) struct Effects {
    /// The name in [`KernelEntry::effects`](opara_plan::kernel_catalog::KernelEntry::effects).
    pub name: &'static str,
    /// Index of the output argument.
    pub output: usize,
    /// Bytes of an output element, if the name does not end in its type.
    pub element: Option<u64>,
    /// The bytes that are written.
    pub extent: Extent,
    /// The use of their previous content.
    pub before: Before,
    /// Input arguments with as many elements as the output, read element by element; contiguous without `strides`.
    pub inputs: &'static [usize],
    /// The argument that points to dimensions and strides; null if all operands are contiguous.
    pub strides: Option<usize>,
    /// Another argument that is read and partly written, with elements like the output's: state.
    pub updated: Option<usize>,
    /// Arguments that are read before the kernel waits for its predecessors, if it does (`dependent.cuh`).
    pub early: &'static [usize],
}

/// The bytes that are written, from the output pointer on.
pub(crate) enum Extent {
    /// Contiguous elements; their number is the product of these factors.
    Elements(&'static [Factor]),
    /// The rows of a `copy2d`.
    Rows,
    /// Everything up to the end of the buffer, which candle allocates for this launch. The number of elements is in
    /// device memory, or not in the arguments.
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

/// The use of the extent's previous content.
pub(crate) enum Before {
    /// Overwritten completely, and not read.
    Overwritten,
    /// Overwritten completely, and read only after that.
    ReadBack,
    /// Overwritten completely; read as the input if this argument is null (in place).
    InPlaceOf(usize),
    /// Not read; some bytes keep their value.
    PartlyKept,
    /// Not read. If this argument, the pointer to strides, is not null, bytes between the elements keep their value.
    KeptBetween(usize),
    /// Read: the kernel adds to it.
    AddedTo,
}

/// A kernel that writes `extent` through the argument `output`.
pub(crate) const fn writes(name: &'static str, output: usize, extent: Extent) -> Effects {
    Effects {
        name,
        output,
        element: None,
        extent,
        before: Overwritten,
        inputs: &[],
        strides: None,
        updated: None,
        early: &[],
    }
}

/// Kernels with the arguments `numel, num_dims, info, ...` that compute each output element from one element of each
/// input.
pub(in crate::cuda) const fn maps(name: &'static str, inputs: &'static [usize], output: usize) -> Effects {
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

    pub const fn updates(mut self, argument: usize) -> Self {
        self.updated = Some(argument);
        self
    }

    pub const fn early(mut self, arguments: &'static [usize]) -> Self {
        self.early = arguments;
        self
    }

    /// Bytes of an element that the kernel of this name writes.
    pub fn written_element(&self, name: &str) -> Option<u64> {
        let last = || ELEMENT_TYPES.iter().find(|(ending, _)| name.ends_with(ending)).map(|&(_, size)| size);
        self.element.or_else(last)
    }

    /// Bytes of an element of the `inputs`: the first type in the name.
    pub fn read_element(&self, name: &str) -> Option<u64> {
        ELEMENT_TYPES.iter().filter_map(|&(part, size)| Some((name.find(part)?, size))).min().map(|(_, size)| size)
    }
}
