//! Memory effects of a kernel: the bytes that it writes, and whether it depends on their previous content.

use self::{Before::Overwritten, Extent::Elements, Factor::Argument};

/// The effects of a kernel. Almost all kernels write through exactly one argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effects {
    /// Index of the output argument. The words of a structure that is the only argument count as arguments.
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
    /// Arguments that describe a matrix: its address is their first word, and the others are none.
    pub matrices: &'static [usize],
    /// Whether they come from a declaration. Inputs have elements like the output's then, and threads may take several at once.
    pub is_declared: bool,
}

/// The bytes that are written, from the output pointer on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Contiguous elements; their number is the product of these factors.
    Elements(&'static [Factor]),
    /// The rows of a `copy2d`.
    Rows,
    /// Everything up to the end of the buffer, which candle allocates for this launch. The number of elements is in
    /// device memory, or not in the arguments.
    Rest,
}

/// A factor of a number of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Factor {
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
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

impl Effects {
    /// Of a kernel that writes `extent` through the argument `output`.
    pub const fn writes(output: usize, extent: Extent) -> Self {
        Self {
            output,
            element: None,
            extent,
            before: Overwritten,
            inputs: &[],
            strides: None,
            updated: None,
            early: &[],
            matrices: &[],
            is_declared: false,
        }
    }

    /// Of a kernel with the arguments `numel, num_dims, info, ...` that computes each output element from one element of each input.
    pub const fn maps(inputs: &'static [usize], output: usize) -> Self {
        Self { strides: Some(2), ..Self::writes(output, Elements(&[Argument(0)])).reads(inputs) }
    }

    /// The same with output elements of this size in bytes.
    pub const fn of_bytes(self, element: u64) -> Self {
        Self { element: Some(element), ..self }
    }

    /// The same with another use of the previous content.
    pub const fn before(self, before: Before) -> Self {
        Self { before, ..self }
    }

    /// The same with these inputs.
    pub const fn reads(self, inputs: &'static [usize]) -> Self {
        Self { inputs, ..self }
    }

    /// The same with another argument that is read, and partly written.
    pub const fn updates(self, argument: usize) -> Self {
        Self { updated: Some(argument), ..self }
    }
}
