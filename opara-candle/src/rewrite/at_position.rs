//! Nodes whose operands depend on the position, which is on the device.

use candle::{bail, DType, Result, Tensor};
use opara_plan::rewrite::{AtPosition, ByPosition, Compute, Node, Operand, Value};

use super::evaluation::{lens, Evaluation};
use crate::ops;

/// Earlier tokens with the new ones, which are written to their places.
pub(super) fn appended(of: &mut Evaluation, node: &Node, [rows, step]: [u64; 2]) -> Result<Tensor> {
    let [new, earlier, position, last @ ..] = &node.operands[..] else { bail!("a token is appended to earlier ones") };
    let (rows, step) = (rows as usize, step as usize);
    let mut new = of.own(new)?.contiguous()?.reshape(((), rows, step))?.transpose(0, 1)?;
    if let [last] = last {
        let last = of.tensor(last.value)?;
        let is_token = Tensor::arange(0, new.dim(1)? as u32, last.device())?.broadcast_le(&last)?;
        let is_token = is_token.reshape((1, (), 1))?.broadcast_as(new.shape())?;
        new = is_token.where_cond(&new.contiguous()?, &new.zeros_like()?)?;
    }
    let (earlier, position) = (of.tensor(earlier.value)?, of.tensor(position.value)?);
    let earlier = earlier.reshape((rows, (), step))?;
    ops::write_rows(&earlier, &new, &position)?;
    earlier.flatten_all()
}

/// An operand times a factor plus a summand, which follow from the position.
pub(super) fn affine_at_position(
    of: &mut Evaluation,
    node: &Node,
    factor: AtPosition,
    summand: AtPosition,
) -> Result<Tensor> {
    let Some((position, x)) = node.operands.split_last() else { bail!("a node has no position") };
    let position = of.tensor(position.value)?.to_dtype(DType::F64)?.reshape(((), 1))?;
    let (tokens, at) = (position.dim(0)?, |number: AtPosition| position.affine(number.step, number.zero));
    let y = match x {
        [x] => {
            let x = of.own(x)?.to_dtype(DType::F64)?.reshape((tokens, ()))?;
            x.broadcast_mul(&at(factor)?)?.broadcast_add(&at(summand)?)?
        }
        _ => at(summand)?.broadcast_as((tokens, node.len as usize / tokens))?.contiguous()?,
    };
    y.to_dtype(of.arithmetic.dtype(node.element))
}

/// The same node of operands as they are at the position.
pub(super) fn at_position(
    of: &mut Evaluation,
    node: &Node,
    compute: &Compute,
    by_position: &[(usize, ByPosition)],
) -> Result<Node> {
    let Some((position, operands)) = node.operands.split_last() else { bail!("a node has no position") };
    let position = of.tensor(position.value)?;
    let mut operands = operands.to_vec();
    for (at, by) in by_position {
        let Some(operand) = operands.get_mut(*at) else { bail!("a node has no operand {at}") };
        let mut once = operand.clone();
        let there = match *by {
            ByPosition::Moves { first, step } => {
                let all = of.tensor(operand.value)?.flatten_all()?;
                moved(&all, operand, first, step, &position)?
            }
            ByPosition::EndsAs { dim, number } => {
                // What repeats is written once, but for what ends, and for several positions.
                let is_kept = |at: usize| at == dim || at == 0 && position.elem_count() > 1;
                let dims = once.dims.iter_mut().enumerate();
                dims.filter(|(at, dim)| dim.stride == 0 && !is_kept(*at)).for_each(|(_, dim)| dim.len = 1);
                ends_as(&of.own(&once)?, dim, number, &position)?
            }
        };
        // A value that no node has, and of which nothing is known from another node.
        let value = Value::Node(usize::MAX - at);
        of.forget(value);
        of.assume(value, there.contiguous()?.flatten_all()?);
        let mut stride = once.len();
        for (dim, once) in operand.dims.iter_mut().zip(&once.dims) {
            stride /= once.len.max(1);
            dim.stride = if once.len == dim.len { stride } else { 0 };
        }
        (operand.value, operand.first) = (value, 0);
    }
    Ok(Node { compute: compute.clone(), operands, ..node.clone() })
}

/// Elements of a row whose first one is as far as the position says; what lies outside of it is its first or last one.
fn moved(all: &Tensor, operand: &Operand, first: i64, step: i64, position: &Tensor) -> Result<Tensor> {
    let mut offsets = vec![first];
    let of_one = usize::from(position.elem_count() > 1);
    for dim in &operand.dims[of_one..] {
        let along = |from: &i64| (0..dim.len).map(move |at| from + (at * dim.stride) as i64).collect::<Vec<_>>();
        offsets = offsets.iter().flat_map(along).collect();
    }
    let (device, last) = (all.device(), all.elem_count() as i64 - 1);
    let (count, dims) = (offsets.len(), lens(&operand.dims));
    let (offsets, step) = (Tensor::from_vec(offsets, (1, count), device)?, Tensor::from_vec(vec![step], 1, device)?);
    let from = position.to_dtype(DType::I64)?.broadcast_mul(&step)?.unsqueeze(1)?;
    let places = offsets.broadcast_add(&from)?.flatten_all()?;
    let [lowest, highest] = [0, last].map(|at| Tensor::from_vec(vec![at], 1, device));
    let places = places.broadcast_maximum(&lowest?)?.broadcast_minimum(&highest?)?;
    all.index_select(&places, 0)?.reshape(dims)
}

/// The same with a number at places behind the position, along a dimension; of several positions, each along the first one.
fn ends_as(x: &Tensor, dim: usize, number: f32, position: &Tensor) -> Result<Tensor> {
    let mut shape = vec![1; x.rank()];
    shape[dim] = x.dim(dim)?;
    let places = Tensor::arange(0, shape[dim] as u32, x.device())?.unsqueeze(0)?;
    let is_there = places.broadcast_le(&position.unsqueeze(1)?)?;
    if position.elem_count() > 1 {
        shape[0] = position.elem_count();
    }
    let is_there = is_there.reshape(shape)?.broadcast_as(x.shape())?;
    // An infinity is the largest or the smallest integer.
    let number = Tensor::new(number, x.device())?.to_dtype(x.dtype())?.broadcast_as(x.shape())?;
    is_there.where_cond(&x.contiguous()?, &number)
}

#[cfg(test)]
mod tests {
    use candle::Device;

    use super::*;

    /// Behind the position lies what is no maximum, and no minimum, of any type.
    #[test]
    fn what_lies_behind_is_never_the_largest_or_the_smallest() -> Result<()> {
        let position = Tensor::new(&[1u32], &Device::Cpu)?;
        for dtype in [DType::U8, DType::U32, DType::I64, DType::F16, DType::F32] {
            let x = Tensor::new(&[[0u8, 0, 7], [7, 7, 0]], &Device::Cpu)?.to_dtype(dtype)?;
            let [largest, least] = [f32::NEG_INFINITY, f32::INFINITY].map(|number| ends_as(&x, 1, number, &position));
            let row = |x: Tensor| x.to_dtype(DType::F32)?.to_vec1::<f32>();
            assert_eq!((row(largest?.max(1)?)?, row(least?.min(1)?)?), (vec![0., 7.], vec![0., 7.]), "{dtype:?}");
        }
        Ok(())
    }
}
