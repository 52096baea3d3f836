//! Common code of the examples, the benches and the program `opara`: options, tokens, pictures, tables, and running,
//! measuring and printing.

#[cfg(doctest)]
mod book;
mod categories;
mod classify;
mod difference;
mod ending;
mod hash;
mod latencies;
mod model;
mod native;
mod options;
mod picture;
mod tokens;
mod variables;
mod warnings;
mod writable;

pub use categories::Categories;
pub use classify::Classify;
pub use difference::relative_error;
pub use ending::{exit_code, reader_left};
pub use latencies::{Latencies, Run};
pub use model::{Model, Show};
pub use native::Native;
pub use options::{types, Options};
pub use picture::{Interpolation, Preprocess};
pub use tokens::{Tokenizer, Tokens};
pub use variables::variables;
pub use warnings::warnings;
pub use writable::check_writable;
