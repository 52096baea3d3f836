//! Strided views: the elements of a buffer that a tensor reads, given by dimensions and strides.

/// Maximum dimensions.
const DIMS: usize = 4;

/// A strided view of a buffer. Neighbouring dimensions are merged if possible; without dimensions it is contiguous.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StridedView {
    dims: [u32; DIMS],
    strides: [u32; DIMS],
    rank: u8,
}

impl StridedView {
    /// The view with these dimensions and strides, in elements. `None` if it has too many dimensions after merging, or
    /// an offset exceeds 32 bits.
    pub fn new(dims: &[u64], strides: &[u64]) -> Option<Self> {
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (&dim, &stride) in dims.iter().zip(strides).filter(|(&dim, _)| dim != 1) {
            match merged.last_mut() {
                Some(outer) if outer.1 == stride.checked_mul(dim)? => *outer = (outer.0.checked_mul(dim)?, stride),
                _ => merged.push((dim, stride)),
            }
        }
        let mut view = Self::default();
        if merged.is_empty() || matches!(merged[..], [(_, 1)]) {
            return Some(view);
        }
        let last =
            merged.iter().try_fold(0u64, |last, (dim, stride)| last.checked_add((dim - 1).checked_mul(*stride)?))?;
        if merged.len() > DIMS || last > u64::from(u32::MAX) {
            return None;
        }
        view.rank = merged.len() as u8;
        for (at, (dim, stride)) in merged.into_iter().enumerate() {
            (view.dims[at], view.strides[at]) = (u32::try_from(dim).ok()?, u32::try_from(stride).ok()?);
        }
        Some(view)
    }

    /// Length and stride of each dimension, from the outermost one on.
    pub fn dims_and_strides(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        let both = self.dims.iter().zip(&self.strides).take(self.rank.into());
        both.map(|(&dim, &stride)| (dim.into(), stride.into()))
    }

    /// Is it contiguous? Then element `i` is element `i` of the buffer.
    pub fn is_contiguous(&self) -> bool {
        self.rank == 0
    }

    /// The length of a row, if the view repeats one scalar per row: element `i` is element `i / columns` of the buffer.
    pub fn row_scalar_columns(&self) -> Option<u64> {
        match (self.rank, self.strides) {
            (2, [1, 0, ..]) => Some(self.dims[1].into()),
            // There is one row.
            (1, [0, ..]) => Some(self.dims[0].into()),
            _ => None,
        }
    }

    /// Is this view a permutation of a dense buffer of that many elements?
    pub fn is_permutation(&self, elements: u64) -> bool {
        let mut dims: Vec<(u64, u64)> = self.dims_and_strides().collect();
        dims.sort_unstable_by_key(|&(_, stride)| stride);
        let dense = dims.iter().try_fold(1, |inner, &(dim, stride)| (stride == inner).then_some(inner * dim));
        self.is_contiguous() || dense == Some(elements)
    }

    /// Composes this view with a slice and a permutation: element `i` of the result is element `first + order(i)` of this
    /// view. The result counts from its own first element, whose offset from this view's first element comes second.
    /// `None` if the result is not a strided view.
    pub fn compose(&self, order: &StridedView, first: u64) -> Option<(Self, u64)> {
        if self.is_contiguous() {
            return Some((*order, first));
        }
        if order.is_contiguous() {
            return (first == 0).then_some((*self, 0));
        }
        // For each dimension of this view: elements per step, its length, its stride, and how many steps are left from
        // `first` on.
        let (mut inner, mut distance) = (1, 0);
        let mut own = Vec::new();
        for (dim, stride) in self.dims_and_strides().rev() {
            let at = first / inner % dim;
            distance += at * stride;
            own.push((inner, dim, stride, dim - at));
            inner *= dim;
        }
        // A dimension of `order` has a constant stride only if it stays within one dimension of this view.
        let mut stride = |(dim, step): (u64, u64)| {
            let (inner, _, stride, left) = own.iter_mut().find(|(inner, dim, ..)| step < *inner * *dim)?;
            *left = left.checked_sub((step / *inner).checked_mul(dim - 1)?).filter(|left| *left > 0)?;
            (step % *inner == 0).then_some(step / *inner * *stride)
        };
        let strides = order.dims_and_strides().map(&mut stride).collect::<Option<Vec<u64>>>()?;
        let dims: Vec<u64> = order.dims_and_strides().map(|(dim, _)| dim).collect();
        Some((Self::new(&dims, &strides)?, distance))
    }

    /// The element of the buffer that element `i` reads.
    pub fn at(&self, i: u64) -> u64 {
        if self.is_contiguous() {
            return i;
        }
        let add = |(rest, at), (dim, stride)| (rest / dim, at + rest % dim * stride);
        self.dims_and_strides().rev().fold((i, 0), add).1
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn view(dims: &[u64], strides: &[u64]) -> Option<(Vec<u64>, Vec<u64>)> {
        Some(StridedView::new(dims, strides)?.dims_and_strides().unzip())
    }

    #[test]
    fn adjacent_dimensions_are_merged() {
        let row = Some((vec![], vec![]));
        assert_eq!(view(&[], &[]), row, "a scalar");
        assert_eq!(view(&[2, 3, 4], &[12, 4, 1]), row);
        assert_eq!(view(&[1, 3, 1, 4], &[7, 4, 9, 1]), row, "dimensions of length one are dropped");
        assert_eq!(view(&[2, 3, 4], &[0, 0, 1]), Some((vec![6, 4], vec![0, 1])), "one row, repeated six times");
        assert_eq!(view(&[6, 4], &[1, 0]), Some((vec![6, 4], vec![1, 0])), "a column");
        assert_eq!(view(&[5], &[0]), Some((vec![5], vec![0])), "one scalar for all elements");
        assert_eq!(view(&[2, 8, 3, 4], &[96, 4, 32, 1]), Some((vec![2, 8, 3, 4], vec![96, 4, 32, 1])));
        assert_eq!(view(&[2, 2, 2, 2, 2], &[1, 2, 4, 8, 16]), None, "too many");
        assert_eq!(view(&[1 << 20, 1 << 13], &[1 << 13, 2]), None, "too far");
    }

    #[test]
    fn one_scalar_per_row_has_a_stride_along_rows_only() {
        let columns = |dims: &[u64], strides: &[u64]| StridedView::new(dims, strides).unwrap().row_scalar_columns();
        assert_eq!(columns(&[2, 3, 4], &[3, 1, 0]), Some(4));
        assert_eq!(columns(&[1, 1, 4], &[1, 1, 0]), Some(4), "one row");
        assert_eq!(columns(&[2, 3, 4], &[4, 0, 1]), None);
        assert_eq!(columns(&[2, 3, 4], &[12, 4, 1]), None);
    }

    #[test]
    fn splitting_heads_is_a_permutation() {
        // 12 heads of 64 for 128 tokens, stored token by token, as a matmul writes them.
        let heads = StridedView::new(&[1, 12, 128, 64], &[98_304, 64, 768, 1]).unwrap();
        assert!(heads.is_permutation(98_304) && !heads.is_permutation(98_305));
        let bias = StridedView::new(&[1, 128, 768], &[0, 0, 1]).unwrap();
        assert!(!bias.is_permutation(98_304));
        assert_eq!(bias.compose(&heads, 0), Some((StridedView::new(&[12, 128, 64], &[64, 0, 1]).unwrap(), 0)));
        assert_eq!(StridedView::default().compose(&heads, 0), Some((heads, 0)));
        let halves = StridedView::new(&[2, 64, 768], &[1, 0, 0]).unwrap();
        assert_eq!(halves.compose(&heads, 0), None, "halves of the tokens do not match the heads");
    }

    #[test]
    fn keys_are_a_slice_of_one_matmul() {
        // Two texts of 128 tokens; queries, keys and values of 12 heads of 64.
        let heads = StridedView::new(&[2, 12, 128, 64], &[128 * 2304, 64, 2304, 1]).unwrap();
        let bias = StridedView::new(&[2, 128, 2304], &[0, 0, 1]).unwrap();
        let of_heads = StridedView::new(&[2, 12, 128, 64], &[0, 64, 0, 1]).unwrap();
        assert_eq!(
            [0, 768, 1536].map(|first| bias.compose(&heads, first)),
            [0, 768, 1536].map(|at| Some((of_heads, at)))
        );
        assert_eq!(StridedView::default().compose(&heads, 768), Some((heads, 768)));
        assert_eq!(bias.compose(&heads, 1537), None, "the last head would continue in the next token");
    }

    /// A permutation of 24 elements.
    fn permutation() -> impl Strategy<Value = StridedView> {
        let dims = prop::sample::select(vec![vec![24u64], vec![4, 6], vec![2, 3, 4], vec![3, 2, 2, 2], vec![12, 2]]);
        dims.prop_flat_map(|dims| {
            Just((0..dims.len()).collect::<Vec<_>>()).prop_shuffle().prop_map(move |order| {
                let stride = |&at: &usize| dims[at + 1..].iter().product::<u64>();
                let (dims, strides): (Vec<u64>, Vec<u64>) = order.iter().map(|at| (dims[*at], stride(at))).unzip();
                StridedView::new(&dims, &strides).unwrap()
            })
        })
    }

    /// Any strided view of 24 elements; several may be the same element of the buffer.
    fn any_view() -> impl Strategy<Value = StridedView> {
        let dims = prop::sample::select(vec![vec![24u64], vec![4, 6], vec![2, 3, 4], vec![2, 12], vec![8, 3]]);
        dims.prop_flat_map(|dims| {
            let strides = prop::collection::vec(0u64..9, dims.len());
            strides.prop_map(move |strides| StridedView::new(&dims, &strides).unwrap())
        })
    }

    proptest! {
        #[test]
        fn a_permutation_reads_each_element_once(view in prop_oneof![permutation(), any_view()]) {
            let mut seen: Vec<u64> = (0..24).map(|i| view.at(i)).collect();
            seen.sort_unstable();
            prop_assert_eq!(view.is_permutation(24), seen.into_iter().eq(0..24));
        }

        #[test]
        fn a_view_composed_with_a_permutation_reads_the_same_elements(own in prop_oneof![permutation(), any_view()], order in permutation()) {
            if let Some((view, distance)) = own.compose(&order, 0) {
                prop_assert_eq!(distance, 0);
                for i in 0..24 {
                    prop_assert_eq!(view.at(i), own.at(order.at(i)));
                }
            }
        }

        #[test]
        fn a_view_composed_with_a_slice_reads_the_same_elements(
            own in prop_oneof![permutation(), any_view()],
            dims in prop::sample::select(vec![vec![2u64], vec![6], vec![2, 3], vec![2, 2, 2]]),
            strides in prop::collection::vec(0u64..13, 3),
            first in 0u64..24,
        ) {
            let order = StridedView::new(&dims, &strides[..dims.len()]).unwrap();
            let elements = dims.iter().product();
            let in_range = (0..elements).all(|i| first + order.at(i) < 24);
            if let Some((view, distance)) = own.compose(&order, first).filter(|_| in_range) {
                for i in 0..elements {
                    prop_assert_eq!(distance + view.at(i), own.at(first + order.at(i)));
                }
            }
        }
    }
}
