//! Depthwise convolution on the CPU.

use pulp::{Arch, Simd, WithSimd};

use super::shapes::{finish, Conv};
use crate::cpu::kernels::{each, Element, Sum, Taps, WIDEST, WORTH_A_THREAD};

/// Output rows that are accumulated side by side.
const ROWS: usize = 4;

/// Operations per parallel task.
const TASK: usize = 200_000;

/// Convolution where each output channel depends on one input channel.
pub(super) fn depthwise<T: Element>(conv: &Conv, x: &[T], weight: &[T], bias: Option<&[T]>, y: &mut [T]) {
    let taps = Taps::new(conv.windows());
    let (plane, out) = (conv.input.0 * conv.input.1, conv.output.0 * conv.output.1);
    let outs = conv.channels.1 / conv.config.groups;
    let work = 2 * outs * out * taps.offsets.len();
    let worth = x.len() / plane * work > WORTH_A_THREAD;
    let per_task = TASK.div_ceil(work);
    let tasks = x.chunks(per_task * plane).zip(y.chunks_mut(per_task * outs * out)).enumerate().collect();
    each(worth, tasks, |(task, (x, y))| {
        let first = task * per_task;
        Arch::new().dispatch(Planes { conv, taps: &taps, first, x, weight, bias, y });
    });
}

struct Planes<'a, T> {
    conv: &'a Conv,
    taps: &'a Taps,
    /// Index of the first plane, counted over all batch items.
    first: usize,
    x: &'a [T],
    weight: &'a [T],
    bias: Option<&'a [T]>,
    y: &'a mut [T],
}

impl<T: Element> WithSimd for Planes<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { conv, taps, first, x, weight, bias, y } = self;
        let ((h, w), (oh, ow)) = (conv.input, conv.output);
        let outs = conv.channels.1 / conv.config.groups;
        let copies = taps.copies(0, oh);
        let mut seen = vec![T::Sum::default(); taps.len(oh, WIDEST)];
        let mut scratch = Vec::new();
        for (i, (x, y)) in x.chunks_exact(h * w).zip(y.chunks_exact_mut(outs * oh * ow)).enumerate() {
            copies.run(x, &mut seen);
            let channel = (first + i) % conv.channels.0 * outs;
            for (channel, y) in (channel..).zip(y.chunks_exact_mut(oh * ow)) {
                let n = taps.offsets.len();
                let weight = T::widened(&weight[channel * n..][..n], &mut scratch);
                for (i, y) in y.chunks_mut(ROWS * ow).enumerate() {
                    rows_of::<T, S>(simd, conv, taps, &seen[i * ROWS * taps.row()..], weight, (channel, bias), y);
                }
            }
        }
    }
}

/// Computes up to [`ROWS`] output rows of one channel.
#[inline(always)]
fn rows_of<T: Element, S: Simd>(
    simd: S,
    conv: &Conv,
    taps: &Taps,
    seen: &[T::Sum],
    weight: &[T::Sum],
    (channel, bias): (usize, Option<&[T]>),
    y: &mut [T],
) {
    let (ow, lanes) = (conv.output.1, T::Sum::lanes::<S>());
    // Rows past the last one repeat it, and are dropped.
    let last = y.len() / ow - 1;
    let rows: [usize; ROWS] = std::array::from_fn(|row| row.min(last) * taps.row());
    for start in (0..ow).step_by(lanes) {
        let mut sums = [T::Sum::splat(simd, T::Sum::default()); ROWS];
        for (&offset, &weight) in taps.offsets.iter().zip(weight) {
            let weight = T::Sum::splat(simd, weight);
            for (row, sum) in rows.iter().zip(&mut sums) {
                let tap = &seen[row + offset + start..][..lanes];
                *sum = T::Sum::mul_add(simd, weight, T::Sum::vectors::<S>(tap)[0], *sum);
            }
        }
        for (sum, y) in sums.into_iter().zip(y.chunks_exact_mut(ow)) {
            let mut row = [T::Sum::default(); WIDEST];
            T::Sum::vectors_mut::<S>(&mut row[..lanes])[0] = sum;
            let n = lanes.min(ow - start);
            finish(conv, bias, channel, &mut row[..n], &mut y[start..start + n]);
        }
    }
}
