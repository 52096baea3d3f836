//! The operands and results of a run, and the same results in double precision.

use std::cell::OnceCell;

use candle::{DType, Device, Result, Tensor};
use hashbrown::{HashMap, HashSet};
use opara_plan::rewrite::rules::{self, RULES};
use opara_plan::rewrite::{last_of_many, Graph, Input, Item, Output, Value};

use super::accuracy::{compare, has_no_finite};
use super::evaluate::{evaluate, evaluate_downstream, Arithmetic, Numbers};

/// The operands and results of a run.
pub(crate) struct Set {
    pub(super) inputs: Vec<Tensor>,
    /// Of a set that is judged by the first item of a batch, what that item has of them.
    pub(super) outputs: Vec<Tensor>,
    /// The same outputs in double precision.
    pub(super) references: Vec<Tensor>,
    /// Whether only the finite numbers count: candle gave no others.
    pub(super) numbers: Numbers,
    /// candle's outputs, if `outputs` were computed anew.
    pub(super) recorded: Option<Vec<Tensor>>,
    /// Larger intermediate values, if an output has few elements: these may be close to double precision by chance.
    pub(super) intermediates: Option<Intermediates>,
    /// The same run on other operands that the caller has.
    others: Vec<Set>,
    /// The same run on operands nearby, if it gives few numbers.
    pub(super) nearby: OnceCell<Vec<Set>>,
}

/// The last values of a run that have enough elements for error statistics.
pub(super) struct Intermediates {
    /// The nodes whose values they are.
    pub nodes: Vec<usize>,
    /// Computed by candle's operators.
    pub candle: Vec<Tensor>,
    /// The same in double precision.
    pub references: Vec<Tensor>,
    /// The nodes downstream of them, computed from these values and from perturbed ones.
    downstream: OnceCell<Vec<DownstreamRun>>,
}

/// The nodes downstream of some values, computed from them.
pub(super) struct DownstreamRun {
    /// The nodes, and their values.
    pub known: Vec<(usize, Tensor)>,
    /// The outputs in double precision, and candle's.
    pub references: Vec<Tensor>,
    pub candle: Vec<Tensor>,
}

impl Intermediates {
    /// Computes the nodes downstream of the values, from as many perturbed copies as give enough outputs.
    ///
    /// # Errors
    /// A graph that cannot be computed.
    pub fn downstream_runs(&self, graph: &Graph, set: &Set) -> Result<&[DownstreamRun]> {
        if let Some(runs) = self.downstream.get() {
            return Ok(runs);
        }
        let varying = self.candle.iter().map(Tensor::elem_count).sum();
        let run = |number: usize| self.downstream_run(graph, set, number);
        let runs = (0..runs_for(fewest_of(&set.outputs), ENOUGH, varying)).map(run).collect::<Result<_>>()?;
        Ok(self.downstream.get_or_init(|| runs))
    }

    fn downstream_run(&self, graph: &Graph, set: &Set, number: usize) -> Result<DownstreamRun> {
        let values = self.candle.iter().map(|value| nearby(value, number)).collect::<Result<Vec<_>>>()?;
        let known: Vec<_> = self.nodes.iter().copied().zip(values).collect();
        let of = |arithmetic| evaluate_downstream(&known, graph, &set.inputs, arithmetic, set.numbers);
        let (references, candle) = (of(Arithmetic::In(DType::F64))?, of(Arithmetic::Typed)?);
        Ok(DownstreamRun { known, references, candle })
    }
}

/// The intermediate nodes at which a run with a small output is judged; none if all outputs are large enough for statistics.
pub(crate) fn intermediate_nodes(graph: &Graph) -> Vec<usize> {
    match fewest(graph.outputs.iter().map(|output| graph.len(output.value) as usize)) < ENOUGH {
        true => last_of_many(graph, ENOUGH as u64),
        false => Vec::new(),
    }
}

impl Set {
    /// Of a run that gave these outputs. If one of them has no finite number, the run is computed once more by candle's operators,
    /// with zeros in the place of what is not finite: BERT's mask in f16, 0 times minus infinity, makes everything NaN.
    ///
    /// # Errors
    /// A graph that cannot be computed.
    pub fn new(graph: &Graph, inputs: Vec<Tensor>, outputs: Vec<Tensor>) -> Result<Self> {
        Self::knowing(graph, inputs, outputs, &HashMap::new())
    }

    /// The same, if the values that some nodes had are known.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn knowing(
        graph: &Graph,
        inputs: Vec<Tensor>,
        outputs: Vec<Tensor>,
        known: &HashMap<usize, Tensor>,
    ) -> Result<Self> {
        let has_no_finite = outputs.iter().map(has_no_finite).collect::<Result<Vec<_>>>()?.contains(&true);
        let numbers = if has_no_finite { Numbers::Finite } else { Numbers::All };
        let nodes = intermediate_nodes(graph);
        if !nodes.is_empty() {
            // Without memory for these values, operands nearby have to do.
            if let Ok(set) = Self::with(graph, inputs.clone(), outputs.clone(), numbers, (nodes, known)) {
                return Ok(set);
            }
        }
        Self::with(graph, inputs, outputs, numbers, (Vec::new(), known))
    }

    /// The same, with the values of these nodes as intermediates.
    fn with(
        graph: &Graph,
        inputs: Vec<Tensor>,
        outputs: Vec<Tensor>,
        numbers: Numbers,
        (nodes, known): (Vec<usize>, &HashMap<usize, Tensor>),
    ) -> Result<Self> {
        let asked = with_outputs(graph, &nodes);
        let mut references = in_double_precision(&asked, &inputs, numbers)?;
        let precise = references.split_off(outputs.len());
        let candle: Option<Vec<Tensor>> = nodes.iter().map(|at| known.get(at).cloned()).collect();
        let (mut outputs, mut recorded) = (outputs, None);
        let candle = match candle.filter(|_| numbers == Numbers::All) {
            Some(candle) => candle,
            // Thousands of grouped convolutions, which candle computes one by one, take seconds here.
            None => {
                let mut typed = evaluate(&asked, &inputs, Arithmetic::Typed, numbers)?;
                let candle = typed.split_off(outputs.len());
                recorded = (numbers == Numbers::Finite).then(|| std::mem::replace(&mut outputs, typed));
                candle
            }
        };
        let intermediates = Intermediates { nodes, candle, references: precise, downstream: OnceCell::new() };
        let intermediates = (!intermediates.nodes.is_empty()).then_some(intermediates);
        let (others, nearby) = (Vec::new(), OnceCell::new());
        Ok(Self { inputs, outputs, references, numbers, recorded, intermediates, others, nearby })
    }

    /// Of a run of several items that gave these outputs, by the first of them: double precision takes a part of the time. All are
    /// computed where the run is rewritten. `None` if an item gives few numbers, or none that is finite.
    ///
    /// # Errors
    /// A graph that cannot be computed.
    pub fn of_item(item: &Item, inputs: Vec<Tensor>, outputs: &[Tensor]) -> Result<Option<Self>> {
        let outputs = outputs.iter().zip(&item.graph.outputs);
        let outputs = outputs.map(|(all, output)| beginning(all, item.graph.len(output.value) as usize));
        let outputs = outputs.collect::<Result<Vec<_>>>()?;
        let references = in_double_precision(&item.graph, &inputs_of(item, &inputs)?, Numbers::All)?;
        let set = Self::of_numbers(inputs, outputs, references);
        Ok(if set.tells_errors_apart()? { Some(set) } else { None })
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
        let inputs = self.inputs.iter().zip(&graph.inputs).map(other).collect::<Result<Vec<_>>>()?;
        let set = match item {
            Some(item) => {
                let of_item = inputs_of(item, &inputs)?;
                let outputs = evaluate(&item.graph, &of_item, Arithmetic::Typed, Numbers::All)?;
                let references = in_double_precision(&item.graph, &of_item, Numbers::All)?;
                Self::of_numbers(inputs, outputs, references)
            }
            None => {
                let outputs = evaluate(graph, &inputs, Arithmetic::Typed, Numbers::All)?;
                Self::new(graph, inputs, outputs)?
            }
        };
        for (reference, candle) in set.references.iter().zip(&set.outputs) {
            if compare(reference, candle, candle)?.is_err() {
                return Ok(None);
            }
        }
        Ok(if set.intermediates.is_some() || set.tells_errors_apart()? { Some(set) } else { None })
    }

    fn of_numbers(inputs: Vec<Tensor>, outputs: Vec<Tensor>, references: Vec<Tensor>) -> Self {
        let (others, nearby) = (Vec::new(), OnceCell::new());
        Self { inputs, outputs, references, numbers: Numbers::All, recorded: None, intermediates: None, others, nearby }
    }

    /// Whether each output has enough numbers by itself, some of them finite.
    fn tells_errors_apart(&self) -> Result<bool> {
        let has_none = self.outputs.iter().map(has_no_finite).collect::<Result<Vec<_>>>()?.contains(&true);
        Ok(!has_none && fewest_of(&self.outputs) >= ENOUGH)
    }

    /// The same run on other operands, too, which count together with these: one token's numbers all follow from one vector, whose
    /// roundings may happen to be luckier.
    ///
    /// # Errors
    /// A graph that cannot be computed.
    pub fn and_on(mut self, graph: &Graph, others: impl IntoIterator<Item = Vec<Tensor>>) -> Result<Self> {
        for inputs in others {
            self.others.push(Self::computed(graph, inputs, self.numbers)?);
        }
        // The intermediate values belong to the first operands alone.
        self.intermediates = None;
        Ok(self)
    }

    /// This one, the others, and those nearby.
    pub(super) fn all(&self, graph: &Graph) -> impl Iterator<Item = &Self> {
        let nearby = self.nearby.get_or_init(|| self.computed_nearby(graph));
        std::iter::once(self).chain(&self.others).chain(nearby)
    }

    /// As many as make enough numbers. Without memory for more there are fewer.
    fn computed_nearby(&self, graph: &Graph) -> Vec<Self> {
        let varying = graph.inputs.iter().zip(&self.inputs).filter(|(input, _)| varies(input));
        let varying: usize = varying.map(|(_, tensor)| tensor.elem_count()).sum();
        (1..runs_for(fewest_of(&self.outputs), ENOUGH, varying))
            .map_while(|number| self.nearby_run(graph, number).ok())
            .collect()
    }

    /// The run on operands nearby.
    fn nearby_run(&self, graph: &Graph, number: usize) -> Result<Self> {
        let other = |(input, of): (&Tensor, &Input)| match varies(of) {
            true => nearby(input, number),
            false => Ok(input.clone()),
        };
        let inputs = self.inputs.iter().zip(&graph.inputs).map(other).collect::<Result<Vec<_>>>()?;
        Self::computed(graph, inputs, self.numbers)
    }

    /// By candle's operators.
    fn computed(graph: &Graph, inputs: Vec<Tensor>, numbers: Numbers) -> Result<Self> {
        let outputs = evaluate(graph, &inputs, Arithmetic::Typed, numbers)?;
        let references = in_double_precision(graph, &inputs, numbers)?;
        let (others, nearby) = (Vec::new(), OnceCell::new());
        Ok(Self { inputs, outputs, references, numbers, recorded: None, intermediates: None, others, nearby })
    }
}

/// A graph whose nodes of these indices are outputs, too, behind its own. It is only evaluated, so their buffer says nothing.
pub(super) fn with_outputs(graph: &Graph, nodes: &[usize]) -> Graph {
    let mut graph = graph.clone();
    graph.outputs.extend(nodes.iter().map(|&at| Output { value: Value::Node(at), buffer: 0 }));
    graph
}

/// Of the lengths of outputs, that of the one with the fewest elements, which has the least to say.
fn fewest(lens: impl Iterator<Item = usize>) -> usize {
    lens.filter(|&len| len > 0).min().unwrap_or(ENOUGH)
}

fn fewest_of(outputs: &[Tensor]) -> usize {
    fewest(outputs.iter().map(Tensor::elem_count))
}

/// On how many operands a run of `numbers` results has `enough` of them, or as many as are computed; `varying` elements of them differ.
pub(super) fn runs_for(numbers: usize, enough: usize, varying: usize) -> usize {
    let affordable = AT_MOST_IN_ALL.checked_div(varying).unwrap_or(0);
    enough.div_ceil(numbers.max(1)).min(MOST + 1).min(affordable + 1)
}

/// Floats that differ from these by less than a fiftieth; for each number others, and for zero the same.
pub(crate) fn nearby(floats: &Tensor, number: usize) -> Result<Tensor> {
    if number == 0 {
        return Ok(floats.clone());
    }
    let waves = waves(floats.elem_count(), number, floats.device())?;
    let factor = waves.affine(1. / 64., 1.)?.reshape(floats.shape())?;
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
fn inputs_of(item: &Item, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
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
fn varies(input: &Input) -> bool {
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

/// The graph with grouped convolutions as one each, and nothing else changed.
pub(super) fn joined(graph: &Graph) -> Graph {
    let others: Vec<&str> = RULES.iter().map(|rule| rule.name).filter(|name| *name != "grouped-convolution").collect();
    let mut joined = graph.clone();
    rules::apply(&mut joined, &others, &HashSet::new());
    joined
}
