//! Strided views of tensors, whatever the order in which their elements lie in memory.

use candle::{Result, Tensor};

/// The elements of `t`, counted in the order of its shape, from `first` on with these dimensions and strides; a dimension of
/// stride 0 has length one in the result. No element is copied where `t` lies so that it can be avoided. `None` if it is no view
/// that can be made of slices and permutations, such as one of windows that overlap.
pub(super) fn view(t: &Tensor, first: usize, dims: &[usize], strides: &[usize]) -> Result<Option<Tensor>> {
    let elements = t.elem_count();
    let is_whole = first == 0 && dims.iter().product::<usize>() == elements && is_contiguous(dims, strides);
    if is_whole {
        return shaped(t, dims).map(Some);
    }
    // Dimensions that go over elements, from the longest stride to the shortest.
    let mut axes: Vec<usize> = (0..dims.len()).filter(|&axis| dims[axis] > 1 && strides[axis] > 0).collect();
    axes.sort_by_key(|&axis| std::cmp::Reverse(strides[axis]));
    let steps: Vec<usize> = axes.iter().map(|&axis| strides[axis]).collect();
    // Over the tensor's own dimensions if that is possible; else over those of the view, for which elements may be copied.
    let bases = [refined(t.dims(), &steps, elements), chained(&steps, elements)];
    for base in bases.into_iter().flatten() {
        if let Some(found) = over(t, &base, first, (dims, strides), &axes)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// The same over dimensions `base` of the tensor, by slices and a permutation; `axes` are the view's dimensions from the longest
/// stride to the shortest.
fn over(
    t: &Tensor,
    base: &[usize],
    first: usize,
    (dims, strides): (&[usize], &[usize]),
    axes: &[usize],
) -> Result<Option<Tensor>> {
    let inner = |at: usize| base[at + 1..].iter().product::<usize>();
    let offsets: Vec<usize> = (0..base.len()).map(|at| first / inner(at) % base[at]).collect();
    // Of each dimension of `base`, the elements that are taken: one, unless an axis goes over them.
    let mut taken: Vec<(usize, usize)> = offsets.iter().map(|&offset| (offset, 1)).collect();
    let mut is_taken = vec![false; base.len()];
    for &axis in axes {
        let (mut left, stride) = (dims[axis], strides[axis]);
        let Some(mut at) = (0..base.len()).rev().find(|&at| inner(at) == stride && base[at] > 1) else {
            return Ok(None);
        };
        loop {
            if std::mem::replace(&mut is_taken[at], true) {
                return Ok(None);
            }
            if left <= base[at] - offsets[at] {
                taken[at].1 = left;
                break;
            }
            // On into the next dimension, after all of this one.
            if offsets[at] != 0 || !left.is_multiple_of(base[at]) || at == 0 {
                return Ok(None);
            }
            taken[at].1 = base[at];
            left /= base[at];
            at -= 1;
        }
    }
    let mut result = shaped(t, base)?;
    for (at, &(offset, len)) in taken.iter().enumerate() {
        result = result.narrow(at, offset, len)?;
    }
    let lens: Vec<usize> = axes.iter().map(|&axis| dims[axis]).collect();
    let result = shaped(&result, &lens)?;
    // Back to the order that was asked for.
    let mut order: Vec<usize> = (0..axes.len()).collect();
    order.sort_by_key(|&at| axes[at]);
    let result = if order.is_empty() { result } else { result.permute(order)? };
    let shape: Vec<usize> = dims.iter().zip(strides).map(|(&dim, &stride)| if stride == 0 { 1 } else { dim }).collect();
    shaped(&result, &shape).map(Some)
}

fn is_contiguous(dims: &[usize], strides: &[usize]) -> bool {
    let mut inner = 1;
    dims.iter().zip(strides).rev().all(|(&dim, &stride)| {
        let continues = dim == 1 || stride == inner;
        inner *= dim;
        continues
    })
}

/// These dimensions, or more of them, so that one has steps as long as each of the strides; `None` if a stride lies across them.
fn refined(dims: &[usize], strides: &[usize], elements: usize) -> Option<Vec<usize>> {
    let own: Vec<usize> = (0..dims.len()).map(|at| dims[at + 1..].iter().product()).collect();
    match strides.iter().all(|stride| own.contains(stride)) {
        true => Some(dims.to_vec()),
        false => chained(&[&own, strides].concat(), elements),
    }
}

/// Dimensions of so many elements whose steps are these, and one; `None` if a step is no multiple of the next shorter one.
fn chained(steps: &[usize], elements: usize) -> Option<Vec<usize>> {
    let mut steps: Vec<usize> = steps.iter().copied().chain([1]).collect();
    steps.sort_unstable_by(|a, b| b.cmp(a));
    steps.dedup();
    let mut above = elements;
    let mut shape = Vec::new();
    for step in steps {
        if step == 0 || !above.is_multiple_of(step) {
            return None;
        }
        shape.push(above / step);
        above = step;
    }
    Some(shape)
}

/// The tensor in another shape; without a copy if only dimensions of one come or go, or if its elements fill a range of memory in
/// which the shape is a view.
pub(super) fn shaped(t: &Tensor, shape: &[usize]) -> Result<Tensor> {
    let longer = |dims: &[usize]| dims.iter().copied().filter(|&dim| dim != 1).collect::<Vec<_>>();
    if t.dims() == shape {
        return Ok(t.clone());
    }
    if t.is_contiguous() || t.elem_count() == 0 {
        return t.reshape(shape);
    }
    if longer(t.dims()) == longer(shape) {
        return of_ones(t, shape);
    }
    let mut in_memory: Vec<usize> = (0..t.rank()).collect();
    in_memory.sort_by_key(|&axis| std::cmp::Reverse(t.stride()[axis]));
    let flat = t.permute(in_memory)?;
    let Some(strides) = reshaped(t.dims(), t.stride(), shape).filter(|_| flat.is_contiguous()) else {
        return t.reshape(shape);
    };
    view(&flat.flatten_all()?, 0, shape, &strides)?.map_or_else(|| t.reshape(shape), Ok)
}

/// The tensor in a shape that differs in dimensions of one.
fn of_ones(t: &Tensor, shape: &[usize]) -> Result<Tensor> {
    let mut t = t.clone();
    for at in (0..t.rank()).rev() {
        if t.dims()[at] == 1 {
            t = t.squeeze(at)?;
        }
    }
    for (at, &dim) in shape.iter().enumerate() {
        if dim == 1 {
            t = t.unsqueeze(at)?;
        }
    }
    Ok(t)
}

/// The strides of the same elements in another shape; `None` if a dimension of it goes over elements that no one stride leads along.
fn reshaped(dims: &[usize], strides: &[usize], shape: &[usize]) -> Option<Vec<usize>> {
    if dims.iter().product::<usize>() != shape.iter().product::<usize>() {
        return None;
    }
    let mut own = dims.iter().zip(strides).rev().filter(|(&dim, _)| dim != 1).peekable();
    // Elements that one stride leads along, of which the new dimensions have taken some.
    let (mut left, mut stride) = (1, 1);
    let mut found = vec![0; shape.len()];
    for (at, &dim) in shape.iter().enumerate().rev().filter(|(_, &dim)| dim != 1) {
        if left == 1 {
            let (&len, &step) = own.next()?;
            (left, stride) = (len, step);
            while let Some((&len, _)) = own.next_if(|(_, &outer)| outer == left * step) {
                left *= len;
            }
        }
        if !left.is_multiple_of(dim) {
            return None;
        }
        found[at] = stride;
        left /= dim;
        stride *= dim;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use candle::Device;
    use proptest::prelude::*;

    use super::*;

    /// The same, element by element.
    fn picked(values: &[f32], first: usize, dims: &[usize], strides: &[usize]) -> Vec<f32> {
        let count = dims.iter().product();
        let element = |mut i: usize| {
            let mut at = first;
            for (dim, stride) in dims.iter().zip(strides).rev() {
                at += i % dim * stride;
                i /= dim;
            }
            values[at]
        };
        (0..count).map(element).collect()
    }

    fn check(t: &Tensor, first: usize, dims: &[usize], strides: &[usize]) -> Result<bool> {
        let values = t.flatten_all()?.to_vec1::<f32>()?;
        let Some(view) = view(t, first, dims, strides)? else { return Ok(false) };
        let got = view.broadcast_as(dims)?.flatten_all()?.to_vec1::<f32>()?;
        assert_eq!(got, picked(&values, first, dims, strides), "{first} {dims:?} {strides:?}");
        Ok(true)
    }

    fn tensor() -> Result<Tensor> {
        Tensor::arange(0f32, 2. * 6. * 4. * 5., &Device::Cpu)?.reshape((2, 6, 4, 5))
    }

    #[test]
    fn channels_of_images_are_no_copy() -> Result<()> {
        let x = tensor()?;
        let last = x.permute((0, 2, 3, 1))?.contiguous()?.permute((0, 3, 1, 2))?;
        for t in [&x, &last] {
            // Two of the channels, and one of a single image with its rows merged.
            assert!(check(t, 40, &[2, 2, 4, 5], &[120, 20, 5, 1])?);
            assert!(check(t, 140, &[20], &[1])?);
            assert!(check(t, 0, &[240], &[1])?);
            // A permutation, and a vector for each channel.
            assert!(check(t, 0, &[4, 2, 6, 5], &[5, 120, 20, 1])?);
            assert!(check(t, 3, &[1, 6, 4, 5], &[0, 1, 0, 0])?);
        }
        let (slice, whole) =
            (view(&last, 40, &[2, 2, 4, 5], &[120, 20, 5, 1])?, view(&last, 0, &[2, 6, 4, 5], &[120, 20, 5, 1])?);
        assert_eq!(slice.unwrap().stride(), [120, 1, 30, 6]);
        assert_eq!(whole.unwrap().stride(), last.stride());
        Ok(())
    }

    #[test]
    fn pixels_of_images_in_a_row_are_no_copy() -> Result<()> {
        let last = tensor()?.permute((0, 2, 3, 1))?.contiguous()?.permute((0, 3, 1, 2))?;
        // Pixels by channels, in heads, and back.
        let pixels = view(&last, 0, &[2, 20, 6], &[120, 1, 20])?.unwrap();
        assert!(pixels.is_contiguous());
        let heads = view(&last, 0, &[2, 2, 20, 3], &[120, 60, 1, 20])?.unwrap();
        assert_eq!(heads.stride(), [120, 3, 6, 1]);
        let back = shaped(&pixels.transpose(1, 2)?, &[2, 6, 4, 5])?;
        assert_eq!(back.stride(), last.stride());
        assert_eq!(back.flatten_all()?.to_vec1::<f32>()?, last.flatten_all()?.to_vec1::<f32>()?);
        Ok(())
    }

    #[test]
    fn windows_that_overlap_are_no_view() -> Result<()> {
        assert!(!check(&tensor()?, 0, &[10, 4], &[1, 1])?);
        assert!(!check(&tensor()?, 0, &[10, 4], &[2, 1])?);
        Ok(())
    }

    proptest! {
        #[test]
        fn another_shape_has_the_same_elements(
            order in Just(vec![0usize, 1, 2, 3]).prop_shuffle(),
            shape in prop::sample::select(vec![
                vec![240], vec![12, 20], vec![20, 12], vec![2, 1, 120], vec![2, 3, 2, 20], vec![48, 5], vec![6, 40], vec![5, 4, 12],
                vec![4, 5, 1, 6, 2], vec![2, 20, 6], vec![3, 2, 40], vec![8, 5, 6],
            ]),
            rows in 1usize..5,
        ) {
            let x = tensor().unwrap().permute(order).unwrap();
            let same = |t: &Tensor, shape: &[usize]| {
                let values = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
                let got = shaped(t, shape).unwrap();
                assert_eq!((got.dims(), values(&got)), (shape, values(t)));
            };
            same(&x, &shape);
            // A slice, whose elements fill no range.
            let slice = x.narrow(0, 0, rows.min(x.dims()[0])).unwrap();
            same(&slice, &[slice.elem_count()]);
        }

        #[test]
        fn a_view_has_the_elements_that_are_asked_for(
            dims in prop::collection::vec(1usize..5, 1..4),
            strides in prop::collection::vec(prop::sample::select(vec![0usize, 1, 2, 4, 5, 10, 20, 40, 120]), 4),
            first in 0usize..40,
            is_last in any::<bool>(),
        ) {
            let strides = &strides[..dims.len()];
            let end = first + dims.iter().zip(strides).map(|(dim, stride)| (dim - 1) * stride).sum::<usize>();
            let x = tensor().unwrap();
            let x = if is_last { x.permute((0, 2, 3, 1)).unwrap().contiguous().unwrap().permute((0, 3, 1, 2)).unwrap() } else { x };
            if end < x.elem_count() {
                check(&x, first, &dims, strides).unwrap();
            }
        }
    }
}
