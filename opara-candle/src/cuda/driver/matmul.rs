//! The description of a matmul with a weight, for every implementation.

use candle::DType;
use opara_plan::rewrite::ProductPrecision;

use crate::activation::Activation;

/// `activation(x * weight^T + bias)` of contiguous row-major matrices, in one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Matmul {
    /// Dtype of all operands: f32, f16 or bf16.
    pub dtype: DType,
    /// How products of f32 are computed.
    pub precision: ProductPrecision,
    /// Rows of `x` and `y`.
    pub rows: usize,
    /// Columns of `x` and of the weight.
    pub inner: usize,
    /// Rows of the weight, columns of `y`.
    pub columns: usize,
    /// Is a bias added to each row?
    pub bias: bool,
    /// Applied to the result.
    pub activation: Activation,
}

impl Matmul {
    /// Has the result at least 2,048 tiles of 64 x 64? They keep 132 multiprocessors busy several times over, so that split-k does not
    /// pay, and a library's first algorithm is hardly slower than another one.
    pub fn is_large(&self) -> bool {
        const TILE: usize = 64;
        const MANY: usize = 2048;
        self.rows.div_ceil(TILE).saturating_mul(self.columns.div_ceil(TILE)) >= MANY
    }

    /// Do its multiplications take no time beside its launch? Then products that leave out bits of f32 gain nothing.
    pub fn is_tiny(&self) -> bool {
        const FEW: usize = 1 << 19;
        self.rows.saturating_mul(self.columns).saturating_mul(self.inner) <= FEW
    }
}

/// `factor * x * weight + bias + to` of contiguous row-major matrices, in one call. All but the product may be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ProductSum {
    /// Dtype of all operands: f16 or bf16.
    pub dtype: DType,
    /// Rows of `x`, `to` and the result.
    pub rows: usize,
    /// Columns of `x`.
    pub inner: usize,
    /// Columns of `to` and of the result.
    pub columns: usize,
    /// Is `x` the transpose of what lies in memory, `(inner, rows)`?
    pub is_turned: bool,
    /// Is the weight `(columns, inner)`, and not `(inner, columns)`?
    pub is_by_rows: bool,
    /// Is a bias added to each row?
    pub has_bias: bool,
    /// Is there `to`?
    pub has_summand: bool,
}
