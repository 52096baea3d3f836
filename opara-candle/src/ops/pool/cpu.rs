//! Max and mean pooling on the CPU.

use candle::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, WithDType};
use pulp::{Arch, Simd, WithSimd};

use super::kind::PoolKind;
use crate::cpu::kernels::{each, elements, joined, larger, Element, Sum, Taps, Windows, WIDEST, WORTH_A_THREAD};
use crate::gradient::applied;
use crate::ops::PoolConfig;

/// Operations per parallel task.
const TASK: usize = 100_000;

/// Pools `x`.
pub(super) fn pool(x: &Tensor, kind: PoolKind, config: PoolConfig) -> Result<Tensor> {
    applied(&x.contiguous()?, &Pool { kind, config })
}

/// The custom operator; its operand is contiguous.
struct Pool {
    kind: PoolKind,
    config: PoolConfig,
}

impl CustomOp1 for Pool {
    fn name(&self) -> &'static str {
        match self.kind {
            PoolKind::Max => "max_pool2d",
            PoolKind::Mean => "avg_pool2d",
        }
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (batch, channels, h, w) = layout.shape().dims4()?;
        let (oh, ow) = self.config.output((h, w))?;
        macro_rules! run {
            ($t:ty) => {{
                let x = elements::<$t>(x, layout)?;
                <$t as candle::WithDType>::to_cpu_storage_owned(pool2d(self.kind, &self.config, (h, w), x)?)
            }};
        }
        let y = of_floats!(x, run, "pool");
        Ok((y, (batch, channels, oh, ow).into()))
    }
}

/// Pools contiguous planes of the given size.
///
/// # Errors
/// A window that does not fit.
fn pool2d<T: Element>(kind: PoolKind, config: &PoolConfig, size: (usize, usize), x: &[T]) -> Result<Vec<T>> {
    let output = config.output(size)?;
    let (plane, out, p) = (size.0 * size.1, output.0 * output.1, config.padding);
    let windows = Windows {
        input: size,
        window: (config.kernel, config.kernel),
        output,
        stride: config.stride,
        dilation: 1,
        before: (p.top, p.left),
    };
    let taps = Taps::new(windows);
    let counts = |outputs: usize, size: usize, before: usize, after: usize| -> Vec<T::Sum> {
        (0..outputs).map(|index| T::Sum::from_f64(config.counted(index, size, before, after) as f64)).collect()
    };
    let counts = (counts(output.0, size.0, p.top, p.bottom), counts(output.1, size.1, p.left, p.right));
    let work = out * taps.offsets.len();
    let mut y = vec![T::zero(); x.len() / plane * out];
    let per_task = TASK.div_ceil(work);
    let tasks = x.chunks(per_task * plane).zip(y.chunks_mut(per_task * out)).collect();
    each(x.len() / plane * work > WORTH_A_THREAD, tasks, |(x, y)| {
        Arch::new().dispatch(Planes { kind, taps: &taps, output, counts: &counts, x, plane, y });
    });
    Ok(y)
}

struct Planes<'a, T: Element> {
    kind: PoolKind,
    taps: &'a Taps,
    output: (usize, usize),
    /// The divisor of a mean is the product of its row count and its column count.
    counts: &'a (Vec<T::Sum>, Vec<T::Sum>),
    x: &'a [T],
    plane: usize,
    y: &'a mut [T],
}

impl<T: Element> WithSimd for Planes<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        match self.kind {
            PoolKind::Max => self.run(T::Sum::NEG_INFINITY, larger),
            PoolKind::Mean => self.run(T::Sum::default(), |a, b| a + b),
        }
    }
}

impl<T: Element> Planes<'_, T> {
    /// Reduces each window with `join`, from `start`.
    #[inline(always)]
    fn run(self, start: T::Sum, join: impl Fn(T::Sum, T::Sum) -> T::Sum) {
        let Self { kind, taps, output: (oh, ow), counts, x, plane, y } = self;
        if taps.is_one_whole_plane() {
            let mut scratch = Vec::new();
            for (x, y) in x.chunks_exact(plane).zip(y) {
                let all = joined(T::widened(x, &mut scratch), start, &join);
                let all = if kind == PoolKind::Mean { all / (counts.0[0] * counts.1[0]) } else { all };
                T::narrow(&[all], std::slice::from_mut(y));
            }
            return;
        }
        let copies = taps.copies(0, oh);
        let mut seen = vec![start; taps.len(oh, WIDEST)];
        for (x, y) in x.chunks_exact(plane).zip(y.chunks_exact_mut(oh * ow)) {
            copies.run(x, &mut seen);
            for (row, y) in y.chunks_exact_mut(ow).enumerate() {
                for (i, y) in y.chunks_mut(WIDEST).enumerate() {
                    let seen = &seen[row * taps.row() + i * WIDEST..];
                    let mut of = [start; WIDEST];
                    for &offset in &taps.offsets {
                        for (of, &x) in of.iter_mut().zip(&seen[offset..offset + WIDEST]) {
                            *of = join(*of, x);
                        }
                    }
                    if kind == PoolKind::Mean {
                        for (of, &columns) in of.iter_mut().zip(&counts.1[i * WIDEST..]) {
                            *of /= counts.0[row] * columns;
                        }
                    }
                    T::narrow(&of[..y.len()], y);
                }
            }
        }
    }
}
