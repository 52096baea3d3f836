//! Norms: candle's own, and by this library's operators.

use candle::{bail, Result, Tensor, D};
use opara_plan::rewrite::{Node, Operand, Value};

use super::elementwise::binary;
use super::evaluation::{lens, Arithmetic, Evaluation};
use super::strided::shaped;
use crate::ops::{self, Activation};

/// An operand as contiguous rows of so many elements.
pub(super) fn rows(of: &mut Evaluation, operand: &Operand, columns: u64) -> Result<Tensor> {
    let x = of.whole_or_own(operand)?;
    let columns = columns as usize;
    if x.dims().last() == Some(&columns) {
        x.contiguous()
    } else {
        x.reshape(((), columns))
    }
}

/// The vector that a norm multiplies each row by.
fn vector(of: &mut Evaluation, operand: &Operand, columns: u64) -> Result<Tensor> {
    let x = of.operand(operand, &[(operand.len() / columns.max(1)) as usize, columns as usize])?;
    x.reshape(columns as usize)
}

fn normalised(x: &Tensor, epsilon: f32) -> Result<Tensor> {
    let scale = (x.sqr()?.mean_keepdim(D::Minus1)? + f64::from(epsilon))?.sqrt()?;
    binary("div", x, &scale)
}

/// `x * weight + bias`.
fn scaled(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let product = binary("mul", x, weight)?;
    bias.map_or(Ok(product.clone()), |bias| binary("add", &product, bias))
}

/// A norm of rows by elementary operators.
fn elementary(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, epsilon: f32, is_rms: bool) -> Result<Tensor> {
    let x = if is_rms { x.clone() } else { binary("sub", x, &x.mean_keepdim(D::Minus1)?)? };
    scaled(&normalised(&x, epsilon)?, weight, bias)
}

/// candle's layer norm.
pub(super) fn layer_norm(of: &mut Evaluation, node: &Node, columns: u64, epsilon: f32) -> Result<Tensor> {
    let x = rows(of, &node.operands[0], columns)?;
    let [weight, bias] = [vector(of, &node.operands[1], columns)?, vector(of, &node.operands[2], columns)?];
    if of.arithmetic == Arithmetic::Typed {
        return candle_nn::ops::layer_norm(&x, &weight, &bias, epsilon);
    }
    elementary(&x, &weight, Some(&bias), epsilon, false)
}

/// candle's RMS norm.
pub(super) fn rms_norm(of: &mut Evaluation, node: &Node, columns: u64, epsilon: f32) -> Result<Tensor> {
    let x = rows(of, &node.operands[0], columns)?;
    let weight = vector(of, &node.operands[1], columns)?;
    if of.arithmetic == Arithmetic::Typed {
        return candle_nn::ops::rms_norm(&x, &weight, epsilon);
    }
    elementary(&x, &weight, None, epsilon, true)
}

/// A norm of rows by this library's operators: candle's layer norm loses digits where a row's mean is large.
pub(super) fn row_norm(of: &mut Evaluation, node: &Node, columns: u64, epsilon: f32, is_rms: bool) -> Result<Tensor> {
    let x = rows(of, &node.operands[0], columns)?;
    let weight = vector(of, &node.operands[1], columns)?;
    let bias = node.operands.get(2).map(|bias| vector(of, bias, columns)).transpose()?;
    match bias {
        _ if of.arithmetic != Arithmetic::Typed => elementary(&x, &weight, bias.as_ref(), epsilon, is_rms),
        _ if is_rms => ops::rms_norm(&x, &weight, epsilon),
        Some(bias) => ops::layer_norm(&x, &weight, &bias, epsilon),
        None => ops::layer_norm(&x, &weight, &weight.zeros_like()?, epsilon),
    }
}

/// A norm of groups of channels. Images keep the order in which their channels lie.
pub(super) fn group_norm(of: &mut Evaluation, node: &Node, groups: u64, epsilon: f32, silu: bool) -> Result<Tensor> {
    let [x, scale, shift] = &node.operands[..] else { bail!("a group norm has three operands") };
    let [scale, shift] = [of.own(scale)?.contiguous()?, of.own(shift)?.contiguous()?];
    let whole = of.whole_or_own(x)?;
    let dims = lens(&x.dims);
    let is_image = whole.rank() == 4 && whole.dims()[..2] == dims[..2];
    let x = if is_image { whole } else { shaped(&whole, &dims)? };
    let activation = if silu { Activation::Silu } else { Activation::None };
    ops::group_norm(&x, &scale, &shift, groups as usize, epsilon, activation)
}

/// The summands of a norm as rows.
fn summands(of: &mut Evaluation, node: &Node, columns: u64) -> Result<[Tensor; 2]> {
    let mut summand = |at: usize| rows(of, &node.operands[at], columns)?.reshape(((), columns as usize));
    Ok([summand(0)?, summand(1)?])
}

pub(super) fn norm_of_sum(
    of: &mut Evaluation,
    node: &Node,
    columns: u64,
    epsilon: f32,
    is_rms: bool,
) -> Result<Tensor> {
    let [x, residual] = summands(of, node, columns)?;
    let weight = vector(of, &node.operands[2], columns)?;
    let bias = node.operands.get(3).map(|bias| vector(of, bias, columns)).transpose()?;
    match bias {
        _ if of.arithmetic != Arithmetic::Typed => {
            elementary(&(x + residual)?, &weight, bias.as_ref(), epsilon, is_rms)
        }
        _ if is_rms => Ok(ops::add_rms_norm(&x, &residual, &weight, epsilon)?.1),
        Some(bias) => ops::add_layer_norm(&x, None, &residual, &weight, &bias, epsilon),
        None => bail!("a layer norm of a sum has a bias"),
    }
}

/// The sum; its norm is known from then on.
pub(super) fn sum_beside_norm(
    of: &mut Evaluation,
    node: &Node,
    norm: usize,
    columns: u64,
    epsilon: f32,
) -> Result<Tensor> {
    let [x, residual] = summands(of, node, columns)?;
    if of.arithmetic != Arithmetic::Typed {
        return x + residual;
    }
    let weight = vector(of, &node.operands[2], columns)?;
    let (sum, normed) = ops::add_rms_norm(&x, &residual, &weight, epsilon)?;
    of.learn(Value::Node(norm), normed)?;
    Ok(sum)
}
