//! The operands and results of a run, and the same results in double precision.

use std::cell::OnceCell;

use candle::{DType, Device, Result, Tensor};
use hashbrown::HashSet;
use opara_plan::rewrite::rules::{self, RULES};
use opara_plan::rewrite::{Compute, Graph, Input, Item, Node, ProductPrecision};
use opara_plan::trace::{Element, Function};

use super::accuracy::{compare, has_no_finite, Scatter};
use super::evaluate::{evaluate, Arithmetic, Numbers};
use super::verdicts::Verdicts;

/// The operands and results of a run.
pub(crate) struct Set {
    /// On the operands of a recorded pass, and on others that the caller has. Errors on all of them count together.
    pub(super) runs: Vec<Run>,
    /// Whether only the finite numbers count: candle gave no others.
    pub(super) numbers: Numbers,
    /// candle's outputs, if those of the run were computed anew.
    pub(super) recorded: Option<Vec<Tensor>>,
    /// The first item of a batch, by which the run is judged.
    pub(super) item: Option<Item>,
    /// How candle's errors of each output scatter, if that was asked for.
    pub(super) scatter: OnceCell<Vec<Option<Scatter>>>,
    /// What was said of nodes on its operands.
    pub(super) verdicts: Verdicts,
}

/// A run on some operands.
#[derive(Default)]
pub(super) struct Run {
    pub inputs: Vec<Tensor>,
    /// candle's outputs. Of a set that is judged by the first item of a batch, the part of that item.
    pub candle: Vec<Tensor>,
    /// The same in double precision.
    references: Vec<Tensor>,
}

impl Set {
    /// Of a run that gave these outputs. If one of them has no finite number, the run is computed once more by candle's operators,
    /// with zeros in the place of what is not finite: BERT's mask in f16, 0 times minus infinity, makes everything NaN.
    ///
    /// # Errors
    /// A graph that cannot be computed.
    pub fn new(graph: &Graph, inputs: Vec<Tensor>, outputs: Vec<Tensor>) -> Result<Self> {
        if !has_empty(&outputs)? {
            let references = in_double_precision(graph, &inputs, Numbers::All)?;
            return Ok(Self::of(Numbers::All, Run { inputs, candle: outputs, references }));
        }
        let run = Run::computed(graph, inputs, Numbers::Finite)?;
        Ok(Self { recorded: Some(outputs), ..Self::of(Numbers::Finite, run) })
    }

    pub(super) fn of(numbers: Numbers, run: Run) -> Self {
        let (recorded, item, scatter, verdicts) = (None, None, OnceCell::new(), Verdicts::default());
        Self { runs: vec![run], numbers, recorded, item, scatter, verdicts }
    }

    /// Of a run of several items that gave these outputs, by the first of them: double precision takes a part of the time. All are
    /// computed where the run is rewritten. `None` if an item gives few numbers, or none that is finite.
    ///
    /// # Errors
    /// A graph that cannot be computed.
    pub fn of_item(item: &Item, inputs: Vec<Tensor>, outputs: &[Tensor]) -> Result<Option<Self>> {
        let outputs = outputs.iter().zip(&item.graph.outputs);
        let outputs = outputs.map(|(all, output)| beginning(all, item.graph.len(output.value) as usize));
        let candle = outputs.collect::<Result<Vec<_>>>()?;
        if has_empty(&candle)? || candle.iter().any(|output| matches!(output.elem_count(), 1..ENOUGH)) {
            return Ok(None);
        }
        let references = in_double_precision(&item.graph, &inputs_of(item, &inputs)?, Numbers::All)?;
        let set = Self::of(Numbers::All, Run { inputs, candle, references });
        Ok(Some(Self { item: Some(item.clone()), ..set }))
    }

    /// The run on operands of other values than these, beside candle's operators on them: by the first item, if there are several.
    /// `None` if nothing varies, or if candle's results tell nothing there.
    ///
    /// # Errors
    /// A graph that cannot be computed.
    pub fn altered(&self, graph: &Graph, item: Option<&Item>) -> Result<Option<Self>> {
        if !graph.inputs.iter().any(varies) {
            return Ok(None);
        }
        let other = |(input, of): (&Tensor, &Input)| if varies(of) { altered(input) } else { Ok(input.clone()) };
        let inputs = self.inputs().iter().zip(&graph.inputs).map(other).collect::<Result<Vec<_>>>()?;
        let run = match item {
            Some(item) => {
                Run { inputs: inputs.clone(), ..Run::computed(&item.graph, inputs_of(item, &inputs)?, Numbers::All)? }
            }
            None => Run::computed(graph, inputs, Numbers::All)?,
        };
        let is_told = !has_empty(&run.candle)? && unexplained([&run.references, &run.candle])?.is_none();
        Ok(is_told.then(|| Self { item: item.cloned(), ..Self::of(Numbers::All, run) }))
    }

    /// The same run on other operands, too, which count together with these: one token's numbers all follow from one vector, whose
    /// roundings may happen to be luckier.
    ///
    /// # Errors
    /// A graph that cannot be computed.
    pub fn and_on(mut self, graph: &Graph, others: impl IntoIterator<Item = Vec<Tensor>>) -> Result<Self> {
        for inputs in others {
            self.runs.push(Run::computed(graph, inputs, self.numbers)?);
        }
        Ok(self)
    }

    /// The operands of the recorded pass.
    pub(super) fn inputs(&self) -> &[Tensor] {
        self.runs.first().map(|run| &run.inputs[..]).unwrap_or_default()
    }

    /// The outputs, each on all operands in one row: in double precision and by candle's operators.
    pub(super) fn outputs(&self) -> Result<[Vec<Tensor>; 2]> {
        let rows = |of: fn(&Run) -> &[Tensor]| -> Result<Vec<Tensor>> {
            let outputs = self.runs.first().map_or(0, |run| of(run).len());
            (0..outputs).map(|at| in_one_row(self.runs.iter().map(|run| &of(run)[at]))).collect()
        };
        Ok([rows(|run| &run.references)?, rows(|run| &run.candle)?])
    }
}

impl Run {
    /// By candle's operators. Convolutions of groups are one each, unless candle's may round to TF32: EfficientViT's 17,000 took 18 s.
    pub(super) fn computed(graph: &Graph, inputs: Vec<Tensor>, numbers: Numbers) -> Result<Self> {
        let candle = match has_convolutions_of_f32(graph) {
            true => evaluate(graph, &inputs, Arithmetic::Typed, numbers)?,
            false => evaluate(&joined(graph), &inputs, Arithmetic::Typed, numbers)?,
        };
        let references = in_double_precision(graph, &inputs, numbers)?;
        Ok(Self { inputs, candle, references })
    }
}

/// Has one of these no finite number?
fn has_empty(outputs: &[Tensor]) -> Result<bool> {
    Ok(outputs.iter().map(has_no_finite).collect::<Result<Vec<_>>>()?.contains(&true))
}

/// Why outputs tell nothing: double precision does not reproduce candle's, or nothing is finite.
fn unexplained([references, candle]: [&[Tensor]; 2]) -> Result<Option<String>> {
    for (reference, candle) in references.iter().zip(candle) {
        if let Err(reason) = compare(reference, candle, candle)? {
            return Ok(Some(reason));
        }
    }
    Ok(None)
}

/// On how many operands a node of `numbers` results has `enough` of them, or as many as are computed; `varying` elements of them differ.
pub(super) fn runs_for(numbers: usize, enough: usize, varying: usize) -> usize {
    let affordable = AT_MOST_IN_ALL.checked_div(varying).unwrap_or(0);
    enough.div_ceil(numbers.max(1)).min(MOST + 1).min(affordable + 1)
}

/// A part by which operands nearby differ.
pub(crate) const NEARBY: f64 = 1. / 64.;

/// Floats that differ from these by less than such a part and a rounding; for each number others, and for zero the same.
pub(crate) fn nearby(floats: &Tensor, number: usize, part: f64) -> Result<Tensor> {
    if number == 0 {
        return Ok(floats.clone());
    }
    let waves = waves(floats.elem_count(), number, floats.device())?;
    let factor = waves.affine(part, 1.)?.reshape(floats.shape())?;
    (floats.to_dtype(DType::F32)? * factor)?.to_dtype(floats.dtype())
}

/// Other floats of about the same size, the second half first, no two of which have the same factor: rows that were alike are not any more.
/// For zeros alone, floats between -1 and 1. Only kernels that copy: those that index take memory of a GPU when they are first used.
fn altered(floats: &Tensor) -> Result<Tensor> {
    let len = floats.elem_count();
    let flat = floats.flatten_all()?.to_dtype(DType::F32)?;
    let turned = match len / 2 {
        0 => flat,
        half => Tensor::cat(&[flat.narrow(0, half, len - half)?, flat.narrow(0, 0, half)?], 0)?,
    };
    let waves = waves(len, 1, floats.device())?;
    let other = match turned.abs()?.max_all()?.to_scalar::<f32>()? {
        0. => waves,
        _ => (turned * waves.affine(0.5, 1.)?)?,
    };
    other.reshape(floats.shape())?.to_dtype(floats.dtype())
}

/// The parts of these inputs that one item's graph reads.
pub(super) fn inputs_of(item: &Item, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    inputs.iter().zip(&item.graph.inputs).map(|(all, input)| beginning(all, input.len as usize)).collect()
}

/// All elements in one row.
pub(super) fn in_one_row<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> Result<Tensor> {
    let rows = tensors.map(Tensor::flatten_all).collect::<Result<Vec<_>>>()?;
    match &rows[..] {
        [one] => Ok(one.clone()),
        rows => Tensor::cat(rows, 0),
    }
}

/// The first elements of a tensor; the tensor itself if those are all.
pub(super) fn beginning(all: &Tensor, len: usize) -> Result<Tensor> {
    if all.elem_count() == len {
        return Ok(all.clone());
    }
    all.flatten_all()?.narrow(0, 0, len)
}

/// `len` numbers between -1 and 1; each `number` gives others.
pub(super) fn waves(len: usize, number: usize, device: &Device) -> Result<Tensor> {
    // A prime, which divides no usual dimension.
    const PERIOD: usize = 4093;
    let wave = (Tensor::arange(0f32, PERIOD as f32, device)? * (1. + number as f64))?.sin()?;
    wave.repeat(len.div_ceil(PERIOD))?.narrow(0, 0, len)
}

/// Is it a float that differs from pass to pass?
pub(super) fn varies(input: &Input) -> bool {
    !input.is_constant && input.element.is_float()
}

/// As many numbers tell errors apart that differ by a twentieth. The most runs that are computed for them, and the most elements that
/// all of these read.
pub(super) const ENOUGH: usize = 512;
const MOST: usize = 32;
const AT_MOST_IN_ALL: usize = 1 << 24;

/// A graph's outputs in double precision. Grouped convolutions are one each there: candle takes seconds for thousands of groups.
fn in_double_precision(graph: &Graph, inputs: &[Tensor], numbers: Numbers) -> Result<Vec<Tensor>> {
    let arithmetic = Arithmetic::In(DType::F64);
    evaluate(&joined(graph), inputs, arithmetic, numbers).or_else(|_| evaluate(graph, inputs, arithmetic, numbers))
}

/// Convolutions of f32 round to TF32, some of candle's at least.
pub(super) fn has_convolutions_of_f32(graph: &Graph) -> bool {
    let is_rounded = |node: &Node| {
        node.element == Element::F32 && matches!(node.compute, Compute::Recorded(Function::Convolution(_)))
    };
    graph.nodes.iter().any(is_rounded)
}

/// The graph with grouped convolutions as one each, and nothing else changed. They stand for candle's, so they do not round to TF32.
pub(super) fn joined(graph: &Graph) -> Graph {
    let others: Vec<&str> = RULES.iter().map(|rule| rule.name).filter(|name| *name != "grouped-convolution").collect();
    let mut joined = graph.clone();
    for fit in rules::apply(&mut joined, &others, &HashSet::new()) {
        joined.nodes[fit.at].precision = ProductPrecision::Highest;
    }
    joined
}
