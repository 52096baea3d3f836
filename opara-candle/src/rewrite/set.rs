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
    /// The same run on other operands, if it gives few numbers: whose roundings happen to be luckier says nothing of a few.
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
        // The output of the fewest elements has the least to say.
        let elements = set.outputs.iter().map(Tensor::elem_count).filter(|&count| count > 0).min().unwrap_or(ENOUGH);
        let varying = graph.inputs.iter().zip(&set.inputs).filter(|(input, _)| varies(input));
        let varying: usize = varying.map(|(_, tensor)| tensor.elem_count()).sum();
        let affordable = AT_MOST_IN_ALL.checked_div(varying).unwrap_or(0);
        for number in 1..ENOUGH.div_ceil(elements).min(MOST + 1).min(affordable + 1) {
            // Without memory for more there are fewer.
            let Ok(beside) = set.beside(graph, number) else { break };
            set.nearby.push(beside);
        }
        Ok(set)
    }

    /// The same run on other operands, too, which count together with these: one token's numbers all follow from one vector, whose
    /// roundings may happen to be luckier.
    ///
    /// # Errors
    /// A graph that cannot be computed.
    pub fn and_on(mut self, graph: &Graph, others: impl IntoIterator<Item = Vec<Tensor>>) -> Result<Self> {
        for inputs in others {
            self.nearby.push(Self::computed(graph, inputs, self.numbers)?);
        }
        Ok(self)
    }

    /// The run on operands that differ from these by less than a fiftieth.
    fn beside(&self, graph: &Graph, number: usize) -> Result<Self> {
        let inputs = &self.inputs;
        let other = |(input, of): (&Tensor, &Input)| {
            if !varies(of) {
                return Ok(input.clone());
            }
            // As many as no dimension is a multiple of.
            const PERIOD: usize = 4093;
            let wave = (Tensor::arange(0f32, PERIOD as f32, input.device())? * (1. + number as f64))?.sin()?;
            let waves = wave.repeat(input.elem_count().div_ceil(PERIOD))?.narrow(0, 0, input.elem_count())?;
            let factor = waves.affine(1. / 64., 1.)?.reshape(input.shape())?;
            (input.to_dtype(DType::F32)? * factor)?.to_dtype(input.dtype())
        };
        let inputs = inputs.iter().zip(&graph.inputs).map(other).collect::<Result<Vec<_>>>()?;
        Self::computed(graph, inputs, self.numbers)
    }

    /// By candle's operators.
    fn computed(graph: &Graph, inputs: Vec<Tensor>, numbers: Numbers) -> Result<Self> {
        let outputs = evaluate(graph, &inputs, Arithmetic::Typed, numbers)?;
        let references = in_double_precision(graph, &inputs, numbers)?;
        Ok(Self { inputs, outputs, references, numbers, recorded: None, nearby: Vec::new() })
    }

    /// This one, and those nearby.
    pub(super) fn all(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.nearby)
    }
}

/// Is it a float that differs from pass to pass?
fn varies(input: &Input) -> bool {
    !input.is_constant && input.element.is_float()
}

/// As many numbers tell errors apart that differ by a twentieth. The most runs that are computed for them, and the most elements that
/// all of these read.
const ENOUGH: usize = 512;
const MOST: usize = 32;
const AT_MOST_IN_ALL: usize = 1 << 24;

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
