//! Derivatives of products of matrices.

use candle::{bail, DType, Module, Result, Tensor};

use super::super::elementwise::activation_of;
use super::super::strided::shaped;
use super::step::Step;
use crate::activation::Activation;
use crate::ops::{
    activation_derivative, column_sums, in_sums, linear_in, product_sum as product_sum_of, scaled_product,
    small_gradients, SmallGradients,
};

/// candle takes transposed matrices, but not all views.
pub(super) fn multiply(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    a.matmul(b).or_else(|_| a.contiguous()?.matmul(&b.contiguous()?))
}

/// Of `a`, `(batch, rows, inner)`, times `b`, `(batch, inner, columns)`.
pub(super) fn matmul(step: &mut Step) -> Result<()> {
    let [of_a, of_b] = &step.node.operands[..] else { bail!("a product has two operands") };
    let (a, b) = (step.of.own(of_a)?, step.of.own(of_b)?);
    let (batch, rows, _) = a.dims3()?;
    let g = step.typed_gradient(&[batch, rows, b.dim(2)?])?;
    if step.needs(0) {
        step.give(0, multiply(&g, &b.t()?)?)?;
    }
    if step.needs(1) {
        // In the order in which the operand lies, so that its gradient is copied nowhere.
        let is_turned = of_b.dims.len() == 3 && of_b.dims[1].stride < of_b.dims[2].stride;
        let gradient = if is_turned { multiply(&g.t()?, &a)?.t()? } else { multiply(&a.t()?, &g)? };
        step.give(1, gradient)?;
    }
    Ok(())
}

/// Of `x`, `(rows, inner)`, times the transposed weight, `(columns, inner)`, and a bias, if one launch computes it; the activation is
/// that of `x`. Tells whether it has given the gradients.
fn small(step: &mut Step, before: Activation) -> Result<bool> {
    let (x, weight) = (step.of.own(&step.node.operands[0])?, step.of.own(&step.node.operands[1])?);
    let g = step.typed_gradient(&[x.dim(0)?, weight.dim(0)?])?;
    let is_asked = step.is_typed() && step.needs(1);
    let found = if is_asked { small_gradients(&x, &weight, &g, before, step.needs(0))? } else { None };
    let Some(SmallGradients { x, weight, bias }) = found else { return Ok(false) };
    for (at, gradient) in [x, Some(weight), Some(bias)].into_iter().enumerate() {
        if let Some(gradient) = gradient.filter(|_| at < step.node.operands.len() && step.needs(at)) {
            step.give(at, gradient)?;
        }
    }
    Ok(true)
}

/// Of the activation of `x` times the transposed weight, and a bias.
pub(super) fn activated(step: &mut Step, activation: &str) -> Result<()> {
    let activation = activation_of(activation)?;
    if small(step, activation)? {
        return Ok(());
    }
    let (x, weight) = (step.of.own(&step.node.operands[0])?, step.of.own(&step.node.operands[1])?);
    let g = step.typed_gradient(&[x.dim(0)?, weight.dim(0)?])?;
    if step.needs(0) {
        step.give(0, (in_sums(&multiply(&g, &weight)?)? * activation_derivative(&in_sums(&x)?, activation)?)?)?;
    }
    if step.needs(1) {
        step.give(1, multiply(&g.t()?, &activation.forward(&x)?)?)?;
    }
    of_bias(step, &g, step.node.operands.len())
}

/// Of `x`, `(rows, inner)`, times the transposed weight, `(columns, inner)`, and a bias.
pub(super) fn linear(step: &mut Step) -> Result<()> {
    if small(step, Activation::None)? {
        return Ok(());
    }
    of_linear(step, 1., step.node.operands.len())
}

/// The same times a factor, with a summand.
pub(super) fn product_sum(step: &mut Step, factor: f32) -> Result<()> {
    let summand = step.node.operands.len() - 1;
    if step.needs(summand) {
        step.give(summand, step.whole_gradient())?;
    }
    of_linear(step, factor, summand)
}

/// The gradients of rows and weight, whose product has a factor, and of the bias, if there is one before the operand `end`.
fn of_linear(step: &mut Step, factor: f32, end: usize) -> Result<()> {
    let (x, weight) = (step.of.own(&step.node.operands[0])?, step.of.own(&step.node.operands[1])?);
    let g = step.typed_gradient(&[x.dim(0)?, weight.dim(0)?])?;
    // Products of f32 are faster as sums of several, for which operands are copied.
    let precision = step.node.precision;
    let is_split = step.is_typed() && x.dtype() == DType::F32;
    let product = |a: &Tensor, b: &Tensor| match (is_split, factor == 1.) {
        (true, _) => {
            let product = linear_in(precision, &a.contiguous()?, &b.t()?.contiguous()?, None, Activation::None)?;
            if factor == 1. {
                Ok(product)
            } else {
                product * f64::from(factor)
            }
        }
        (false, true) => multiply(a, b),
        (false, false) => scaled_product(factor, a, &b.contiguous()?),
    };
    if step.needs(0) {
        // The gradient that others gave is where the product begins; but small products run beside each other instead.
        let taken = if is_split { None } else { step.take(0, fills_gpu(&x)?) };
        let of_x = match taken {
            Some(taken) => {
                let taken = shaped(&taken, x.dims())?.contiguous()?;
                product_sum_of((factor, &g.contiguous()?), (&weight.contiguous()?, false), None, &taken)?
            }
            None => product(&g, &weight)?,
        };
        step.give_product(0, of_x)?;
    }
    if step.needs(1) {
        step.give(1, product(&g.t()?, &x)?)?;
    }
    of_bias(step, &g, end)
}

/// Whether a product like this, `(rows, columns)`, has two tiles for each multiprocessor of an H100. Bits depend on it, so that it is the same
/// on each GPU.
fn fills_gpu(like: &Tensor) -> Result<bool> {
    const TILE: usize = 128;
    const MANY: usize = 2 * 132;
    let (rows, columns) = like.dims2()?;
    Ok(rows.div_ceil(TILE) * columns.div_ceil(TILE) >= MANY)
}

/// The gradient of a bias, which is the last operand before `end`, if it is not the weight.
fn of_bias(step: &mut Step, g: &Tensor, end: usize) -> Result<()> {
    if end > 2 && step.needs(2) {
        step.give(2, column_sums(&g.contiguous()?)?)?;
    }
    Ok(())
}
