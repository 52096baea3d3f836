//! What the examples and benches share: options, tokens, and one way to measure and to print.

mod latencies;
mod options;
mod tokens;

pub use latencies::{Latencies, Run};
pub use options::Options;
pub use tokens::{Tokenizer, Tokens};
