//! Products with weights of GGUF's blocks: candle's own, and by this library's operators.

use candle::quantized::{GgmlDType, QMatMul, QTensor};
use candle::{bail, DType, Module, Result, Tensor};
#[cfg(feature = "cuda")]
use opara_plan::rewrite::rules::QUANTIZED_ROWS;
use opara_plan::rewrite::{Node, Operand, ProductEnd, Value};
use opara_plan::trace::{is_contiguous, BlockType};

use super::elementwise::activation_of;
use super::evaluation::{lens, Arithmetic, Evaluation};
#[cfg(feature = "cuda")]
use crate::cuda::driver::block_product;
#[cfg(feature = "cuda")]
use crate::ops::RmsScale;
use crate::ops::{self, QuantizedWeight};

/// candle's name of a type.
pub(super) fn dtype(blocks: BlockType) -> GgmlDType {
    match blocks {
        BlockType::Q4_0 => GgmlDType::Q4_0,
        BlockType::Q4_1 => GgmlDType::Q4_1,
        BlockType::Q5_0 => GgmlDType::Q5_0,
        BlockType::Q5_1 => GgmlDType::Q5_1,
        BlockType::Q8_0 => GgmlDType::Q8_0,
        BlockType::Q2K => GgmlDType::Q2K,
        BlockType::Q3K => GgmlDType::Q3K,
        BlockType::Q4K => GgmlDType::Q4K,
        BlockType::Q5K => GgmlDType::Q5K,
        BlockType::Q6K => GgmlDType::Q6K,
        BlockType::Q8K => GgmlDType::Q8K,
    }
}

/// A weight as candle has it: the last dimension of `bytes` are those of a row.
pub(super) fn tensor(blocks: BlockType, bytes: &Tensor) -> Result<QTensor> {
    let (dtype, mut shape) = (dtype(blocks), bytes.dims().to_vec());
    if let Some(last) = shape.last_mut() {
        *last = *last / dtype.type_size() * dtype.block_size();
    }
    let bytes = bytes.contiguous()?;
    #[cfg(feature = "cuda")]
    if bytes.device().is_cuda() {
        return crate::cuda::driver::quantized_tensor(&bytes, dtype, shape);
    }
    let data = bytes.flatten_all()?.to_vec1::<u8>()?;
    QTensor::new(candle::quantized::QStorage::from_data(data.into(), bytes.device(), dtype)?, shape)
}

/// The bytes of a weight, `(rows, bytes of a row)`. Behind them the buffer has padding.
pub(super) fn bytes(of: &mut Evaluation, weight: &Operand) -> Result<Tensor> {
    let all = of.tensor(weight.value)?.flatten_all()?;
    if !is_contiguous(&weight.dims) {
        bail!("the rows of a quantised weight do not follow one another: {weight:?}")
    }
    all.narrow(0, weight.first as usize, weight.len() as usize)?.reshape(lens(&weight.dims))
}

/// candle's product; in another arithmetic, with the weight's elements as candle computes them.
pub(super) fn recorded(of: &mut Evaluation, node: &Node, blocks: BlockType) -> Result<Tensor> {
    let [x, weight] = &node.operands[..] else { bail!("a product has two operands") };
    let (x, weight) = (of.own(x)?.contiguous()?, tensor(blocks, &bytes(of, weight)?)?);
    match of.arithmetic {
        Arithmetic::Typed => QMatMul::from_qtensor(weight)?.forward(&x),
        Arithmetic::In(dtype) => x.matmul(&weight.dequantize(x.device())?.to_dtype(dtype)?.t()?),
    }
}

/// The elements of blocks, as candle computes them.
pub(super) fn dequantized(of: &mut Evaluation, node: &Node, blocks: BlockType) -> Result<Tensor> {
    let [operand] = &node.operands[..] else { bail!("blocks are one operand") };
    let weight = tensor(blocks, &bytes(of, operand)?)?;
    let dtype = of.arithmetic.dtype(node.element);
    let elements = match dtype {
        DType::F16 => weight.dequantize_f16(&weight.device())?,
        _ => weight.dequantize(&weight.device())?,
    };
    elements.to_dtype(dtype)
}

/// The elements of rows that integers name.
pub(super) fn rows(of: &mut Evaluation, node: &Node, blocks: BlockType) -> Result<Tensor> {
    let [table, ids] = &node.operands[..] else { bail!("rows are of a table, by integers") };
    let (table, ids) = (bytes(of, table)?, of.own(ids)?.flatten_all()?.contiguous()?);
    tensor(blocks, &table.index_select(&ids, 0)?)?
        .dequantize(table.device())?
        .to_dtype(of.arithmetic.dtype(node.element))
}

/// The product of this library, with what stands around it.
pub(super) fn product(
    of: &mut Evaluation,
    node: &Node,
    blocks: BlockType,
    norm: Option<f32>,
    end: &ProductEnd,
) -> Result<Tensor> {
    let Some((x, mut operands)) = node.operands.split_first() else { bail!("a product has an operand") };
    let x = of.own(x)?.contiguous()?;
    let scale = match (norm, operands) {
        (Some(_), [scale, others @ ..]) => {
            operands = others;
            Some(of.own(scale)?.contiguous()?)
        }
        _ => None,
    };
    let norm = scale.as_ref().zip(norm);
    let mut summand = None;
    if let (ProductEnd::Sum, [weights @ .., last]) = (end, operands) {
        operands = weights;
        let shape = [x.dims()[0], node.len as usize / x.dims()[0].max(1)];
        summand = Some(of.operand(last, &shape)?.contiguous()?);
    }
    #[cfg(feature = "cuda")]
    if let Some(parts) = of_many(of, (&x, norm), blocks, operands)? {
        return ended(of, parts, summand, end);
    }
    let weight = of_blocks(of, blocks, operands)?;
    match end {
        ProductEnd::Gate(activation) => ops::quantized_gated(&x, norm, &weight, None, activation_of(activation)?),
        ProductEnd::Nothing | ProductEnd::Sum => ops::quantized_linear(&x, norm, &weight, None, summand.as_ref()),
        ProductEnd::Others(others) => {
            let y = ops::quantized_linear(&x, norm, &weight, None, None)?;
            let mut first = 0;
            let mut parts = operands.iter().map(|weight| {
                let columns = weight.dims[0].len as usize;
                first += columns;
                y.narrow(1, first - columns, columns)
            });
            let product = parts.next().unwrap_or_else(|| bail!("there are no products"))?;
            others.iter().zip(parts).try_for_each(|(&other, part)| of.learn(Value::Node(other), part?))?;
            Ok(product)
        }
    }
}

/// Elements of a weight from which on candle's kernel takes less time than an expanded weight. Of 128 rows in f32 it takes 26 us and 3.4 us more
/// for a million elements, a weight that is expanded and multiplied 3 us and 10.7 us (H200, layers of two models together).
#[cfg(feature = "cuda")]
const MANY: u64 = 3_200_000;

/// The products of more rows than this library's kernel takes, in f32, by candle's kernel: it reads the blocks, whose elements in f32 would
/// be six times as many bytes. `None` for others, and for small weights.
#[cfg(feature = "cuda")]
fn of_many(
    of: &mut Evaluation,
    (x, norm): (&Tensor, Option<RmsScale>),
    blocks: BlockType,
    weights: &[Operand],
) -> Result<Option<Vec<Tensor>>> {
    let (rows, columns) = x.dims2()?;
    if of.arithmetic != Arithmetic::Typed || rows as u64 <= QUANTIZED_ROWS || !x.device().is_cuda() {
        return Ok(None);
    }
    // Expanded weights are multiplied together, these one by one.
    let elements = weights.iter().map(|weight| weight.dims[0].len).sum::<u64>() * columns as u64;
    if elements < MANY * weights.len() as u64 {
        return Ok(None);
    }
    let x = norm.map_or_else(|| Ok(x.clone()), |(scale, epsilon)| ops::rms_norm(x, scale, epsilon))?;
    let mut parts = Vec::with_capacity(weights.len());
    for weight in weights {
        let Some(part) = block_product(&x, &bytes(of, weight)?, dtype(blocks))? else { return Ok(None) };
        parts.push(part);
    }
    Ok(Some(parts))
}

/// What a node of several products gives, of these.
#[cfg(feature = "cuda")]
fn ended(of: &mut Evaluation, parts: Vec<Tensor>, summand: Option<Tensor>, end: &ProductEnd) -> Result<Tensor> {
    match (end, &parts[..]) {
        (ProductEnd::Nothing, [y]) => Ok(y.clone()),
        (ProductEnd::Sum, [y]) => {
            summand.map_or_else(|| bail!("there is nothing to add"), |summand| ops::add(&summand, y))
        }
        (ProductEnd::Gate(activation), [gate, up]) => activation_of(activation)?.forward(gate)? * up,
        (ProductEnd::Others(others), [y, parts @ ..]) if others.len() == parts.len() => {
            others.iter().zip(parts).try_for_each(|(&other, part)| of.learn(Value::Node(other), part.clone()))?;
            Ok(y.clone())
        }
        _ => bail!("{} products do not end in {end:?}", parts.len()),
    }
}

/// One weight of the rows of several.
pub(super) fn of_blocks(of: &mut Evaluation, blocks: BlockType, weights: &[Operand]) -> Result<QuantizedWeight> {
    if let Some(known) = of.joined.and_then(|joined| joined.of_blocks(weights)) {
        return Ok(known.clone());
    }
    let weights = weights.iter().map(|weight| bytes(of, weight)).collect::<Result<Vec<_>>>()?;
    let all = if weights.len() == 1 { weights[0].clone() } else { Tensor::cat(&weights, 0)? };
    QuantizedWeight::of_blocks(dtype(blocks), &all)
}
