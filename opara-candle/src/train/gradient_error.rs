//! How accurate a gradient is.

/// How far a variable's gradient is from double precision, relative to the root of its mean square.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct GradientError {
    /// The variable.
    pub name: String,
    /// That of the trainer.
    pub ours: f64,
    /// That of the launches as candle has them, differentiated one by one.
    pub candles: f64,
}
