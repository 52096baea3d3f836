//! Gathers the elements of a plane that sliding windows read.

use super::element::{Element, Sum};

/// The geometry of windows on a plane.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Windows {
    /// Height and width of the plane, of one window, and of the grid of windows.
    pub input: (usize, usize),
    pub window: (usize, usize),
    pub output: (usize, usize),
    pub stride: usize,
    pub dilation: usize,
    /// Rows and columns of padding before the plane.
    pub before: (usize, usize),
}

/// A rearranged plane: padded, with its columns grouped by their remainder modulo the stride. This makes the elements
/// of one tap (one position in the window) contiguous along a row of windows.
pub(crate) struct Taps {
    windows: Windows,
    /// Columns per remainder.
    pitch: usize,
    /// The offset of each tap of the first window.
    pub offsets: Vec<usize>,
}

impl Taps {
    pub fn new(windows: Windows) -> Self {
        let Windows { window: (kh, kw), output, stride, dilation, .. } = windows;
        let pitch = output.1 + (kw - 1) * dilation / stride;
        let offset = |tap: usize| {
            let (row, column) = (tap / kw * dilation, tap % kw * dilation);
            (row * stride + column % stride) * pitch + column / stride
        };
        Self { windows, pitch, offsets: (0..kh * kw).map(offset).collect() }
    }

    /// Is there exactly one window, equal to the whole plane?
    pub fn is_one_whole_plane(&self) -> bool {
        let Windows { input, window, output, dilation, before, .. } = self.windows;
        (output, dilation, before) == ((1, 1), 1, (0, 0)) && input == window
    }

    /// Elements from one row of windows to the next.
    pub fn row(&self) -> usize {
        self.windows.stride * self.windows.stride * self.pitch
    }

    /// Elements of the rearranged plane for this many rows of windows, plus `slack`.
    pub fn len(&self, rows: usize, slack: usize) -> usize {
        (rows - 1) * self.row() + self.window_rows() * self.windows.stride * self.pitch + slack
    }

    fn window_rows(&self) -> usize {
        (self.windows.window.0 - 1) * self.windows.dilation + 1
    }

    /// The copies from a plane for rows of windows from `first` on. Everything else is padding, and keeps its value.
    pub fn copies(&self, first: usize, rows: usize) -> Copies {
        let Windows { input: (h, w), window: (kh, kw), stride, dilation, before: (top, left), .. } = self.windows;
        let seen = |taps: usize, remainder: usize| (0..taps).any(|tap| tap * dilation % stride == remainder);
        let mut copies = Vec::new();
        for row in 0..(rows - 1) * stride + self.window_rows() {
            let Some(from) = (first * stride + row).checked_sub(top).filter(|&from| from < h) else { continue };
            if !seen(kh, row % stride) {
                continue;
            }
            for remainder in (0..stride).filter(|&remainder| seen(kw, remainder)) {
                let start = left.saturating_sub(remainder).div_ceil(stride);
                let end = (left + w).saturating_sub(remainder).div_ceil(stride).min(self.pitch);
                if start < end {
                    let from = from * w + start * stride + remainder - left;
                    copies.push((from, (row * stride + remainder) * self.pitch + start, end - start));
                }
            }
        }
        Copies { stride, copies }
    }
}

/// The copies from a plane to its rearranged form.
pub(crate) struct Copies {
    stride: usize,
    /// (source offset, destination offset, number of elements).
    copies: Vec<(usize, usize, usize)>,
}

impl Copies {
    #[inline(always)]
    pub fn run<T: Element>(&self, plane: &[T], seen: &mut [T::Sum]) {
        for &(from, to, n) in &self.copies {
            match self.stride {
                1 => T::widen(&plane[from..from + n], &mut seen[to..to + n]),
                stride => T::widen_strided(&plane[from..], stride, &mut seen[to..to + n]),
            }
        }
    }
}

/// The larger of the two; NaN if either is NaN.
#[inline(always)]
pub(crate) fn larger<A: Sum>(a: A, b: A) -> A {
    #[allow(clippy::eq_op)]
    match a >= b || a != a {
        true => a,
        false => b,
    }
}
