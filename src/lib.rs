//! What the examples and benches share: options, tokens, tables, and one way to measure and to print.

mod categories;
mod hash;
mod latencies;
mod options;
mod tokens;

pub use categories::Categories;
pub use latencies::{Latencies, Run};
pub use options::Options;
pub use tokens::{Tokenizer, Tokens};
