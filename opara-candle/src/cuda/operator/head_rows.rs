//! Where the heads of queries, keys and values lie.

use candle::{DType, Layout};

use crate::cuda::driver::kernels::wide;

/// The memory layout of `q`, `k` or `v`: `(batch, heads, tokens, dim)` with contiguous rows that begin at multiples of
/// 16 bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadRows {
    dims: [usize; 4],
    /// Strides, in elements, of batch, head and token.
    strides: [usize; 3],
}

impl HeadRows {
    /// `None` if the layout does not meet these conditions, or if a size or stride exceeds the kernel's index range.
    pub fn of(layout: &Layout, dtype: DType) -> Option<Self> {
        let wide = wide(dtype);
        let dims = <[usize; 4]>::try_from(layout.dims()).ok()?;
        let &[batch, head, token, along] = layout.stride() else { return None };
        let strides = [batch, head, token];
        let is_aligned = strides.iter().zip(dims).all(|(stride, dim)| dim == 1 || stride.is_multiple_of(wide));
        let fits = along == 1 && is_aligned && layout.start_offset().is_multiple_of(wide);
        let most = [1 << 16, 1 << 16, 1 << 31].iter().zip(dims).all(|(&most, dim)| dim < most);
        let are_counted = most && strides.iter().all(|&stride| stride <= u32::MAX as usize);
        (fits && are_counted).then_some(Self { dims, strides })
    }

    /// Batch, heads, tokens, elements of a row.
    pub fn dims(&self) -> [usize; 4] {
        self.dims
    }

    /// Elements from one item, head and token to the next.
    pub fn strides(&self) -> [usize; 3] {
        self.strides
    }
}
