//! How windows lie over planes.

use serde::{Deserialize, Serialize};

/// How a convolution or a pool moves over `(batch, channels, h, w)`. Pairs are rows and columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Window {
    /// Size of a window; for a convolution, of the weight.
    pub kernel: [u64; 2],
    /// Rows and columns of zeros at opposite edges.
    pub padding: [u64; 2],
    /// Elements from one window to the next.
    pub stride: [u64; 2],
    /// Distance between neighbouring elements of a window.
    pub dilation: [u64; 2],
    /// Groups of channels.
    pub groups: u64,
}

impl Window {
    /// The same over planes of this size with one stride and one dilation for rows and columns, if there is such a window: where a window
    /// has one element its dilation is of no account, and where there is room for one window, its stride.
    pub fn square(self, plane: [u64; 2]) -> Option<Self> {
        let mut square = self;
        for (axis, other) in [(0, 1), (1, 0)] {
            if self.kernel[axis] == 1 {
                square.dilation[axis] = self.dilation[other];
            }
            let padded = self.padding[axis].checked_mul(2)?.checked_add(plane[axis])?;
            let reach = self.kernel[axis].checked_sub(1)?.checked_mul(self.dilation[axis])?;
            if padded == reach.checked_add(1)? {
                square.stride[axis] = self.stride[other];
            }
        }
        let is_square = |pair: [u64; 2]| pair[0] == pair[1];
        (is_square(square.stride) && is_square(square.dilation)).then_some(square)
    }

    /// Rows and columns of the result of a transposed convolution of a plane of this size, if it has any; `None` also if they exceed
    /// 64 bits.
    pub fn transposed(&self, plane: [u64; 2], output_padding: [u64; 2]) -> Option<[u64; 2]> {
        let along = |axis: usize| {
            let last = plane[axis].checked_sub(1)?.checked_mul(self.stride[axis])?;
            let reach = self.kernel[axis].checked_sub(1)?.checked_mul(self.dilation[axis])?;
            let all = last.checked_add(reach)?.checked_add(1)?.checked_add(output_padding[axis])?;
            all.checked_sub(self.padding[axis].checked_mul(2)?).filter(|&len| len > 0)
        };
        Some([along(0)?, along(1)?])
    }

    /// Rows and columns of windows over a plane of this size; `None` if there is no room for one.
    pub fn windows(&self, plane: [u64; 2]) -> Option<[u64; 2]> {
        let along = |axis: usize| {
            let padded = self.padding[axis].checked_mul(2)?.checked_add(plane[axis])?;
            let reach = self.kernel[axis].checked_sub(1)?.checked_mul(self.dilation[axis])?.checked_add(1)?;
            Some(padded.checked_sub(reach)?.checked_div(self.stride[axis])? + 1)
        };
        Some([along(0)?, along(1)?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_along_one_axis_have_one_stride_and_one_dilation() {
        let of = |kernel, padding, stride, dilation| Window { kernel, padding, stride, dilation, groups: 1 };
        let along_rows = of([7, 1], [9, 0], [1, 1], [3, 1]);
        assert_eq!(along_rows.square([688, 1]), Some(Window { dilation: [3, 3], ..along_rows }));
        let strided = of([3, 1], [1, 0], [2, 1], [1, 1]);
        assert_eq!(strided.square([100, 1]), Some(Window { stride: [2, 2], ..strided }));
        // There is another window beside it, and an element whose distance counts.
        assert_eq!(strided.square([100, 2]), None);
        assert_eq!(of([3, 3], [1, 1], [1, 1], [2, 1]).square([100, 100]), None);
        let even = of([3, 3], [1, 1], [2, 2], [1, 1]);
        assert_eq!(even.square([100, 100]), Some(even));
    }

    #[test]
    fn a_transposed_convolution_spreads_windows() {
        let window = |kernel, padding, stride, dilation| Window {
            kernel: [kernel, 1],
            padding: [padding, 0],
            stride: [stride, 1],
            dilation: [dilation, 1],
            groups: 1,
        };
        assert_eq!(window(4, 1, 2, 1).transposed([5, 1], [0, 0]), Some([10, 1]));
        assert_eq!(window(3, 0, 2, 2).transposed([5, 1], [1, 0]), Some([14, 1]));
        assert_eq!(window(2, 1, 1, 1).transposed([1, 1], [0, 0]), None, "nothing is left");
        assert_eq!(window(2, 0, 1 << 60, 1).transposed([1 << 10, 1], [0, 0]), None, "beyond 64 bits");
    }

    #[test]
    fn windows_are_counted_with_their_padding() {
        let of = |kernel, padding, stride, dilation| Window { kernel, padding, stride, dilation, groups: 1 };
        assert_eq!(of([3, 2], [1, 0], [2, 1], [1, 3]).windows([7, 9]), Some([4, 6]));
        assert_eq!(of([5, 1], [0, 0], [1, 1], [2, 1]).windows([8, 1]), None, "no room");
        assert_eq!(of([1, 1], [0, 0], [0, 1], [1, 1]).windows([8, 1]), None, "no step");
    }
}
