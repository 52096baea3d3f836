//! Memory effects of a kernel: the bytes that it writes, and whether it depends on their previous content.

use self::{Before::Overwritten, Extent::Elements, Factor::Argument};
use crate::cuda::driver::kernels::declared::{Declared, Kind, Parameter, Pointer, Role, Shape};
use opara_plan::kernel_catalog::ELEMENT_TYPES;

/// The effects of kernels with the same signature. Almost all of them write through exactly one argument.
pub(super) struct Effects {
    /// The name in [`KernelEntry::effects`](opara_plan::kernel_catalog::KernelEntry::effects), or the prefix of this library's kernels.
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
    /// Whether they come from a declaration. Inputs have elements like the output's then, and threads may take several at once.
    pub is_declared: bool,
}

/// The bytes that are written, from the output pointer on.
pub(super) enum Extent {
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
pub(super) enum Factor {
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
pub(super) enum Before {
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
pub(super) const fn writes(name: &'static str, output: usize, extent: Extent) -> Effects {
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
        is_declared: false,
    }
}

/// Kernels with the arguments `numel, num_dims, info, ...` that compute each output element from one element of each
/// input.
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

    /// Another argument is read, and partly written.
    pub const fn updates(mut self, argument: usize) -> Self {
        self.updated = Some(argument);
        self
    }

    /// Of a declared kernel. The last pointer that it writes through is its output, beside a cache.
    pub fn of(declared: &Declared) -> Self {
        let shapes = declared.shapes();
        let pointers = shapes.iter().enumerate().filter_map(|(at, shape)| match shape {
            Shape::Pointer { parameter, pointer } => Some((at, *parameter, *pointer)),
            Shape::Number { .. } | Shape::Part { .. } => None,
        });
        let pointers: Vec<_> = pointers.collect();
        let is_output = |role| matches!(role, Role::Overwritten | Role::Kept | Role::Added);
        let output = pointers.iter().rfind(|(_, _, pointer)| is_output(pointer.role));
        let (output, _, written) = *output.unwrap_or_else(|| panic!("`{}` writes nothing", declared.prefix));
        let extent = factors(declared, written.length).map_or(Extent::Rest, |factors| Elements(factors.leak()));
        let before = match written.role {
            Role::Kept => Before::PartlyKept,
            Role::Added => Before::AddedTo,
            _ => Overwritten,
        };
        let indices = |is: &dyn Fn(&Parameter, &Pointer) -> bool| -> &'static [usize] {
            let found = pointers.iter().filter(|(_, parameter, pointer)| is(parameter, pointer)).map(|(at, ..)| *at);
            found.collect::<Vec<_>>().leak()
        };
        let is_input = |pointer: &Pointer| {
            !pointer.role.is_written() && (pointer.element, pointer.length) == (written.element, written.length)
        };
        Self {
            element: element_size(written.element),
            before,
            inputs: indices(&|_, pointer| is_input(pointer)),
            updated: indices(&|_, pointer| pointer.role == Role::Cache).first().copied(),
            early: indices(&|parameter, _| parameter.is_early),
            is_declared: true,
            ..writes(declared.prefix, output, extent)
        }
    }

    /// Bytes of an element that the kernel of this name writes.
    pub fn written_element(&self, name: &str) -> Option<u64> {
        let last = || ELEMENT_TYPES.iter().find(|(ending, _)| name.ends_with(ending)).map(|&(_, size)| size);
        self.element.or_else(last)
    }

    /// Bytes of an element of the `inputs`: the first type in the name.
    pub fn read_element(&self, name: &str) -> Option<u64> {
        if self.is_declared {
            return self.written_element(name);
        }
        ELEMENT_TYPES.iter().filter_map(|&(part, size)| Some((name.find(part)?, size))).min().map(|(_, size)| size)
    }
}

/// The factors of a length that is a product of parameters, blocks of the grid and numbers; `None` for another one.
fn factors(declared: &Declared, length: &str) -> Option<Vec<Factor>> {
    let shapes = declared.shapes();
    let of_name = |name: &str| {
        let parameter = declared.parameters.iter().find(|parameter| parameter.name == name)?;
        let is_it = |shape: &Shape| matches!(shape, Shape::Number { parameter, .. } if parameter.name == name);
        match parameter.kind {
            Kind::Grid(axis) => Some(Factor::Grid(axis)),
            Kind::Numbers { count: 1, .. } => shapes.iter().position(is_it).map(Argument),
            _ => None,
        }
    };
    let of = |factor: &str| factor.parse().map(Factor::Times).ok().or_else(|| of_name(factor));
    length.split('*').map(|factor| of(factor.trim())).collect()
}

/// Bytes of an element of this type; `None` if it is not one by itself.
pub(super) fn element_size(name: &str) -> Option<u64> {
    ELEMENT_TYPES.iter().find(|(ending, _)| ending.strip_prefix('_') == Some(name)).map(|&(_, size)| size)
}
