//! The gradient of a value by that of a view of it: elements that a view repeats get sums, and those that it leaves out get zeros.

use candle::{Result, Tensor};
use opara_plan::rewrite::Operand;
use opara_plan::trace::Dim;

use super::super::evaluation::lens;
use super::super::strided::shaped;
use crate::ops::{column_sums, in_sums};

/// The gradient of a value of `len` elements, of which `gradient` is that of a view, in the order of its dimensions.
pub(super) fn spread(gradient: &Tensor, view: &Operand, len: u64) -> Result<Tensor> {
    if view.is_whole(len) {
        return Ok(gradient.clone());
    }
    let (gradient, dims) = without_repeats(gradient, &view.dims)?;
    let mut order: Vec<usize> = (0..dims.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(dims[at].stride));
    let sorted: Vec<Dim> = order.iter().map(|&at| dims[at]).collect();
    let gradient = if order.is_empty() { gradient } else { gradient.permute(order)? };
    if view.first == 0 && (Operand { dims: sorted.clone(), ..view.clone() }).is_whole(len) {
        // All elements in another order.
        return Ok(gradient);
    }
    let [first, len] = [view.first as usize, len as usize];
    if are_apart(&sorted) {
        return placed(gradient, &sorted, first, len);
    }
    // Windows that overlap: each element goes to the sum of its place.
    let mut places = vec![first as u32];
    for dim in &sorted {
        let steps = (0..dim.len).map(|at| (at * dim.stride) as u32);
        places = places.iter().flat_map(|&place| steps.clone().map(move |step| place + step)).collect();
    }
    let places = Tensor::new(places, gradient.device())?;
    Tensor::zeros(len, gradient.dtype(), gradient.device())?.index_add(&places, &gradient.flatten_all()?, 0)
}

/// The sums over dimensions that repeat one element, and the dimensions that are left.
fn without_repeats(gradient: &Tensor, dims: &[Dim]) -> Result<(Tensor, Vec<Dim>)> {
    let left: Vec<Dim> = dims.iter().copied().filter(|dim| dim.stride > 0 && dim.len > 1).collect();
    let is_repeat = |dim: &Dim| dim.stride == 0 && dim.len > 1;
    let repeats: Vec<usize> = (0..dims.len()).filter(|&at| is_repeat(&dims[at])).collect();
    if repeats.is_empty() {
        return Ok((shaped(gradient, &lens(&left))?, left));
    }
    let dtype = gradient.dtype();
    let columns = lens(&left).iter().product::<usize>();
    let gradient = shaped(gradient, &lens(dims))?;
    // Such dimensions outside, in memory.
    let outside: Vec<usize> =
        repeats.iter().copied().chain((0..dims.len()).filter(|at| !repeats.contains(at))).collect();
    let turned = gradient.permute(outside)?;
    // What repeats as a whole row is summed row by row.
    let are_innermost = dims[repeats[0]..].iter().all(|dim| dim.len == 1 || is_repeat(dim));
    let sum = if columns > 1 && (!are_innermost || turned.is_contiguous()) {
        column_sums(&turned.contiguous()?.reshape((turned.elem_count() / columns, columns))?)?
    } else {
        in_sums(&gradient)?.sum(repeats)?.to_dtype(dtype)?
    };
    Ok((shaped(&sum, &lens(&left))?, left))
}

/// Whether no two elements of a view, its dimensions sorted from the longest stride on, have one place.
fn are_apart(sorted: &[Dim]) -> bool {
    let mut extent = 1;
    sorted.iter().rev().all(|dim| {
        let is_apart = dim.stride >= extent;
        extent += (dim.len - 1) * dim.stride;
        is_apart
    })
}

/// Elements in their places among zeros, from the innermost dimension to the outermost.
fn placed(gradient: Tensor, sorted: &[Dim], first: usize, len: usize) -> Result<Tensor> {
    let mut rest = gradient.elem_count();
    // Elements of a row of the dimensions that are in place.
    let mut row = 1;
    let mut placed = gradient;
    for dim in sorted.iter().rev() {
        let stride = dim.stride as usize;
        placed = fitted(&shaped(&placed, &[rest, row])?, 0, stride)?;
        rest /= dim.len as usize;
        row = stride * dim.len as usize;
    }
    fitted(&shaped(&placed, &[1, row])?, first, len)?.flatten_all()
}

/// Rows of this length that begin with `before` zeros and end with others, or without elements that are zeros.
fn fitted(rows: &Tensor, before: usize, len: usize) -> Result<Tensor> {
    let row = rows.dim(1)?.min(len - before);
    let rows = rows.narrow(1, 0, row)?;
    match len - before - row {
        0 if before == 0 => Ok(rows),
        after => rows.pad_with_zeros(1, before, after),
    }
}

#[cfg(test)]
mod tests {
    use candle::Device;
    use opara_plan::rewrite::Value;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_element_of_a_view_goes_to_its_place(
            dims in prop::collection::vec((1u64..5, prop::sample::select(vec![0u64, 1, 2, 3, 4, 5, 8, 10, 20, 40])), 0..4),
            first in 0u64..30,
        ) {
            let view = Operand {
                value: Value::Input(0),
                first,
                dims: dims.iter().map(|&(len, stride)| Dim { len, stride }).collect(),
            };
            let end = first + dims.iter().map(|(len, stride)| (len - 1) * stride).sum::<u64>() + 1;
            for len in [end, end + 7] {
                let gradient = Tensor::arange(1f64, 1. + view.len() as f64, &Device::Cpu).unwrap();
                let mut expected = vec![0.; len as usize];
                for at in 0..view.len() {
                    let (mut rest, mut place) = (at, first);
                    for (len, stride) in dims.iter().rev() {
                        place += rest % len * stride;
                        rest /= len;
                    }
                    expected[place as usize] += 1. + at as f64;
                }
                let got = spread(&gradient, &view, len).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap();
                prop_assert_eq!(got, expected);
            }
        }
    }
}
