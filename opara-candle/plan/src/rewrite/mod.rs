//! Replaces the operators that a module called with faster ones.
//!
//! [`regions`] finds runs of consecutive ops whose meaning is known, and makes a [`Graph`] of values of each. [`rules`] change a graph. A
//! recorder that knows the device turns the changed graph into launches again.

mod affine;
mod append;
mod at_position;
mod changes;
mod common_step;
mod compute;
mod constants;
mod errors;
mod graph;
mod growing;
mod growth;
mod heads;
mod item;
mod matched;
mod outcome;
mod over_capacity;
mod padded;
mod pairs;
mod parts;
mod region;
pub mod rules;
mod run;
mod scores;
mod segments;
mod several;
mod stretch;
#[cfg(test)]
mod tests;
mod tokens;
mod whole;

pub use at_position::AtPosition;
pub use changes::Changes;
pub use compute::{ByPosition, Compute, Convolution, ProductEnd, Step};
pub use errors::{Compared, Errors};
pub use graph::{strides_over, Graph, Input, Node, Operand, Output, ProductPrecision, Value};
pub use growth::{Cache, Counted, Grown, Growth, Inputs, Recorded, Source};
pub use item::{first_item, Item};
pub use matched::matched;
pub use outcome::{Decision, Outcome, Standing};
pub use region::{regions, Region};
pub use scores::{Mask, Scores};
pub use segments::Segments;
pub use whole::{whole, whole_with, Opaque, Whole};
