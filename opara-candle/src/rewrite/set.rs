//! The operands and results of a run, and the same results in double precision.

use candle::{DType, Result, Tensor};
use hashbrown::HashSet;
use opara_plan::rewrite::rules::{self, RULES};
use opara_plan::rewrite::Graph;

use super::accuracy::has_no_finite;
use super::evaluate::{evaluate, Arithmetic, Numbers};

/// The operands and results of a run.
pub(crate) struct Set {
    pub(super) inputs: Vec<Tensor>,
    pub(super) outputs: Vec<Tensor>,
    /// The same outputs in double precision.
    pub(super) references: Vec<Tensor>,
    /// Whether only the finite numbers count: candle gave no others.
    pub(super) numbers: Numbers,
    /// candle's outputs, if `outputs` were computed anew.
    pub(super) recorded: Option<Vec<Tensor>>,
}

impl Set {
    /// Of a run that gave these outputs. If one of them has no finite number, the run is computed once more by candle's operators,
    /// with zeros in the place of what is not finite: BERT's mask in f16, 0 times minus infinity, makes everything NaN.
    ///
    /// # Errors
    /// A graph that cannot be computed.
    pub fn new(graph: &Graph, inputs: Vec<Tensor>, outputs: Vec<Tensor>) -> Result<Self> {
        let has_no_finite = outputs.iter().map(has_no_finite).collect::<Result<Vec<_>>>()?.contains(&true);
        let (numbers, recorded, outputs) = match has_no_finite {
            false => (Numbers::All, None, outputs),
            true => {
                let finite = evaluate(graph, &inputs, Arithmetic::Typed, Numbers::Finite)?;
                (Numbers::Finite, Some(outputs), finite)
            }
        };
        let references = in_double_precision(graph, &inputs, numbers)?;
        Ok(Self { inputs, outputs, references, numbers, recorded })
    }
}

/// A graph's outputs in double precision. Grouped convolutions are one each there: candle takes seconds for thousands of groups.
fn in_double_precision(graph: &Graph, inputs: &[Tensor], numbers: Numbers) -> Result<Vec<Tensor>> {
    let arithmetic = Arithmetic::In(DType::F64);
    evaluate(&joined(graph), inputs, arithmetic, numbers).or_else(|_| evaluate(graph, inputs, arithmetic, numbers))
}

/// The graph with grouped convolutions as one each, and nothing else changed.
pub(super) fn joined(graph: &Graph) -> Graph {
    let others: Vec<&str> = RULES.iter().map(|rule| rule.name).filter(|name| *name != "grouped-convolution").collect();
    let mut joined = graph.clone();
    rules::apply(&mut joined, &others, &HashSet::new());
    joined
}
