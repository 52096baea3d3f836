//! Puts other operators in the place of what a module called: computes graphs of values with this library's operators, and holds
//! the results against double precision.
//!
//! Which graphs and which rules is [`opara_plan::rewrite`]'s matter; how the launches of a computed graph take the place of
//! recorded ones is a device's.

pub(crate) mod accuracy;
mod alone;
mod at_position;
mod attending;
mod attention;
mod batch_norm;
mod by_elements;
pub(crate) mod choice;
mod elementwise;
pub(crate) mod evaluate;
mod evaluation;
mod experts;
mod folds;
pub(crate) mod gradient;
mod indexed;
pub(crate) mod join;
pub(crate) mod joined;
mod judgement;
mod log_softmax;
mod norms;
#[cfg(feature = "cuda")]
mod opaque;
mod operators;
mod quantized;
mod scatter;
pub(crate) mod set;
mod settling;
mod strided;
#[cfg(test)]
mod tests;
mod transposed;
mod verdicts;
mod windows;
