//! The parameters of a kernel, as `kernels!` declares them.

use super::Capabilities;

/// The kernels whose names share a prefix, which variant and element type follow.
pub(crate) struct Declared {
    pub prefix: &'static str,
    /// The element types that there are variants for, as their names end.
    pub elements: &'static [&'static str],
    /// Instructions in the code of a variant.
    pub needs: &'static [Need],
    pub parameters: &'static [Parameter],
}

/// Instructions that not every device has, or that the code was not compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// `mma.sync`, from sm_80 on.
    TensorCores,
    /// `wgmma`, of sm_90a.
    Warpgroups,
    /// Copies of boxes of a [matrix](super::matrix), from sm_90 on.
    Boxes,
    /// Conversions of 8-bit floats, which kernels here have for sm_90a alone.
    EightBitFloats,
}

impl Need {
    pub fn is_met(self, of: &Capabilities) -> bool {
        match self {
            Self::TensorCores => of.has_tensor_cores(),
            Self::Warpgroups | Self::EightBitFloats => of.has_warpgroups(),
            Self::Boxes => of.has_boxes(),
        }
    }
}

impl Declared {
    /// The kernel's parameters, in order.
    pub fn shapes(&self) -> Vec<Shape> {
        let of = |parameter: &'static Parameter| match parameter.kind {
            Kind::Numbers { bytes, count } => vec![Shape::Number { parameter, bytes }; count],
            Kind::Pointer(pointer) => vec![Shape::Pointer { parameter, pointer }],
            Kind::Parts { count, pointers } => {
                let pointers = vec![Shape::Part { parameter }; pointers];
                [pointers, vec![Shape::Number { parameter, bytes: size_of::<u32>() }]].concat().repeat(count)
            }
            Kind::Table { count, of } => vec![Shape::Table { parameter, count, of }],
            Kind::Matrix(pointer) => vec![Shape::Matrix { parameter, pointer }],
            Kind::Host | Kind::Grid(_) => Vec::new(),
        };
        self.parameters.iter().flat_map(of).collect()
    }
}

/// A parameter of the kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape {
    Number {
        parameter: &'static Parameter,
        bytes: usize,
    },
    Pointer {
        parameter: &'static Parameter,
        pointer: Pointer,
    },
    /// A pointer among `parts`.
    Part {
        parameter: &'static Parameter,
    },
    /// Words of 8 bytes.
    Table {
        parameter: &'static Parameter,
        count: usize,
        of: Option<Pointer>,
    },
    /// A [matrix](super::matrix), and where it lies.
    Matrix {
        parameter: &'static Parameter,
        pointer: Pointer,
    },
}

/// A parameter of a declaration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parameter {
    pub name: &'static str,
    pub kind: Kind,
    /// Is it read before the kernel waits for its predecessors?
    pub is_early: bool,
    /// Does the code look whether it is null, though it never is?
    pub is_tested: bool,
    pub loads: Loads,
}

/// The kind of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `count` numbers of `bytes` bytes each.
    Numbers {
        bytes: usize,
        count: usize,
    },
    Pointer(Pointer),
    /// `count` times `pointers` pointers that may be null, to elements of the type in the kernel's name, and a number.
    Parts {
        count: usize,
        pointers: usize,
    },
    /// One parameter of `count` pointers, which may be null, or else numbers.
    Table {
        count: usize,
        of: Option<Pointer>,
    },
    Matrix(Pointer),
    /// Not a parameter of the kernel.
    Host,
    /// Not one either, but blocks of the grid along an axis.
    Grid(usize),
}

/// A pointer and its use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pointer {
    pub role: Role,
    /// The element type; another name than a number's stands for the last type in the kernel's name.
    pub element: &'static str,
    /// The number of elements, an expression of other parameters.
    pub length: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Read,
    /// Read, unless it is null.
    Optional,
    /// Read, unless another parameter keeps the kernel from it: it may be null then.
    Guarded,
    /// Overwritten, and not read.
    Overwritten,
    /// Partly overwritten, and not read.
    Kept,
    /// Read, and overwritten.
    Added,
    /// Read, and partly overwritten beside another result.
    Cache,
}

impl Role {
    pub fn is_written(self) -> bool {
        !matches!(self, Self::Read | Self::Optional | Self::Guarded)
    }
}

/// How a kernel loads through a pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loads {
    Elements,
    /// Vectors, where launch or kernel see that they fit.
    Vectors,
    /// Vectors, from a multiple of 16 bytes on.
    Wide,
}

impl Parameter {
    pub const fn of(name: &'static str, kind: Kind) -> Self {
        Self { name, kind, is_early: false, is_tested: false, loads: Loads::Elements }
    }

    pub const fn early(self) -> Self {
        Self { is_early: true, ..self }
    }

    pub const fn tested(self) -> Self {
        Self { is_tested: true, ..self }
    }

    pub const fn wide(self) -> Self {
        Self { loads: Loads::Wide, ..self }
    }

    pub const fn vectors(self) -> Self {
        Self { loads: Loads::Vectors, ..self }
    }
}
