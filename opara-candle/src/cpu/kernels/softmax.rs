//! Softmax of one row.

use super::element::{joined, joined_in_any_order, Sum, WIDEST};
use super::taps::larger;

/// Replaces a row by its softmax. To be called from vector code.
#[inline(always)]
pub(crate) fn softmax_in_place<A: Sum>(row: &mut [A]) {
    let largest = joined_in_any_order(row, A::NEG_INFINITY, larger);
    let (chunks, rest) = row.as_chunks_mut::<WIDEST>();
    for chunk in chunks {
        // Not `map` of arrays, which the compiler may leave a call outside of the vector code.
        chunk.iter_mut().for_each(|x| *x = (*x - largest).exp());
    }
    rest.iter_mut().for_each(|x| *x = (*x - largest).exp());
    let sum = joined(row, A::default(), |a, b| a + b);
    row.iter_mut().for_each(|x| *x /= sum);
}
