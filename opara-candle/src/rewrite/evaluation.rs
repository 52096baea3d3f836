//! A graph of values while it is computed: the tensors that are known, and operands as views of them.

use candle::{bail, DType, Device, Result, Tensor};
use hashbrown::HashMap;
use opara_plan::rewrite::{strides_over, Graph, Mask, Node, Operand, Value};
use opara_plan::trace::{is_contiguous, Dim, Element};

use super::joined::Joined;
use super::strided::{shaped, view};
use crate::ops::format::is_channels_last;

/// How values are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arithmetic {
    /// As the graph says, in the types that it says.
    Typed,
    /// In one type, by elementary operators, without the rounding in between.
    In(DType),
}

impl Arithmetic {
    /// The type of a value of these elements.
    pub fn dtype(self, element: Element) -> DType {
        match (self, element) {
            (Arithmetic::In(dtype), Element::F8 | Element::F16 | Element::Bf16 | Element::F32 | Element::F64) => dtype,
            (_, Element::Byte | Element::U8) => DType::U8,
            (_, Element::U32) => DType::U32,
            (_, Element::I64) => DType::I64,
            (_, Element::F16) => DType::F16,
            (_, Element::Bf16) => DType::BF16,
            (_, Element::F32) => DType::F32,
            (_, Element::F64) => DType::F64,
            (_, Element::F8) => DType::F8E4M3,
            (_, Element::I16) => DType::I16,
            (_, Element::I32) => DType::I32,
        }
    }
}

/// Which numbers values are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Numbers {
    /// Whatever comes out.
    All,
    /// Finite ones; all others count as zeros.
    Finite,
}

impl Numbers {
    /// A value of these.
    fn of(self, tensor: Tensor) -> Result<Tensor> {
        if self == Numbers::All || !tensor.dtype().is_float() {
            return Ok(tensor);
        }
        // Zero times infinity, and NaN, are not equal to themselves.
        let nothing = (&tensor * 0.)?;
        nothing.eq(&nothing)?.where_cond(&tensor, &tensor.zeros_like()?)
    }
}

/// A bias of scores, and what it was made of: masks as views of a shape.
struct MadeBias {
    operands: Vec<Operand>,
    masks: Vec<Mask>,
    shape: Vec<usize>,
    made: Tensor,
}

/// Computes a node.
type Compute = fn(&mut Evaluation, &Node) -> Result<Tensor>;

/// A graph that is being computed.
pub(super) struct Evaluation<'a> {
    graph: &'a Graph,
    inputs: &'a [Tensor],
    pub arithmetic: Arithmetic,
    numbers: Numbers,
    compute: Compute,
    /// Weights that were made before.
    pub joined: Option<&'a Joined>,
    known: HashMap<Value, Tensor>,
    /// What was made of masks, for all attention that reads them.
    biases: Vec<MadeBias>,
    /// The same in f32, of what depends on weights alone.
    constants: Option<Box<Evaluation<'a>>>,
}

impl<'a> Evaluation<'a> {
    /// Nothing is known yet.
    pub fn new(
        graph: &'a Graph,
        inputs: &'a [Tensor],
        arithmetic: Arithmetic,
        numbers: Numbers,
        compute: Compute,
    ) -> Self {
        let (joined, known, biases, constants) = (None, HashMap::new(), Vec::new(), None);
        Self { graph, inputs, arithmetic, numbers, compute, joined, known, biases, constants }
    }

    /// The bias that was made of masks, as views of this shape, in a type.
    pub fn known_bias(&self, operands: &[Operand], masks: &[Mask], shape: &[usize], dtype: DType) -> Option<Tensor> {
        let is_asked = |bias: &&MadeBias| {
            bias.operands == operands && bias.masks == masks && bias.shape == shape && bias.made.dtype() == dtype
        };
        self.biases.iter().find(is_asked).map(|bias| bias.made.clone())
    }

    /// Keeps a bias for all attention that reads these masks.
    pub fn keep_bias(&mut self, operands: &[Operand], masks: &[Mask], shape: &[usize], made: Tensor) {
        let (operands, masks, shape) = (operands.to_vec(), masks.to_vec(), shape.to_vec());
        self.biases.push(MadeBias { operands, masks, shape, made });
    }

    /// Takes a value for known.
    pub fn assume(&mut self, value: Value, tensor: Tensor) {
        self.known.insert(value, tensor);
    }

    /// Takes for known what an operator gave beside its result.
    pub fn learn(&mut self, value: Value, tensor: Tensor) -> Result<()> {
        let tensor = self.numbers.of(tensor)?;
        self.known.insert(value, tensor);
        Ok(())
    }

    /// Forgets a value that nobody reads any more.
    pub fn forget(&mut self, value: Value) {
        self.known.remove(&value);
        self.biases.retain(|bias| bias.operands.iter().all(|mask| mask.value != value));
    }

    /// Where the values are.
    pub fn device(&self) -> Result<Device> {
        match self.inputs.first() {
            Some(input) => Ok(input.device().clone()),
            None => bail!("a graph without inputs is on no device"),
        }
    }

    /// The type of a value's elements.
    #[cfg(feature = "cuda")]
    pub fn element(&self, value: Value) -> Element {
        self.graph.element(value)
    }

    /// How many elements a value has.
    pub fn len(&self, value: Value) -> u64 {
        self.graph.len(value)
    }

    /// The type in which a value is computed.
    pub fn dtype(&self, value: Value) -> DType {
        self.arithmetic.dtype(self.graph.element(value))
    }

    /// All elements of a value, in some shape.
    pub fn tensor(&mut self, value: Value) -> Result<Tensor> {
        if let Some(known) = self.known.get(&value) {
            return Ok(known.clone());
        }
        let tensor = match value {
            Value::Input(at) => {
                let Some(input) = self.inputs.get(at) else { bail!("there is no input {at}") };
                input.to_dtype(self.arithmetic.dtype(self.graph.inputs[at].element))?
            }
            Value::Node(at) => {
                let node = &self.graph.nodes[at];
                let tensor = (self.compute)(self, node)?;
                if tensor.elem_count() as u64 != node.len {
                    bail!("{:?} gave {:?} where {} elements are", node.compute, tensor.dims(), node.len)
                }
                tensor
            }
        };
        let tensor = self.numbers.of(tensor)?;
        self.known.insert(value, tensor.clone());
        Ok(tensor)
    }

    /// Whether all nodes that read a node's results read them in their order, as who reads an output does.
    pub fn is_read_in_order(&self, node: &Node) -> bool {
        let (nodes, live) = (&self.graph.nodes, self.graph.live());
        let Some(at) = nodes.iter().position(|other| std::ptr::eq(other, node)) else { return false };
        let mut readers = nodes.iter().zip(live).filter(|(_, is_live)| *is_live).flat_map(|(node, _)| &node.operands);
        readers.all(|operand| operand.value != Value::Node(at) || is_contiguous(&operand.dims))
    }

    /// A vector that depends on weights alone, in f32 without the rounding in between.
    pub fn constant(&mut self, operand: &Operand) -> Result<Tensor> {
        let Self { graph, inputs, numbers, compute, .. } = *self;
        let in_f32 = || Box::new(Self::new(graph, inputs, Arithmetic::In(DType::F32), numbers, compute));
        let of = self.constants.get_or_insert_with(in_f32);
        of.operand(operand, &[operand.len() as usize])
    }

    /// An operand over this shape; what repeats has length one.
    pub fn operand(&mut self, operand: &Operand, shape: &[usize]) -> Result<Tensor> {
        let tensor = self.tensor(operand.value)?;
        let strides = strides_over(&operand.dims, &shape.iter().map(|&dim| dim as u64).collect::<Vec<_>>());
        let strides = strides.map(|strides| strides.into_iter().map(|stride| stride as usize).collect::<Vec<_>>());
        let found =
            strides.map(|strides| view(&tensor, operand.first as usize, shape, &strides)).transpose()?.flatten();
        match found {
            Some(found) => Ok(found),
            None => bail!("{operand:?} is no view of {:?} over {shape:?}", tensor.dims()),
        }
    }

    /// An operand over its own dimensions, nothing left out.
    pub fn own(&mut self, operand: &Operand) -> Result<Tensor> {
        let shape = lens(&operand.dims);
        self.operand(operand, &shape)?.broadcast_as(shape)
    }

    /// An operand as it lies, if it is a whole value; else over its own dimensions.
    pub fn whole_or_own(&mut self, operand: &Operand) -> Result<Tensor> {
        let whole = self.tensor(operand.value)?;
        if operand.is_whole(whole.elem_count() as u64) {
            Ok(whole)
        } else {
            self.own(operand)
        }
    }

    /// All operands over one shape, in which what repeats has length one.
    pub fn operands(&mut self, node: &Node) -> Result<Vec<Tensor>> {
        let mut error = None;
        for shape in self.shapes(node)? {
            match node.operands.iter().map(|operand| self.operand(operand, &shape)).collect::<Result<Vec<_>>>() {
                // One at least has the whole shape.
                Ok(mut operands) => {
                    if !operands.iter().any(|operand| operand.dims() == shape) {
                        operands[0] = operands[0].broadcast_as(shape)?;
                    }
                    return Ok(operands);
                }
                Err(other) => error = Some(other),
            }
        }
        Err(error.unwrap_or_else(|| candle::Error::Msg(format!("{:?} has no operand", node.compute))))
    }

    /// Shapes over which the operands may be views: those of whole tensors, channels-last ones first, then their own.
    fn shapes(&mut self, node: &Node) -> Result<Vec<Vec<usize>>> {
        let mut shapes = Vec::new();
        for operand in &node.operands {
            let tensor = self.tensor(operand.value)?;
            if operand.is_whole(tensor.elem_count() as u64) {
                let at = if is_channels_last(&tensor) { 0 } else { shapes.len() };
                shapes.insert(at, tensor.dims().to_vec());
            }
        }
        for operand in &node.operands {
            // Images whose pixels are one dimension of the view, which their rows and columns continue.
            let own = lens(&operand.dims);
            if let (&[images, channels, pixels], &[_, _, h, w]) = (&own[..], self.tensor(operand.value)?.dims()) {
                if h * w == pixels && !own.contains(&1) {
                    shapes.push(vec![images, channels, h, w]);
                }
            }
            shapes.push(own);
        }
        shapes.extend(common(&node.operands));
        Ok(shapes)
    }

    /// The result of an operand whose groups of so many neighbours are rows: rows, and their elements in one or more dimensions.
    pub fn rows(&mut self, operand: &Operand, columns: u64) -> Result<(Tensor, Vec<usize>)> {
        let x = self.whole_or_own(operand)?;
        let dims = x.dims().to_vec();
        for at in (0..dims.len()).rev() {
            if dims[at..].iter().product::<usize>() as u64 == columns {
                return Ok((x, (at..dims.len()).collect()));
            }
        }
        let columns = columns as usize;
        Ok((shaped(&x, &[x.elem_count() / columns.max(1), columns])?, vec![1]))
    }
}

pub(super) fn lens(dims: &[Dim]) -> Vec<usize> {
    dims.iter().map(|dim| dim.len as usize).collect()
}

/// The longest dimensions that go along with all operands', if they have the same number of elements.
fn common(operands: &[Operand]) -> Option<Vec<usize>> {
    let len = operands.first()?.len();
    let mut steps: Vec<u64> = vec![1];
    for operand in operands {
        let mut step = 1u64;
        for dim in operand.dims.iter().rev() {
            steps.push(step);
            step *= dim.len;
        }
        if step != len {
            return None;
        }
    }
    steps.sort_unstable_by(|a, b| b.cmp(a));
    steps.dedup();
    let mut above = len;
    let mut shape = Vec::new();
    for step in steps {
        if step == 0 || above % step != 0 {
            return None;
        }
        shape.push((above / step) as usize);
        above = step;
    }
    Some(shape)
}

/// The dimension along which a concatenation joins its operands, if there is one.
pub(super) fn concat(parts: &[Tensor], rows: u64, widths: &[u64]) -> Option<usize> {
    let first = parts.first()?;
    let width = |part: &Tensor, dim: usize| part.dims()[dim..].iter().product::<usize>() as u64;
    // The innermost: of one image, channels are as many runs as images are.
    (0..first.rank()).rev().find(|&dim| {
        let fits = |(part, &of): (&Tensor, &u64)| {
            part.rank() == first.rank()
                && part.dims()[..dim] == first.dims()[..dim]
                && part.dims()[dim + 1..] == first.dims()[dim + 1..]
                && width(part, dim) == of
        };
        first.dims()[..dim].iter().product::<usize>() as u64 == rows && parts.iter().zip(widths).all(fits)
    })
}
