//! What attention makes of products of queries and keys.

/// How scores follow from products.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scores {
    /// What products are multiplied by.
    pub scale: f64,
    /// The factor of the hyperbolic tangent of that, if there is one.
    pub cap: Option<f64>,
    /// What the bias does.
    pub bias: Bias,
    /// Whether 16-bit operands are as if they were converted to f32, and the result back. The bias is in f32 then.
    pub in_f32: bool,
    /// Whether a head's results lie one after the other, and not all heads' of a query: for who reads them so.
    pub by_heads: bool,
}

/// What a bias does to scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bias {
    /// It is added.
    Added,
    /// It is added, but scores are minus infinity, whatever they were, where the bias is.
    Hides,
    /// Scores are the bias where that is not 0.
    Replaces,
    /// Its rows are twice as long: the first half is added, but scores are the second one where that is not 0.
    Both,
}

impl Bias {
    /// Elements of a row for a number of keys.
    pub fn row(self, keys: usize) -> usize {
        if self == Bias::Both {
            2 * keys
        } else {
            keys
        }
    }
}
