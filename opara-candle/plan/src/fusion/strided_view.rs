//! Strided views: which elements of a buffer a tensor reads, by dimensions and strides.

/// The most dimensions.
const DIMS: usize = 4;

/// A strided view of a buffer, neighbouring dimensions merged where they can be. Without dimensions it is contiguous.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StridedView {
    dims: [u32; DIMS],
    strides: [u32; DIMS],
    rank: u8,
}

impl StridedView {
    /// The view with these dimensions and strides, in elements. `None` if it has too many dimensions after merging, or
    /// reaches too far.
    pub fn new(dims: &[u64], strides: &[u64]) -> Option<Self> {
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for (&dim, &stride) in dims.iter().zip(strides).filter(|(&dim, _)| dim != 1) {
            match joined.last_mut() {
                Some(outer) if outer.1 == stride.checked_mul(dim)? => *outer = (outer.0.checked_mul(dim)?, stride),
                _ => joined.push((dim, stride)),
            }
        }
        let mut places = Self::default();
        if joined.is_empty() || matches!(joined[..], [(_, 1)]) {
            return Some(places);
        }
        let last =
            joined.iter().try_fold(0u64, |last, (dim, stride)| last.checked_add((dim - 1).checked_mul(*stride)?))?;
        if joined.len() > DIMS || last > u64::from(u32::MAX) {
            return None;
        }
        places.rank = joined.len() as u8;
        for (at, (dim, stride)) in joined.into_iter().enumerate() {
            (places.dims[at], places.strides[at]) = (u32::try_from(dim).ok()?, u32::try_from(stride).ok()?);
        }
        Some(places)
    }

    /// Length and stride of each dimension, from the outermost one on.
    pub fn all(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        let both = self.dims.iter().zip(&self.strides).take(self.rank.into());
        both.map(|(&dim, &stride)| (dim.into(), stride.into()))
    }

    /// Whether it is contiguous: element `i` is element `i` of the buffer.
    pub fn are_in_a_row(&self) -> bool {
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
        let mut dims: Vec<(u64, u64)> = self.all().collect();
        dims.sort_unstable_by_key(|&(_, stride)| stride);
        let all = dims.iter().try_fold(1, |inner, &(dim, stride)| (stride == inner).then_some(inner * dim));
        self.are_in_a_row() || all == Some(elements)
    }

    /// Composes this view with a slice and a permutation: element `i` of the result is element `first + order(i)` of this
    /// view. The result counts from its own first element, whose offset from this view's first element comes second.
    /// `None` if the result is not a strided view.
    pub fn taken(&self, order: &StridedView, first: u64) -> Option<(Self, u64)> {
        if self.are_in_a_row() {
            return Some((*order, first));
        }
        if order.are_in_a_row() {
            return (first == 0).then_some((*self, 0));
        }
        // Of each dimension how many elements lie between two neighbours, how far these are from each other, and how many
        // are left from the first one on.
        let (mut inner, mut distance) = (1, 0);
        let mut own = Vec::new();
        for (dim, stride) in self.all().rev() {
            let at = first / inner % dim;
            distance += at * stride;
            own.push((inner, dim, stride, dim - at));
            inner *= dim;
        }
        // Within one dimension of the operand, a step along one of the order's is always as far.
        let mut stride = |(dim, step): (u64, u64)| {
            let (inner, _, stride, left) = own.iter_mut().find(|(inner, dim, ..)| step < *inner * *dim)?;
            *left = left.checked_sub((step / *inner).checked_mul(dim - 1)?).filter(|left| *left > 0)?;
            (step % *inner == 0).then_some(step / *inner * *stride)
        };
        let strides = order.all().map(&mut stride).collect::<Option<Vec<u64>>>()?;
        let dims: Vec<u64> = order.all().map(|(dim, _)| dim).collect();
        Some((Self::new(&dims, &strides)?, distance))
    }

    /// The element of the buffer that element `i` is.
    pub fn at(&self, i: u64) -> u64 {
        if self.are_in_a_row() {
            return i;
        }
        let add = |(rest, at), (dim, stride)| (rest / dim, at + rest % dim * stride);
        self.all().rev().fold((i, 0), add).1
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn places(dims: &[u64], strides: &[u64]) -> Option<(Vec<u64>, Vec<u64>)> {
        Some(StridedView::new(dims, strides)?.all().unzip())
    }

    #[test]
    fn dimensions_that_lie_like_one_are_one() {
        let row = Some((vec![], vec![]));
        assert_eq!(places(&[], &[]), row, "a number");
        assert_eq!(places(&[2, 3, 4], &[12, 4, 1]), row);
        assert_eq!(places(&[1, 3, 1, 4], &[7, 4, 9, 1]), row, "dimensions of one are none");
        assert_eq!(places(&[2, 3, 4], &[0, 0, 1]), Some((vec![6, 4], vec![0, 1])), "a row for each of six");
        assert_eq!(places(&[6, 4], &[1, 0]), Some((vec![6, 4], vec![1, 0])), "a column");
        assert_eq!(places(&[5], &[0]), Some((vec![5], vec![0])), "one number for all");
        assert_eq!(places(&[2, 8, 3, 4], &[96, 4, 32, 1]), Some((vec![2, 8, 3, 4], vec![96, 4, 32, 1])));
        assert_eq!(places(&[2, 2, 2, 2, 2], &[1, 2, 4, 8, 16]), None, "too many");
        assert_eq!(places(&[1 << 20, 1 << 13], &[1 << 13, 2]), None, "too far");
    }

    #[test]
    fn a_number_of_each_row_has_a_stride_along_rows_alone() {
        let columns = |dims: &[u64], strides: &[u64]| StridedView::new(dims, strides).unwrap().row_scalar_columns();
        assert_eq!(columns(&[2, 3, 4], &[3, 1, 0]), Some(4));
        assert_eq!(columns(&[1, 1, 4], &[1, 1, 0]), Some(4), "one row");
        assert_eq!(columns(&[2, 3, 4], &[4, 0, 1]), None);
        assert_eq!(columns(&[2, 3, 4], &[12, 4, 1]), None);
    }

    #[test]
    fn heads_are_split_by_a_permutation() {
        // 12 heads of 64 of 128 tokens, token by token, as a product leaves them.
        let heads = StridedView::new(&[1, 12, 128, 64], &[98_304, 64, 768, 1]).unwrap();
        assert!(heads.is_permutation(98_304) && !heads.is_permutation(98_305));
        let bias = StridedView::new(&[1, 128, 768], &[0, 0, 1]).unwrap();
        assert!(!bias.is_permutation(98_304));
        assert_eq!(bias.taken(&heads, 0), Some((StridedView::new(&[12, 128, 64], &[64, 0, 1]).unwrap(), 0)));
        assert_eq!(StridedView::default().taken(&heads, 0), Some((heads, 0)));
        let halves = StridedView::new(&[2, 64, 768], &[1, 0, 0]).unwrap();
        assert_eq!(halves.taken(&heads, 0), None, "tokens change sides half way");
    }

    #[test]
    fn keys_are_a_part_of_what_one_product_makes() {
        // Queries, keys and values of 12 heads of 64, of 128 tokens of two texts.
        let heads = StridedView::new(&[2, 12, 128, 64], &[128 * 2304, 64, 2304, 1]).unwrap();
        let bias = StridedView::new(&[2, 128, 2304], &[0, 0, 1]).unwrap();
        let of_heads = StridedView::new(&[2, 12, 128, 64], &[0, 64, 0, 1]).unwrap();
        assert_eq!(
            [0, 768, 1536].map(|first| bias.taken(&heads, first)),
            [0, 768, 1536].map(|at| Some((of_heads, at)))
        );
        assert_eq!(StridedView::default().taken(&heads, 768), Some((heads, 768)));
        assert_eq!(bias.taken(&heads, 1537), None, "the last head goes on in the next token");
    }

    /// Dimensions whose product is 24, in an order of their own.
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

    /// 24 elements that may be anywhere, several at one place.
    fn anywhere() -> impl Strategy<Value = StridedView> {
        let dims = prop::sample::select(vec![vec![24u64], vec![4, 6], vec![2, 3, 4], vec![2, 12], vec![8, 3]]);
        dims.prop_flat_map(|dims| {
            let strides = prop::collection::vec(0u64..9, dims.len());
            strides.prop_map(move |strides| StridedView::new(&dims, &strides).unwrap())
        })
    }

    proptest! {
        #[test]
        fn a_permutation_takes_each_place_once(places in prop_oneof![permutation(), anywhere()]) {
            let mut seen: Vec<u64> = (0..24).map(|i| places.at(i)).collect();
            seen.sort_unstable();
            prop_assert_eq!(places.is_permutation(24), seen.into_iter().eq(0..24));
        }

        #[test]
        fn elements_in_another_order_are_where_they_were(own in prop_oneof![permutation(), anywhere()], order in permutation()) {
            if let Some((places, distance)) = own.taken(&order, 0) {
                prop_assert_eq!(distance, 0);
                for i in 0..24 {
                    prop_assert_eq!(places.at(i), own.at(order.at(i)));
                }
            }
        }

        #[test]
        fn elements_that_are_taken_are_where_they_were(
            own in prop_oneof![permutation(), anywhere()],
            dims in prop::sample::select(vec![vec![2u64], vec![6], vec![2, 3], vec![2, 2, 2]]),
            strides in prop::collection::vec(0u64..13, 3),
            first in 0u64..24,
        ) {
            let order = StridedView::new(&dims, &strides[..dims.len()]).unwrap();
            let elements = dims.iter().product();
            let all_there = (0..elements).all(|i| first + order.at(i) < 24);
            if let Some((places, distance)) = own.taken(&order, first).filter(|_| all_there) {
                for i in 0..elements {
                    prop_assert_eq!(distance + places.at(i), own.at(first + order.at(i)));
                }
            }
        }
    }
}
