//! Views of views.

use crate::rewrite::graph::Operand;
use crate::trace::Dim;

/// The operand as a view of `from`, if its value equals `from` element by element.
pub(super) fn behind(operand: &Operand, from: &Operand) -> Option<Operand> {
    let dims: Vec<Vec<Dim>> = operand.dims.iter().map(|&dim| vec![dim]).collect();
    // One dimension for each.
    let dims = through(&dims, &from.dims)?.into_iter().zip(&operand.dims).map(|(dims, of)| match dims[..] {
        [] => Some(Dim { len: of.len, stride: 0 }),
        [dim] => Some(dim),
        _ => None,
    });
    let dims = dims.collect::<Option<_>>()?;
    (operand.first == 0).then(|| Operand { dims, ..from.clone() })
}

/// Composes dimensions over a view with the view: dimensions over the tensor behind it.
pub(super) fn through(dims: &[Vec<Dim>], view: &[Dim]) -> Option<Vec<Vec<Dim>>> {
    let step = |axis: usize| view[axis + 1..].iter().map(|dim| dim.len).product::<u64>();
    // How far the dimensions go along each of the view's.
    let mut reach = vec![0; view.len()];
    let mut of = |mut dim: Dim| {
        let mut found = Vec::new();
        while dim.len > 1 && dim.stride > 0 {
            let axis = (0..view.len()).find(|&axis| view[axis].len > 1 && step(axis) <= dim.stride)?;
            let along = dim.stride / step(axis);
            if !dim.stride.is_multiple_of(step(axis)) || along >= view[axis].len {
                return None;
            }
            // As far as the axis goes; the rest is over the next one.
            let len = if dim.len * along <= view[axis].len { dim.len } else { view[axis].len / along };
            if !dim.len.is_multiple_of(len) || (len < dim.len && len * along != view[axis].len) {
                return None;
            }
            reach[axis] += (len - 1) * along;
            found.insert(0, Dim { len, stride: along * view[axis].stride });
            dim = Dim { len: dim.len / len, stride: view[axis].len * step(axis) };
        }
        if dim.len > 1 {
            found.insert(0, dim);
        }
        Some(found)
    };
    let found = dims.iter().map(|dims| Some(dims.iter().map(|&dim| of(dim)).collect::<Option<Vec<_>>>()?.concat()));
    let found = found.collect::<Option<Vec<_>>>()?;
    // Along no axis do they go beyond its end together.
    reach.iter().zip(view).all(|(&reach, dim)| reach < dim.len).then_some(found)
}
