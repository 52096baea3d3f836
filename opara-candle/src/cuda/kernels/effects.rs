//! The effects of kernels that are declared, and the sizes of elements by a kernel's name.

use opara_plan::kernel_catalog::{
    Before::{self, Overwritten},
    Effects,
    Extent::{self, Elements},
    Factor::{self, Argument},
    ELEMENT_TYPES,
};

use crate::cuda::driver::kernels::declared::{Declared, Kind, Parameter, Pointer, Role, Shape};

/// Of a declared kernel. It writes through one pointer, its output, and may update a cache beside it.
pub(super) fn of_declared(declared: &Declared) -> Effects {
    let shapes = declared.shapes();
    let pointers = shapes.iter().enumerate().filter_map(|(at, shape)| match shape {
        Shape::Pointer { parameter, pointer } | Shape::Matrix { parameter, pointer } => {
            Some((at, *parameter, *pointer))
        }
        Shape::Table { parameter, of, .. } => Some((at, *parameter, (*of)?)),
        Shape::Number { .. } | Shape::Part { .. } => None,
    });
    let pointers: Vec<_> = pointers.collect();
    let is_output = |role| matches!(role, Role::Overwritten | Role::Kept | Role::Added);
    let outputs: Vec<_> = pointers.iter().filter(|(_, _, pointer)| is_output(pointer.role)).collect();
    let [&(output, _, written)] = outputs[..] else {
        panic!("`{}` writes through {} pointers, beside caches", declared.prefix, outputs.len())
    };
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
    Effects {
        element: element_size(written.element),
        before,
        inputs: indices(&|_, pointer| is_input(pointer)),
        updated: indices(&|_, pointer| pointer.role == Role::Cache).first().copied(),
        early: indices(&|parameter, _| parameter.is_early),
        matrices: indices(&|parameter, _| matches!(parameter.kind, Kind::Matrix(_))),
        is_declared: true,
        ..Effects::writes(output, extent)
    }
}

/// Bytes of an element that the kernel of this name writes.
pub(super) fn written_element(effects: &Effects, name: &str) -> Option<u64> {
    let last = || ELEMENT_TYPES.iter().find(|(ending, _)| name.ends_with(ending)).map(|&(_, size)| size);
    effects.element.or_else(last)
}

/// Bytes of an element of the `inputs`: the first type in the name.
pub(super) fn read_element(effects: &Effects, name: &str) -> Option<u64> {
    if effects.is_declared {
        return written_element(effects, name);
    }
    ELEMENT_TYPES.iter().filter_map(|&(part, size)| Some((name.find(part)?, size))).min().map(|(_, size)| size)
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
