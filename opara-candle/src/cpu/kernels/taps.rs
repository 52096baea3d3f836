//! What the elements of a window see of a plane.

use super::element::{Element, Sum};

/// How windows lie on a plane.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Windows {
    /// Height and width of the plane, of a window, and of what windows there are.
    pub input: (usize, usize),
    pub window: (usize, usize),
    pub output: (usize, usize),
    pub stride: usize,
    pub dilation: usize,
    /// Rows and columns of padding before the plane.
    pub before: (usize, usize),
}

/// A plane as windows see it: padded, and its columns sorted by their remainder modulo the stride. So what one tap, an
/// element of each window, sees along a row of windows is contiguous.
pub(crate) struct Taps {
    windows: Windows,
    /// Columns of one remainder.
    pitch: usize,
    /// Where each tap of the first window is.
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

    /// Whether there is one window, and it sees all of the plane and nothing else.
    pub fn is_one_whole_plane(&self) -> bool {
        let Windows { input, window, output, dilation, before, .. } = self.windows;
        (output, dilation, before) == ((1, 1), 1, (0, 0)) && input == window
    }

    /// Elements from a row of windows to the next.
    pub fn row(&self) -> usize {
        self.windows.stride * self.windows.stride * self.pitch
    }

    /// Elements that so many rows of windows see, and `slack` behind them.
    pub fn len(&self, rows: usize, slack: usize) -> usize {
        (rows - 1) * self.row() + self.rows_of_a_window() * self.windows.stride * self.pitch + slack
    }

    fn rows_of_a_window(&self) -> usize {
        (self.windows.window.0 - 1) * self.windows.dilation + 1
    }

    /// What has to be copied from a plane for rows of windows from `first` on: the rest is padding, and stays.
    pub fn copies(&self, first: usize, rows: usize) -> Copies {
        let Windows { input: (h, w), window: (kh, kw), stride, dilation, before: (top, left), .. } = self.windows;
        let seen = |taps: usize, remainder: usize| (0..taps).any(|tap| tap * dilation % stride == remainder);
        let mut copies = Vec::new();
        for row in 0..(rows - 1) * stride + self.rows_of_a_window() {
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

/// What to copy from a plane.
pub(crate) struct Copies {
    stride: usize,
    /// From where, to where, how many.
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

/// The larger one, or the one that is not a number.
#[inline(always)]
pub(crate) fn larger<A: Sum>(a: A, b: A) -> A {
    #[allow(clippy::eq_op)]
    match a >= b || a != a {
        true => a,
        false => b,
    }
}
