//! Other operators in the place of those that a module called: which run of ops computes what, and the rules that put something
//! faster there.
//!
//! [`regions`] finds runs of consecutive ops whose meaning is known, each as a [`Graph`] of values. [`rules`] change a graph. A
//! recorder that knows the device turns the changed graph into launches again.

mod append;
mod changes;
mod graph;
mod growth;
mod inside;
mod item;
mod matched;
mod outcome;
mod region;
pub mod rules;
#[cfg(test)]
mod tests;

pub use changes::Changes;
pub use graph::{
    strides_over, Compute, Convolution, Graph, Input, Node, Operand, Output, ProductPrecision, Step, Value,
};
pub use growth::{Cache, Growth, Recorded, Source};
pub use inside::{behind, last_of_many, Behind};
pub use item::{first_item, Item};
pub use matched::matched;
pub use outcome::{Decision, Outcome, Standing};
pub use region::{regions, whole, Region, Whole};
