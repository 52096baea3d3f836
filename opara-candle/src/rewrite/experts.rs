//! Products of rows with the weights of their experts, and what leads to them.

use candle::{bail, DType, Result, Tensor};
use opara_plan::rewrite::{Node, Operand};
use opara_plan::trace::{BlockType, Experts, Named};

use super::evaluation::{Arithmetic, Evaluation};
use super::quantized;

/// Rows whose weights are gathered. Of more rows, each expert multiplies all.
const FEW: usize = 64;

/// Rows, each times the weight of its expert.
pub(super) fn product(of: &mut Evaluation, node: &Node, shape: &Experts) -> Result<Tensor> {
    let Experts { experts, rows, shared, inner, columns, .. } = *shape;
    let [experts, rows, shared, inner, columns] = [experts, rows, shared, inner, columns].map(|n| n as usize);
    let [x, weights, names @ ..] = &node.operands[..] else { bail!("experts have an operand and weights") };
    let (factors, names) = match names {
        [names @ .., factors] if shape.has_factors => (Some(of.own(factors)?.reshape((rows, 1))?), names),
        names => (None, names),
    };
    let x = of.own(x)?.reshape((rows / shared.max(1), inner))?.contiguous()?;
    let names = names.iter().map(|operand| integers(of, operand)).collect::<Result<Vec<_>>>()?;
    let of_rows = experts_of_rows(shape.named, &names, [experts, rows])?;
    let weights = match shape.blocks {
        Some(_) => quantized::bytes(of, weights)?.reshape((experts, columns, ()))?,
        None => of.own(weights)?.reshape((experts, columns, inner))?,
    };
    let dtype = of.arithmetic.dtype(node.element);
    // candle's kernel for these takes experts of Q8_0 to begin at an eighth of where they do.
    let has_kernel = |blocks: &BlockType| x.device().is_cuda() && *blocks != BlockType::Q8_0;
    if let (Some(blocks), Arithmetic::Typed) = (shape.blocks.filter(has_kernel), of.arithmetic) {
        let (x, ids) = (x.to_dtype(DType::F32)?.unsqueeze(1)?, of_rows.reshape((rows / shared, shared))?);
        let y = quantized::tensor(blocks, &weights)?.indexed_moe_forward(&x, &ids)?.reshape((rows, columns))?;
        return scaled(y, factors)?.to_dtype(dtype);
    }
    let x = x.unsqueeze(1)?.broadcast_as((x.dim(0)?, shared, inner))?.reshape((rows, inner))?;
    let wide = if of.arithmetic == Arithmetic::Typed { DType::F32 } else { dtype };
    let of_elements = |weights: &Tensor| match shape.blocks {
        Some(blocks) => quantized::tensor(blocks, weights)?.dequantize(weights.device())?.to_dtype(wide),
        None => weights.to_dtype(wide),
    };
    let x = x.to_dtype(wide)?;
    let y = if rows <= FEW {
        let weights = of_elements(&weights.contiguous()?.index_select(&of_rows, 0)?)?;
        x.unsqueeze(1)?.matmul(&weights.transpose(1, 2)?.contiguous()?)?.squeeze(1)?
    } else {
        let mut y = Tensor::zeros((rows, columns), wide, x.device())?;
        for expert in 0..experts {
            let one = x.matmul(&of_elements(&weights.get(expert)?.contiguous()?)?.t()?)?;
            let is_of = of_rows.eq(expert as u32)?.reshape((rows, 1))?.broadcast_as((rows, columns))?;
            y = is_of.contiguous()?.where_cond(&one, &y)?;
        }
        y
    };
    scaled(y, factors)?.to_dtype(dtype)
}

fn scaled(y: Tensor, factors: Option<Tensor>) -> Result<Tensor> {
    match factors {
        Some(factors) => y.broadcast_mul(&factors.to_dtype(y.dtype())?),
        None => Ok(y),
    }
}

fn integers(of: &mut Evaluation, operand: &Operand) -> Result<Tensor> {
    of.own(operand)?.flatten_all()?.to_dtype(DType::U32)?.contiguous()
}

/// The expert of each row.
fn experts_of_rows(named: Named, names: &[Tensor], [experts, rows]: [usize; 2]) -> Result<Tensor> {
    let (order, of_order) = match (named, names) {
        (Named::ByRow, [experts]) => return Ok(experts.clone()),
        (Named::InOrder, [order, experts]) => (order, experts.clone()),
        (Named::ByBounds, [order, bounds]) => {
            // Those whose rows end at or before this one.
            let ends = bounds.narrow(0, 1, experts)?.reshape((1, experts))?;
            let rows_in_order = Tensor::arange(0, rows as u32, order.device())?.reshape((rows, 1))?;
            let are_before = rows_in_order.broadcast_ge(&ends)?.to_dtype(DType::U32)?;
            (order, are_before.sum(1)?)
        }
        _ => bail!("{} operands do not name experts", names.len()),
    };
    Tensor::zeros(rows, DType::U32, order.device())?.scatter(order, &of_order, 0)
}

/// The first operand with one added for each integer that names an element.
pub(super) fn count(of: &mut Evaluation, node: &Node) -> Result<Tensor> {
    let [counts, names] = &node.operands[..] else { bail!("counts are of integers") };
    let (counts, names) = (integers(of, counts)?, integers(of, names)?);
    counts.index_add(&names, &names.ones_like()?, 0)
}

/// Zero, and the sums of the first elements.
pub(super) fn bounds(of: &mut Evaluation, node: &Node) -> Result<Tensor> {
    let counts = integers(of, &node.operands[0])?;
    let len = counts.elem_count() as u32;
    let ends = Tensor::arange(0, len + 1, counts.device())?.reshape((len as usize + 1, 1))?;
    let is_before = ends.broadcast_gt(&Tensor::arange(0, len, counts.device())?.reshape((1, len as usize))?)?;
    is_before.to_dtype(DType::U32)?.broadcast_mul(&counts.reshape((1, len as usize))?)?.sum(1)
}
