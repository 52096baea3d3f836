//! The operands and results of a run, and the same results in double precision.

use candle::{DType, Result, Tensor};
use hashbrown::HashSet;
use opara_plan::rewrite::rules::{self, RULES};
use opara_plan::rewrite::{Graph, Input};

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
    /// The same run on operands nearby, if it gives few numbers: whose roundings happen to be luckier says nothing of a few.
    pub(super) nearby: Vec<Set>,
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
        let mut set = Self { inputs, outputs, references, numbers, recorded, nearby: Vec::new() };
        let elements: usize = set.outputs.iter().map(Tensor::elem_count).sum();
        let has_float = graph.inputs.iter().any(|input| !input.is_constant && input.element.is_float());
        let wanted = if has_float { ENOUGH.div_ceil(elements.max(1)).min(MOST + 1) - 1 } else { 0 };
        for number in 1..=wanted {
            set.nearby.push(set.beside(graph, number)?);
        }
        Ok(set)
    }

    /// The run on operands that differ from these by less than a fiftieth.
    fn beside(&self, graph: &Graph, number: usize) -> Result<Self> {
        let Self { inputs, numbers, .. } = self;
        let other = |(input, of): (&Tensor, &Input)| {
            if of.is_constant || !of.element.is_float() {
                return Ok(input.clone());
            }
            let (elements, turn) = (input.elem_count(), 1. + number as f64);
            let wave = (Tensor::arange(0f32, elements as f32, input.device())? * turn)?.sin()?;
            let factor = wave.affine(1. / 64., 1.)?.reshape(input.shape())?;
            (input.to_dtype(DType::F32)? * factor)?.to_dtype(input.dtype())
        };
        let inputs = inputs.iter().zip(&graph.inputs).map(other).collect::<Result<Vec<_>>>()?;
        let outputs = evaluate(graph, &inputs, Arithmetic::Typed, *numbers)?;
        let references = in_double_precision(graph, &inputs, *numbers)?;
        Ok(Self { inputs, outputs, references, numbers: *numbers, recorded: None, nearby: Vec::new() })
    }

    /// This one, and those nearby.
    pub(super) fn all(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.nearby)
    }
}

/// As many numbers tell errors apart that differ by a twentieth; the most runs that are computed for them.
const ENOUGH: usize = 512;
const MOST: usize = 32;

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
