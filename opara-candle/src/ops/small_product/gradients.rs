//! Gradients of a small product.

use candle::Tensor;

/// Gradients of the operands of a product: rows, the weight, and a bias.
pub(crate) struct SmallGradients {
    /// That of the rows, if it is asked for.
    pub x: Option<Tensor>,
    pub weight: Tensor,
    pub bias: Tensor,
}
