//! Convolution of one group as a matmul: the weight `(out, k)` times the im2col matrix `(k, windows)`.
//!
//! The im2col matrix is never stored whole: some columns at a time are packed into panels two SIMD vectors wide.

use pulp::{Arch, Simd, WithSimd};

use super::shapes::{finish, Conv};
use crate::cpu::kernels::{each, lanes, multiply, rows_at_once, Element, Sum, Taps, PANEL, VECTORS};

/// Elements of the panels packed at a time: in f32 they fill a core's L2 cache.
const PACKED_ELEMENTS: usize = 1 << 18;

/// Maximum output rows that are accumulated side by side.
const ROWS: usize = 8;

/// Panels per parallel task.
const PANELS: usize = 8;

/// The matmul of one group; the same for every group and batch item.
pub(super) struct Product<'a> {
    conv: &'a Conv,
    taps: Taps,
    channels: usize,
    k: usize,
    /// Columns of the im2col matrix: one per window.
    n: usize,
}

/// Operands of one group of one batch item.
#[derive(Clone, Copy)]
pub(super) struct Group<'a, T> {
    pub x: &'a [T],
    pub weight: &'a [T],
    pub bias: Option<&'a [T]>,
}

/// A block of the output: up to [`ROWS`] rows and up to [`PANELS`] panels of columns.
struct Block<'a, T> {
    row: usize,
    panel: usize,
    y: Vec<&'a mut [T]>,
}

impl<'a> Product<'a> {
    pub fn new(conv: &'a Conv) -> Self {
        let channels = conv.channels.0 / conv.config.groups;
        let k = channels * conv.window.0 * conv.window.1;
        Self { conv, taps: Taps::new(conv.windows()), channels, k, n: conv.output.0 * conv.output.1 }
    }

    /// Computes `y`, the group's output planes.
    pub fn run<T: Element>(&self, group: Group<T>, on_threads: bool, y: &mut [T]) {
        let width = VECTORS * lanes::<T::Sum>();
        // One row of slack: copies of whole vectors may write past a panel's last row.
        let panel = (self.k + 1) * width;
        let panels = (PACKED_ELEMENTS / panel).clamp(1, self.n.div_ceil(width));
        T::Sum::scratch(panels * panel, |packed| self.run_in(packed, width, group, on_threads, y));
    }

    /// The same, with scratch memory for some panels of `width` columns.
    fn run_in<T: Element>(&self, packed: &mut [T::Sum], width: usize, group: Group<T>, on_threads: bool, y: &mut [T]) {
        let panel = (self.k + 1) * width;
        let panels = packed.len() / panel;
        for start in (0..self.n).step_by(panels * width) {
            let end = (start + panels * width).min(self.n);
            let panels = (end - start).div_ceil(width);
            let per_task = self.panels_per_task(panels, width);
            let tasks = packed[..panels * panel].chunks_mut(per_task * panel).enumerate().collect();
            each(on_threads, tasks, |(i, to)| {
                let start = start + i * per_task * width;
                let end = (start + per_task * width).min(end);
                Arch::new().dispatch(Pack { product: self, x: group.x, windows: (start, end), panel, to });
            });
            let packed = &packed[..];
            each(on_threads, self.blocks(y, (start, end), width), |block| {
                let panels = &packed[block.panel * panel..];
                Arch::new().dispatch(Multiply { product: self, group, panels, panel, block });
            });
        }
    }

    /// Panels per packing task. One task packs the windows of the same image rows, so that it reads the rows once.
    fn panels_per_task(&self, panels: usize, width: usize) -> usize {
        match self.conv.is_pointwise() {
            true => panels.div_ceil(4),
            false => (2 * self.conv.output.1).div_ceil(width).clamp(1, panels),
        }
    }

    /// Splits columns `start` to `end` of `y` into blocks.
    fn blocks<'y, T>(&self, y: &'y mut [T], (start, end): (usize, usize), width: usize) -> Vec<Block<'y, T>> {
        let mut blocks: Vec<Block<T>> = Vec::new();
        for (i, rows) in y.chunks_mut(ROWS * self.n).enumerate() {
            let first = blocks.len();
            for row in rows.chunks_mut(self.n) {
                for (j, y) in row[start..end].chunks_mut(PANELS * width).enumerate() {
                    if blocks.len() == first + j {
                        blocks.push(Block { row: i * ROWS, panel: j * PANELS, y: Vec::with_capacity(ROWS) });
                    }
                    blocks[first + j].y.push(y);
                }
            }
        }
        blocks
    }
}

/// Packs the im2col columns of some windows into panels.
struct Pack<'a, T: Element> {
    product: &'a Product<'a>,
    x: &'a [T],
    windows: (usize, usize),
    panel: usize,
    to: &'a mut [T::Sum],
}

impl<T: Element> WithSimd for Pack<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { product: Product { conv, taps, channels, n, .. }, x, windows: (start, end), panel, to } = self;
        let lanes = T::Sum::lanes::<S>();
        let width = VECTORS * lanes;
        if conv.is_pointwise() {
            for (i, to) in to.chunks_exact_mut(panel).enumerate() {
                let start = start + i * width;
                for (x, to) in x.chunks_exact(*n).zip(to.chunks_exact_mut(width)) {
                    match x[start..].first_chunk::<PANEL>() {
                        Some(x) if start + width <= end => T::widen(&x[..width], to),
                        _ => T::widen(&x[start..end.min(start + width)], &mut to[..end.min(start + width) - start]),
                    }
                }
            }
            return;
        }
        let plane = conv.input.0 * conv.input.1;
        let ow = conv.output.1;
        let (top, bottom) = (start / ow, (end - 1) / ow + 1);
        let copies = taps.copies(top, bottom - top);
        let mut seen = vec![T::Sum::default(); taps.len(bottom - top, lanes)];
        // For each run of windows in one image row and one panel: destination, source of the first tap, number of
        // windows.
        let mut runs = Vec::new();
        let mut at = start;
        while at < end {
            let (i, row) = ((at - start) / width, at / ow);
            let stop = ((row + 1) * ow).min(start + (i + 1) * width).min(end);
            runs.push((i * panel + (at - start) % width, (row - top) * taps.row() + at % ow, stop - at));
            at = stop;
        }
        for channel in 0..*channels {
            copies.run(&x[channel * plane..][..plane], &mut seen);
            for (tap, offset) in taps.offsets.iter().enumerate() {
                let to = &mut to[(channel * taps.offsets.len() + tap) * width..];
                for &(at, from, n) in &runs {
                    // Copies whole vectors; the next run overwrites the excess.
                    for i in (0..n).step_by(lanes) {
                        to[at + i..][..lanes].copy_from_slice(&seen[offset + from + i..][..lanes]);
                    }
                }
            }
        }
    }
}

/// Multiplies a block of weight rows with some panels.
struct Multiply<'a, 'y, T: Element> {
    product: &'a Product<'a>,
    group: Group<'a, T>,
    panels: &'a [T::Sum],
    panel: usize,
    block: Block<'y, T>,
}

impl<T: Element> WithSimd for Multiply<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (k, rows) = (self.product.k, self.block.y.len());
        let mut scratch = Vec::new();
        let weight = T::widened(&self.group.weight[self.block.row * k..][..rows * k], &mut scratch);
        let mut row = 0;
        while row < rows {
            row += match rows_at_once::<S>(rows - row) {
                8 => self.rows::<S, 8>(simd, weight, row),
                4 => self.rows::<S, 4>(simd, weight, row),
                2 => self.rows::<S, 2>(simd, weight, row),
                _ => self.rows::<S, 1>(simd, weight, row),
            };
        }
    }
}

impl<T: Element> Multiply<'_, '_, T> {
    /// Computes `R` rows from `row` on, for all panels.
    #[inline(always)]
    fn rows<S: Simd, const R: usize>(&mut self, simd: S, weight: &[T::Sum], row: usize) -> usize {
        let (k, lanes) = (self.product.k, T::Sum::lanes::<S>());
        let weight: [&[T::Sum]; R] = std::array::from_fn(|r| &weight[(row + r) * k..][..k]);
        let windows = self.block.y[row].len();
        for (i, start) in (0..windows).step_by(VECTORS * lanes).enumerate() {
            let panel = &self.panels[i * self.panel..][..k * VECTORS * lanes];
            let n = (windows - start).min(VECTORS * lanes);
            let mut sums = [[T::Sum::default(); PANEL]; R];
            match n > lanes {
                true => multiply::<T::Sum, S, R, VECTORS, VECTORS, _>(simd, weight, panel, &mut sums, &[]),
                false => multiply::<T::Sum, S, R, 1, VECTORS, _>(simd, weight, panel, &mut sums, &[]),
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let channel = self.block.row + row + r;
                let y = &mut self.block.y[row + r][start..start + n];
                finish(self.product.conv, self.group.bias, channel, &mut sums[..n], y);
            }
        }
        R
    }
}
