//! Softmax of rows.

use super::element::{joined, Element, Sum};
use super::taps::larger;
use super::{each, WORTH_A_THREAD};
use crate::ops::RowStarts;

/// Elements of one task.
const TASK: usize = 20_000;

/// What an exponential costs, in operations.
const EXPONENTIAL: usize = 20;

/// Softmax of each row of so many columns, to which a row of the bias is added before.
pub(crate) fn softmax<T: Element>(columns: usize, x: &[T], bias: Option<(&[T], RowStarts)>) -> Vec<T> {
    let mut y = vec![T::zero(); x.len()];
    let rows = TASK.div_ceil(columns);
    let tasks = x.chunks(rows * columns).zip(y.chunks_mut(rows * columns)).enumerate().collect();
    each(x.len() * EXPONENTIAL > WORTH_A_THREAD, tasks, |(task, (x, y))| {
        T::Sum::scratch(2 * columns, |scratch| {
            let (values, second) = scratch.split_at_mut(columns);
            for (i, (x, y)) in x.chunks_exact(columns).zip(y.chunks_exact_mut(columns)).enumerate() {
                T::widen(x, values);
                if let Some((bias, starts)) = &bias {
                    T::widen(&bias[starts.of_row(task * rows + i)..][..columns], second);
                    values.iter_mut().zip(&*second).for_each(|(x, &bias)| *x += bias);
                }
                normalise(values);
                T::narrow(values, y);
            }
        });
    });
    y
}

/// The softmax of a row, in its place.
fn normalise<S: Sum>(row: &mut [S]) {
    let largest = joined(row, S::NEG_INFINITY, larger);
    row.iter_mut().for_each(|x| *x = (*x - largest).exp());
    let sum = joined(row, S::default(), |a, b| a + b);
    row.iter_mut().for_each(|x| *x /= sum);
}
