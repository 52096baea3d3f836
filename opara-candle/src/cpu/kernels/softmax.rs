//! Softmax of rows.

use pulp::{Arch, Simd, WithSimd};

use super::element::{joined, Element, Sum};
use super::taps::larger;
use super::{each, WORTH_A_THREAD};
use crate::ops::RowStarts;

/// Elements of one task.
const TASK: usize = 20_000;

/// What an element costs, in operations of [`WORTH_A_THREAD`]: 3.6 ns of one core, most of it a call of `exp`, which is not
/// vectorised.
const ELEMENT: usize = 300;

/// Softmax of each row of so many columns, to which a row of the bias is added before.
pub(crate) fn softmax<T: Element>(columns: usize, x: &[T], bias: Option<(&[T], RowStarts)>) -> Vec<T> {
    let mut y = vec![T::zero(); x.len()];
    let rows = TASK.div_ceil(columns);
    let tasks = x.chunks(rows * columns).zip(y.chunks_mut(rows * columns)).enumerate().collect();
    each(is_worth_threads(x.len()), tasks, |(task, (x, y))| {
        T::Sum::scratch(2 * columns, |scratch| {
            let (values, second) = scratch.split_at_mut(columns);
            for (i, (x, y)) in x.chunks_exact(columns).zip(y.chunks_exact_mut(columns)).enumerate() {
                T::widen(x, values);
                if let Some((bias, starts)) = &bias {
                    T::widen(&bias[starts.of_row(task * rows + i)..][..columns], second);
                    values.iter_mut().zip(&*second).for_each(|(x, &bias)| *x += bias);
                }
                Arch::new().dispatch(Normalise(values));
                T::narrow(values, y);
            }
        });
    });
    y
}

fn is_worth_threads(elements: usize) -> bool {
    elements * ELEMENT > WORTH_A_THREAD
}

/// The softmax of a row, in its place. All but `exp` becomes vectors as wide as the machine's.
struct Normalise<'a, A>(&'a mut [A]);

impl<A: Sum> WithSimd for Normalise<'_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self(row) = self;
        let largest = joined(row, A::NEG_INFINITY, larger);
        row.iter_mut().for_each(|x| *x = (*x - largest).exp());
        let sum = joined(row, A::default(), |a, b| a + b);
        row.iter_mut().for_each(|x| *x /= sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_of_short_texts_are_worth_threads() {
        // BERT-base, and the tiniest of its kind.
        assert!(is_worth_threads(12 * 128 * 128) && is_worth_threads(12 * 64 * 64));
        assert!(!is_worth_threads(2 * 64 * 64));
    }
}
