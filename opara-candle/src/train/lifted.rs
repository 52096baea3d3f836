//! The loss of a closure as a graph of values, and gradients by differentiating that graph.

use candle::backprop::GradStore;
use candle::{DType, Device, Shape, Tensor, Var};
use opara_plan::rewrite::rules;
use opara_plan::rewrite::{Compute, Graph, Input, Node, Operand, Output, Value};
use opara_plan::trace::{Element, Function};

use super::gradient_error::GradientError;
use crate::backend;
use crate::cuda::driver::Lent;
use crate::cuda::{Place, WholePass};
use crate::error::UnreachedError;
use crate::ops::format::is_channels_last;
use crate::ops::{self, Average};
use crate::optim::{Fused, Params};
use crate::rewrite::accuracy::{unit, EXPLAINED};
use crate::rewrite::evaluate::{evaluate, Arithmetic, Numbers};
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
struct Trained {
    name: String,
    variable: Var,
    /// What the loss is computed with: the variable, or its copy of 16 bits.
    leaf: Tensor,
    /// The input of the graph.
    input: usize,
}

/// A loss as a graph.
pub(super) struct Lifted {
    /// As it was recorded, which gradients are judged by.
    recorded: Graph,
    graph: Graph,
    /// The same with the scaled loss before its outputs, by a factor behind its inputs.
    scaled: Option<Graph>,
    sources: Vec<Source>,
    trained: Vec<Trained>,
    /// Shapes of the closure's outputs, which come first.
    shapes: Vec<Shape>,
    /// Memory that the pass itself overwrites, by the outputs behind the closure's.
    written: Vec<Written>,
    /// Inputs that convolutions read with their channels beside each other.
    turned: Vec<usize>,
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
        Ok(Self { recorded, graph, scaled, sources, trained, shapes: pass.shapes.clone(), written, turned })
    }

    fn inputs(&self, batch: &[Tensor]) -> candle::Result<Vec<Tensor>> {
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

    fn wanted(&self) -> Vec<usize> {
        self.trained.iter().map(|trained| trained.input).collect()
    }

    /// Takes a step, and gives the closure's outputs.
    pub fn step<P: Params>(&self, batch: &[Tensor], optimizer: &Fused<P>) -> candle::Result<Vec<Tensor>> {
        let mut inputs = self.inputs(batch)?;
        // Of convolutions of single channels all weights are one matrix.
        let swapped = |t: &Tensor| if t.dim(1)? == 1 { t.transpose(0, 1) } else { Ok(t.clone()) };
        let weights = self.turned.iter().map(|&input| swapped(&inputs[input])).collect::<candle::Result<Vec<_>>>()?;
        for ((&input, turned), weight) in self.turned.iter().zip(ops::turned(&weights, false)?).zip(&weights) {
            inputs[input] = if weight.dim(0)? == 1 { turned.transpose(0, 1)? } else { turned };
        }
        inputs.extend(optimizer.scale()?);
        let graph = self.scaled.as_ref().unwrap_or(&self.graph);
        let Differentiated { mut outputs, mut gradients } =
            differentiate(graph, &inputs, Arithmetic::Typed, &self.wanted())?;
        let last: Vec<_> = gradients.iter_mut().flatten().filter(|gradient| is_channels_last(gradient)).collect();
        let turned = ops::turned(&last.iter().map(|gradient| (**gradient).clone()).collect::<Vec<_>>(), true)?;
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
        optimizer.update(&store)?;
        outputs.iter().zip(&self.shapes).map(|(output, shape)| output.reshape(shape)).collect()
    }

    /// Holds the gradients of a batch against those of the recorded launches in double precision, and these against differences of the loss.
    /// Where one is too far away, products become more precise: of convolutions first. `scale` is the factor of the loss.
    ///
    /// # Errors
    /// The first gradient that is less accurate than the recorded launches' own.
    pub fn judge(&mut self, batch: &[Tensor], loss: &Tensor, mut scale: f64) -> Result<Vec<GradientError>> {
        const IN_F64: Arithmetic = Arithmetic::In(DType::F64);
        let inputs = self.inputs(batch)?;
        let double = self.gradients(&self.recorded, &inputs, IN_F64)?;
        self.differ(&inputs, &double)?;
        self.compare(&self.recorded, &inputs, IN_F64, loss)?;
        self.compare(&self.recorded, &inputs, Arithmetic::Typed, loss)?;
        let candles = self.typed_gradients(&self.recorded, &inputs, &mut scale)?;
        loop {
            let judged = self.compare(&self.graph, &inputs, Arithmetic::Typed, loss).and_then(|()| {
                let ours = self.typed_gradients(&self.graph, &inputs, &mut scale)?;
                self.errors(&double, &candles, &ours)
            });
            match judged {
                Err(Error::Training(TrainError::Inaccurate { .. })) if self.make_precise()? => {}
                judged => return judged,
            }
        }
    }

    /// Whether products became more precise.
    fn make_precise(&mut self) -> Result<bool> {
        let Some(next) = self.graph.nodes.iter().filter_map(Node::more_precise).min() else { return Ok(false) };
        let nodes = self.graph.nodes.iter_mut().filter(|node| node.more_precise() == Some(next));
        nodes.for_each(|node| node.precision = next);
        if let Some(scaled) = &mut self.scaled {
            *scaled = with_factor(&self.graph)?;
        }
        Ok(true)
    }

    /// Gradients as steps compute them: by the factor of the loss, which is halved while they are infinite.
    fn typed_gradients(&self, graph: &Graph, inputs: &[Tensor], scale: &mut f64) -> Result<Vec<Tensor>> {
        let Some(device) = inputs.first().map(Tensor::device).filter(|_| self.scaled.is_some()) else {
            return self.gradients(graph, inputs, Arithmetic::Typed);
        };
        let graph = with_factor(graph)?;
        loop {
            let mut inputs = inputs.to_vec();
            inputs.push(Tensor::new(&[*scale as f32], device)?);
            let found = self.gradients(&graph, &inputs, Arithmetic::Typed)?;
            let found = found.iter().map(|of| of.to_dtype(DType::F64)? / *scale).collect::<candle::Result<Vec<_>>>()?;
            let sizes = found.iter().map(root_mean_square).collect::<candle::Result<Vec<_>>>()?;
            if *scale <= 1. || sizes.iter().all(|size| size.is_finite()) {
                return Ok(found);
            }
            *scale /= 2.;
        }
    }

    /// Gradients of the variables, zeros for those that get none.
    fn gradients(&self, graph: &Graph, inputs: &[Tensor], arithmetic: Arithmetic) -> Result<Vec<Tensor>> {
        let found = differentiate(graph, inputs, arithmetic, &self.wanted())?;
        let gradient = |(gradient, trained): (Option<Tensor>, &Trained)| match gradient {
            Some(gradient) => gradient.flatten_all(),
            None => trained
                .leaf
                .zeros_like()?
                .flatten_all()?
                .to_dtype(arithmetic.dtype(graph.inputs[trained.input].element)),
        };
        Ok(found.gradients.into_iter().zip(&self.trained).map(gradient).collect::<candle::Result<_>>()?)
    }

    /// How far gradients are from double precision, beside those of the recorded launches.
    ///
    /// # Errors
    /// The first one that is too far away.
    fn errors(&self, double: &[Tensor], candles: &[Tensor], ours: &[Tensor]) -> Result<Vec<GradientError>> {
        /// A gradient counts as large as this part of all variables' on average at least.
        const LEAST: f64 = 1e-3;
        /// Gradients may be `FACTOR` times as far away as those of the recorded launches, and `ROOM` roundings farther. Gradients of
        /// rounding alone may be `OF_ROUNDING` times as far away, and `ROOM_OF_ROUNDING` roundings of the average farther.
        const FACTOR: f64 = 2.;
        const ROOM: f64 = 16.;
        const OF_ROUNDING: f64 = 16.;
        const ROOM_OF_ROUNDING: f64 = 64.;
        /// They are as near as this, relative to the root of the mean square, however far those of the recorded launches are. Deep nets
        /// amplify roundings of 11 bits to a tenth and more.
        const NEAR: f64 = 0.5;
        let scales = double.iter().map(root_mean_square).collect::<candle::Result<Vec<_>>>()?;
        // Of a gradient that is zero but for rounding, such as that of a bias of keys, nothing is accurate.
        let least = LEAST * scales.iter().sum::<f64>() / scales.len().max(1) as f64;
        let mut errors = Vec::new();
        for (at, trained) in self.trained.iter().enumerate() {
            let scale = scales[at].max(least).max(f64::MIN_POSITIVE);
            let far =
                |of: &Tensor| Ok::<_, Error>(root_mean_square(&(of.to_dtype(DType::F64)? - &double[at])?)? / scale);
            let (ours, candles) = (far(&ours[at])?, far(&candles[at])?);
            // Roundings of the two go other ways.
            let (factor, room) = match scales[at] < least {
                true => (OF_ROUNDING, ROOM_OF_ROUNDING / LEAST),
                false => (FACTOR, ROOM),
            };
            let limit = factor * candles + room * unit(trained.leaf.dtype());
            // Not where one of them is NaN. Those of 16 bits may be of rounding for the most part, if the loss is small.
            let is_of_16_bits = unit(trained.leaf.dtype()) > unit(DType::F32);
            let is_near = ours <= limit && (ours <= NEAR || is_of_16_bits || scales[at] < least);
            if !is_near {
                let name = format!("the gradient of {}", trained.name);
                return Err(TrainError::Inaccurate { name, ours, candles }.into());
            }
            errors.push(GradientError { name: trained.name.clone(), ours, candles });
        }
        Ok(errors)
    }

    /// Compares a graph's loss with the closure's.
    fn compare(&self, graph: &Graph, inputs: &[Tensor], arithmetic: Arithmetic, loss: &Tensor) -> Result<()> {
        /// Roundings that losses above 1 may be apart. Smaller ones may be as far apart as 1.
        const ROUNDINGS: f64 = 4096.;
        let number = |t: &Tensor| Ok::<_, Error>(t.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>()?[0]);
        // A loss in f32 may be of values of 16 bits.
        let dtypes = self.trained.iter().map(|trained| trained.leaf.dtype()).chain([loss.dtype()]);
        let dtype = dtypes.max_by(|a, b| unit(*a).total_cmp(&unit(*b))).unwrap_or(DType::F32);
        let loss = number(loss)?;
        if !loss.is_finite() {
            return Err(TrainError::NotFinite { loss }.into());
        }
        let found = number(&evaluate(graph, inputs, arithmetic, Numbers::All)?[0])?;
        let apart = (found - loss).abs() / loss.abs().max(1.);
        if apart > (ROUNDINGS * unit(dtype)).min(EXPLAINED) {
            let name = format!("the loss ({arithmetic:?})");
            return Err(TrainError::Inaccurate { name, ours: apart, candles: 0. }.into());
        }
        Ok(())
    }

    /// Compares gradients in double precision with the difference of losses a short way apart, which no derivative is part of. Each
    /// variable moves along its gradient by the same length.
    fn differ(&self, inputs: &[Tensor], gradients: &[Tensor]) -> Result<()> {
        /// The first one is enough unless the loss is very uneven.
        const STEPS: [f64; 3] = [1e-5, 1e-7, 1e-8];
        const ROOM: f64 = 1e-3;
        let mut directions = Vec::new();
        let mut slope = 0.;
        for gradient in gradients {
            let norm = gradient.sqr()?.sum_all()?.sqrt()?.to_scalar::<f64>()?;
            slope += norm;
            directions.push((gradient * (1. / norm.max(f64::MIN_POSITIVE)))?);
        }
        let loss = |by: f64| -> Result<f64> {
            let mut moved = inputs.to_vec();
            for (trained, direction) in self.trained.iter().zip(&directions) {
                let at = moved[trained.input].to_dtype(DType::F64)?.flatten_all()?;
                moved[trained.input] = (at + (direction * by)?)?;
            }
            let outputs = evaluate(&self.recorded, &moved, Arithmetic::In(DType::F64), Numbers::All)?;
            Ok(outputs[0].flatten_all()?.to_vec1::<f64>()?[0])
        };
        let mut least = f64::INFINITY;
        for step in STEPS {
            let apart = ((loss(step)? - loss(-step)?) / (2. * step) - slope).abs() / slope.max(f64::MIN_POSITIVE);
            // Of a loss that is flat, rounding is all that there is.
            if apart <= ROOM || slope <= 1e-9 {
                return Ok(());
            }
            least = least.min(apart);
        }
        Err(TrainError::Inaccurate { name: "the slope of the loss".into(), ours: least, candles: 0. }.into())
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

/// A graph whose first output is its loss by a factor, which is its last input.
fn with_factor(graph: &Graph) -> Result<Graph> {
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

fn root_mean_square(of: &Tensor) -> candle::Result<f64> {
    of.sqr()?.mean_all()?.sqrt()?.to_scalar()
}

/// candle makes none but by a backward pass.
fn empty_store() -> candle::Result<GradStore> {
    Tensor::zeros((), DType::F32, &Device::Cpu)?.backward()
}

fn refused(reason: &str) -> Error {
    Error::NotCapturable { reason: reason.into() }
}
