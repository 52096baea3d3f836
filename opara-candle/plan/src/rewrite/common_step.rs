//! The common step of passes behind texts of different lengths.

use super::graph::{Graph, Value};
use super::growing::Growing;
use super::growth::{Growth, Inputs};
use super::pairs::Pairs;

impl Growth {
    /// The common step of passes behind texts of these lengths. The same rules rewrite the graphs.
    ///
    /// # Errors
    /// A difference that does not come from the length alone in a way that is known.
    pub fn of(graphs: [&Graph; 2], lengths: [u64; 2], inputs: &Inputs) -> Result<Self, String> {
        let pairs = Pairs::new(graphs, lengths, inputs)?;
        Growing::new(&pairs)?.grown()
    }

    /// The inputs that a step rewrites whole, of passes behind texts of these lengths: others that it leaves grow with the text.
    ///
    /// # Errors
    /// Passes that cannot be compared.
    pub fn states(graphs: [&Graph; 2], lengths: [u64; 2], inputs: &Inputs) -> Result<Vec<(usize, Value)>, String> {
        let pairs = Pairs::new(graphs, lengths, inputs)?;
        Ok(pairs.states())
    }
}
