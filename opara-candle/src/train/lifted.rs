//! The loss of a closure as a graph of values, and gradients by differentiating that graph.

use std::sync::Arc;

use candle::backprop::GradStore;
use candle::{DType, Device, Shape, Tensor, Var};
use opara_plan::rewrite::rules;
use opara_plan::rewrite::{Compute, Graph, Input, Node, Operand, Output, Segments, Value};
use opara_plan::trace::{Element, Function};
use parking_lot::Mutex;

use crate::backend;
use crate::cuda::driver::Lent;
use crate::cuda::{Place, WholePass};
use crate::error::UnreachedError;
use crate::ops::format::is_channels_last;
use crate::ops::{self, Average};
use crate::optim::{Fused, Params};
use crate::rewrite::evaluate::Arithmetic;
use crate::rewrite::gradient::{differentiate, Differentiated, Missing, Paths};
use crate::{Error, Result, TrainError};

/// Rules whose operators have no derivative: values between a product and its activation are needed, and of images each operator by itself.
const WITHOUT: [&str; 17] = [
    "product-concat",
    "gated-unit",
    "product-activation",
    "products-of-one",
    "residual-norm",
    "concat-relu",
    "concat-sums",
    "convolution-padding",
    "pool-padding",
    "transposed-convolution",
    "upsampling",
    "convolution-bias",
    "convolution-norm",
    "convolution-residual",
    "convolution-activation",
    "convolution-of-relu",
    "pixel-product",
];

/// The rule that joins the convolutions of groups, for which the launches that judge gradients are too many.
const GROUPS: &str = "grouped-convolution";

/// Where an input of the graph comes from.
enum Source {
    /// The batch.
    Batch(usize),
    /// A variable, or an upload.
    Tensor(Tensor),
    /// Other memory of the module.
    Lent(Lent),
}

/// A variable that the optimizer trains.
pub(super) struct Trained {
    pub name: String,
    variable: Var,
    /// What the loss is computed with: the variable, or its copy of 16 bits.
    pub leaf: Tensor,
    /// The input of the graph.
    pub input: usize,
}

/// A loss as a graph.
pub(super) struct Lifted {
    /// As it was recorded, which gradients are judged by.
    pub recorded: Graph,
    pub graph: Graph,
    /// The same with the scaled loss before its outputs, by a factor behind its inputs.
    pub scaled: Option<Graph>,
    sources: Vec<Source>,
    pub trained: Vec<Trained>,
    /// Shapes of the closure's outputs, which come first.
    shapes: Vec<Shape>,
    /// Memory that the pass itself overwrites, by the outputs behind the closure's.
    written: Vec<Written>,
    /// Inputs that convolutions read with their channels beside each other.
    turned: Vec<usize>,
    /// Of the graph that is differentiated.
    segments: Mutex<Arc<Segments>>,
}

/// Memory that the pass itself overwrites.
struct Written {
    tensor: Tensor,
    /// Of a moving average, whose output is what it moves towards: the part that stays, and that of the output.
    parts: Option<[f64; 2]>,
}

impl Lifted {
    /// Records a call of the closure.
    ///
    /// # Errors
    /// A pass that cannot be captured, a launch whose meaning or derivative is not known, and variables that no gradient reaches.
    pub fn of<P: Params>(loss: &backend::Function, batch: &[Tensor], optimizer: &Fused<P>) -> Result<Self> {
        let pass = WholePass::of(loss, batch)?;
        // One pass does not show whether the next one launches the same.
        let is_opaque = |(node, _): &(&Node, &[String; 2])| matches!(node.compute, Compute::Opaque(_));
        if let Some((_, [name, _])) = pass.graph.nodes.iter().zip(&pass.launches).find(is_opaque) {
            return Err(refused(&format!("it is not known what `{name}` computes")));
        }
        let mut variables = Vec::new();
        for (name, variable, copy) in optimizer.variables_and_copies() {
            let leaves = [Some(variable.as_detached_tensor()), copy.cloned()];
            for leaf in leaves.into_iter().flatten() {
                let address = crate::cuda::address_of(&leaf)?;
                variables.push((name, variable, leaf, address));
            }
        }
        let variable_at = |place: &Place| match place {
            Place::Memory(address) => variables.iter().find(|(.., at)| at == address),
            _ => None,
        };
        let (mut sources, mut trained) = (Vec::new(), Vec::new());
        let is_written = |input: usize| pass.overwritten.iter().any(|(of, _)| *of == input);
        for (input, place) in pass.places.iter().enumerate() {
            sources.push(match (place, variable_at(place)) {
                (Place::Argument(at), _) => Source::Batch(*at),
                (_, Some((name, variable, leaf, _))) => {
                    if !is_written(input) {
                        let (variable, leaf) = ((*variable).clone(), leaf.clone());
                        trained.push(Trained { name: (*name).into(), variable, leaf, input });
                    }
                    Source::Tensor(leaf.clone())
                }
                _ => match pass.lent(input)? {
                    Some(lent) => Source::Lent(lent),
                    None => Source::Tensor(pass.copied(input)?.ok_or_else(|| refused("an argument has no place"))?),
                },
            });
        }
        let mut recorded = pass.graph.clone();
        let mut written = Vec::new();
        for (at, &(input, value)) in pass.overwritten.iter().enumerate() {
            let variable = variable_at(&pass.places[input]);
            let (_, _, leaf, _) =
                variable.ok_or_else(|| refused("it writes to memory of its own that is no variable"))?;
            let moved = moving_average(&pass.graph, input, value);
            let (value, parts) = moved.map_or((value, None), |(new, parts)| (new, Some(parts)));
            written.push(Written { tensor: leaf.clone(), parts });
            recorded.outputs.push(Output { value, buffer: pass.shapes.len() + at });
        }
        let before = recorded.nodes.len();
        let number = |input: usize| match &pass.places[input] {
            Place::Upload(bytes) => Some(bytes.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte))),
            _ => None,
        };
        recorded.tell(|input| number(input.buffer).filter(|_| input.element.is_float()));
        let told = recorded.nodes.len() - before;
        // candle runs a convolution for each group.
        let others: Vec<&str> = rules::RULES.iter().map(|rule| rule.name).filter(|name| *name != GROUPS).collect();
        rules::apply(&mut recorded, &others, &Default::default());
        let mut graph = recorded.clone();
        rules::apply(&mut graph, &WITHOUT, &Default::default());
        rules::apply_trained(&mut graph);
        let is_state = |at: u64| pass.overwritten.iter().any(|(input, _)| pass.places[*input] == Place::Memory(at));
        let all = variables.iter().filter(|(.., at)| !is_state(*at)).map(|(name, ..)| *name);
        check(&graph, &trained, all, |node| pass.launches.get(node.checked_sub(told)?).cloned())?;
        graph.pad_products();
        let scaled = optimizer.scale()?.map(|_| with_factor(&graph)).transpose()?;
        let turned = (0..sources.len()).filter(|&input| is_turned(&graph, input, &sources[input])).collect();
        let segments = Mutex::new(Segments::one(scaled.as_ref().unwrap_or(&graph)).into());
        Ok(Self { recorded, graph, scaled, sources, trained, shapes: pass.shapes.clone(), written, turned, segments })
    }

    /// The graph that steps differentiate.
    fn differentiated(&self) -> &Graph {
        self.scaled.as_ref().unwrap_or(&self.graph)
    }

    /// Has steps keep values of at most `bytes`, by more segments than now, if values take more. False if they cannot keep fewer.
    pub fn keep_less(&self, bytes: u64) -> bool {
        let mut now = self.segments.lock();
        if now.bytes() <= bytes {
            return false;
        }
        let more = Segments::within(self.differentiated(), bytes, now.count()).filter(|of| of.bytes() < now.bytes());
        more.map(|more| *now = more.into()).is_some()
    }

    /// Bytes of the values that are there at once.
    pub fn bytes(&self) -> u64 {
        self.segments.lock().bytes()
    }

    /// The number of segments.
    pub fn segments(&self) -> usize {
        self.segments.lock().count()
    }

    pub fn inputs(&self, batch: &[Tensor]) -> candle::Result<Vec<Tensor>> {
        let input = |source: &Source| match source {
            Source::Batch(at) => match batch.get(*at) {
                Some(tensor) => Ok(tensor.detach()),
                None => candle::bail!("the batch has no tensor {at}"),
            },
            Source::Tensor(tensor) => Ok(tensor.clone()),
            Source::Lent(lent) => Ok(lent.tensor().map_err(candle::Error::wrap)?.clone()),
        };
        self.sources.iter().map(input).collect()
    }

    pub fn wanted(&self) -> Vec<usize> {
        self.trained.iter().map(|trained| trained.input).collect()
    }

    /// Takes a step, and gives the closure's outputs.
    pub fn step<P: Params>(&self, batch: &[Tensor], optimizer: &Fused<P>) -> candle::Result<Vec<Tensor>> {
        let mut inputs = self.inputs(batch)?;
        // Of convolutions of single channels all weights are one matrix.
        let swapped = |t: &Tensor| if t.dim(1)? == 1 { t.transpose(0, 1) } else { Ok(t.clone()) };
        let weights = self.turned.iter().map(|&input| swapped(&inputs[input])).collect::<candle::Result<Vec<_>>>()?;
        for ((&input, turned), weight) in self.turned.iter().zip(turned_in_parts(&weights, false)?).zip(&weights) {
            inputs[input] = if weight.dim(0)? == 1 { turned.transpose(0, 1)? } else { turned };
        }
        inputs.extend(optimizer.scale()?);
        let (graph, segments) = (self.differentiated(), self.segments.lock().clone());
        let Differentiated { mut outputs, mut gradients } =
            differentiate(graph, &inputs, Arithmetic::Typed, &self.wanted(), &segments)?;
        let last: Vec<_> = gradients.iter_mut().flatten().filter(|gradient| is_channels_last(gradient)).collect();
        let turned = turned_in_parts(&last.iter().map(|gradient| (**gradient).clone()).collect::<Vec<_>>(), true)?;
        last.into_iter().zip(turned).for_each(|(gradient, turned)| *gradient = turned);
        outputs.drain(..graph.outputs.len() - self.graph.outputs.len());
        let mut store = empty_store()?;
        for (trained, gradient) in self.trained.iter().zip(gradients) {
            if let Some(gradient) = gradient {
                let gradient = gradient.reshape(trained.variable.shape())?.to_dtype(trained.variable.dtype())?;
                // A module may read both a variable and its copy.
                let gradient = match store.remove(&trained.variable) {
                    Some(other) => (other + gradient)?,
                    None => gradient.contiguous()?,
                };
                store.insert(&trained.variable, gradient);
            }
        }
        // Averages are of what the loss has written.
        let mut averages = Vec::new();
        for (Written { tensor, parts }, value) in self.written.iter().zip(outputs.drain(self.shapes.len()..)) {
            let value = value.reshape(tensor.shape())?.contiguous()?;
            match parts {
                Some(parts) => averages.push((tensor, value, *parts)),
                None => ops::assign(tensor, &value)?,
            }
        }
        let averages = averages.iter().map(|(of, new, parts)| Average { of, new, parts: *parts });
        ops::average(&averages.collect::<Vec<_>>())?;
        // Inputs stand in the order in which the forward pass reads them.
        let ready: Vec<_> = self.trained.iter().rev().map(|trained| trained.variable.id()).collect();
        optimizer.update_in_order(&store, &ready)?;
        outputs.iter().zip(&self.shapes).map(|(output, shape)| output.reshape(shape)).collect()
    }
}

/// # Errors
/// A node without a derivative, or variables that no gradient reaches.
fn check<'a>(
    graph: &Graph,
    trained: &[Trained],
    all: impl Iterator<Item = &'a str>,
    launch: impl Fn(usize) -> Option<[String; 2]>,
) -> Result<()> {
    let wanted: Vec<usize> = trained.iter().map(|trained| trained.input).collect();
    let paths = Paths::of(graph, &wanted);
    if let Some(Missing { node, inputs }) = paths.missing() {
        let [launch, scope] = launch(node).unwrap_or_default();
        let lost = trained.iter().filter(|trained| inputs.contains(&trained.input));
        let mut names: Vec<String> = lost.map(|trained| trained.name.clone()).collect();
        names.sort();
        return Err(TrainError::NoDerivative { launch, scope: (!scope.is_empty()).then_some(scope), names }.into());
    }
    let reached = paths.reached();
    let is_reached = |name: &str| trained.iter().zip(&reached).any(|(of, reached)| *reached && of.name == name);
    let mut names: Vec<String> = all.filter(|name| !is_reached(name)).map(String::from).collect();
    names.sort();
    match names.is_empty() {
        true => Ok(()),
        false => Err(TrainError::Unreached(UnreachedError { names }).into()),
    }
}

/// What a value moves towards that is a moving average in f32 of what an input was before, the part of the input that stays, and that of
/// what is new.
fn moving_average(graph: &Graph, input: usize, value: Value) -> Option<(Value, [f64; 2])> {
    let node = |value: Value| match value {
        Value::Node(at) => Some(&graph.nodes[at]),
        Value::Input(_) => None,
    };
    let whole = |operand: &Operand| operand.is_whole(graph.len(operand.value)).then_some(operand.value);
    let mut sum = node(value)?;
    // Memory that is overwritten as a whole is one part.
    let is_same = |of: &Compute| match of {
        Compute::Recorded(Function::Copy) => true,
        Compute::Concat { widths, .. } => widths.len() == 1,
        _ => false,
    };
    while is_same(&sum.compute) {
        sum = node(whole(sum.operands.first()?)?)?;
    }
    let part = |operand: &Operand| {
        let of = node(whole(operand)?)?;
        let Compute::Recorded(Function::Affine(factor, 0.)) = of.compute else { return None };
        Some((whole(of.operands.first()?)?, f64::from(factor)))
    };
    let ([a, b], true) = (&sum.operands[..], sum.compute == Compute::Recorded(Function::Binary("add".into()))) else {
        return None;
    };
    let (a, b) = (part(a)?, part(b)?);
    let ((own, kept), (new, taken)) = if a.0 == Value::Input(input) { (a, b) } else { (b, a) };
    let are_floats = [value, own, new].iter().all(|&value| graph.element(value) == Element::F32);
    (own == Value::Input(input) && are_floats).then_some((new, [kept, taken]))
}

/// Whether an input is the weight of a convolution that reads it with its channels beside each other, which is another order.
fn is_turned(graph: &Graph, input: usize, source: &Source) -> bool {
    let Source::Tensor(tensor) = source else { return false };
    let &[out, inner, h, w] = tensor.dims() else { return false };
    let groups = |node: &Node| match (&node.compute, &node.operands[..]) {
        (Compute::FusedConvolution(of), [_, weight, ..]) => {
            let is_whole = weight.value == Value::Input(input) && weight.is_whole(graph.inputs[input].len);
            (is_whole && of.window.kernel == [h as u64, w as u64]).then_some(of.window.groups)
        }
        _ => None,
    };
    let mut readers = graph.nodes.iter().filter_map(groups);
    cfg!(feature = "cudnn") && out > 1 && h * w > 1 && readers.any(|groups| inner > 1 || groups == out as u64)
}

/// Tensors with their channels beside each other, or not any more: the first ones, of an eighth of all elements, apart from the others. These
/// are needed last, or their gradients are there first, so that their launch runs beside others.
fn turned_in_parts(all: &[Tensor], back: bool) -> candle::Result<Vec<Tensor>> {
    const PART: usize = 8;
    let elements: usize = all.iter().map(Tensor::elem_count).sum();
    let mut before = 0;
    let mut is_first = |of: &&Tensor| {
        before += of.elem_count();
        before <= elements / PART
    };
    let (first, others) = all.split_at(all.iter().take_while(&mut is_first).count());
    Ok([ops::turned(first, back)?, ops::turned(others, back)?].concat())
}

/// A graph whose first output is its loss by a factor, which is its last input.
pub(super) fn with_factor(graph: &Graph) -> Result<Graph> {
    let mut of = graph.clone();
    let Some(&Output { value: mut loss, buffer }) = of.outputs.first() else { return Err(refused("it has no loss")) };
    if of.element(loss) == Element::F64 {
        return Err(refused("a loss of f64 is not scaled"));
    }
    of.inputs.push(Input { buffer: usize::MAX, element: Element::F32, len: 1, is_constant: false });
    let factor = Value::Input(of.inputs.len() - 1);
    let mut compute = |function: Function, operands: &[Value]| {
        let operands = operands.iter().map(|&value| Operand::whole(value, 1)).collect();
        of.nodes.push(Node::new(Compute::Recorded(function), operands, Element::F32, 1));
        Value::Node(of.nodes.len() - 1)
    };
    if graph.element(loss) != Element::F32 {
        loss = compute(Function::Copy, &[loss]);
    }
    let value = compute(Function::Binary("mul".into()), &[loss, factor]);
    of.outputs.insert(0, Output { value, buffer });
    Ok(of)
}

/// candle makes none but by a backward pass.
fn empty_store() -> candle::Result<GradStore> {
    Tensor::zeros((), DType::F32, &Device::Cpu)?.backward()
}

fn refused(reason: &str) -> Error {
    Error::NotCapturable { reason: reason.into() }
}
