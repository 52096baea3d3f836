//! Derivatives of sums, norms and softmax of rows, and of concatenations.

use candle::{bail, Result, Tensor, D};
use opara_plan::rewrite::{strides_over, Compute};
use opara_plan::trace::Dim;

use super::super::strided::shaped;
use super::step::Step;
use crate::activation::Activation;
use crate::ops::{activation_derivative, layer_norm_backward, rms_norm_backward, LayerNormGradients};

/// An operand as rows of `columns` elements.
fn rows(step: &mut Step, at: usize, columns: u64) -> Result<Tensor> {
    let x = step.operand(at)?;
    shaped(&x, &[x.elem_count() / (columns as usize).max(1), columns as usize])?.contiguous()
}

/// Of sums of rows times a factor.
pub(super) fn sum(step: &mut Step, columns: u64, factor: f64) -> Result<()> {
    let rows = step.node.operands[0].len() / columns.max(1);
    let g = step.gradient(&[rows as usize, 1])?;
    let g = if factor == 1. { g } else { g.affine(factor, 0.)? };
    step.give(0, g.broadcast_as((rows as usize, columns as usize))?)
}

/// Of the largest or smallest elements of rows: all that are as large get the gradient.
pub(super) fn extreme(step: &mut Step, columns: u64) -> Result<()> {
    let x = rows(step, 0, columns)?;
    let of_rows = [x.dim(0)?, 1];
    let (g, y) = (step.gradient(&of_rows)?, step.result(&of_rows)?);
    step.give(0, x.broadcast_eq(&y)?.to_dtype(g.dtype())?.broadcast_mul(&g)?)
}

pub(super) fn softmax(step: &mut Step, columns: u64) -> Result<()> {
    let shape = [(step.node.len / columns.max(1)) as usize, columns as usize];
    let (y, g) = (step.result(&shape)?, step.gradient(&shape)?);
    step.give(0, of_softmax(&y, &g)?)
}

/// The gradient of softmax's operand by its result and the gradient of that.
pub(super) fn of_softmax(y: &Tensor, g: &Tensor) -> Result<Tensor> {
    let product = (y * g)?;
    &product - y.broadcast_mul(&product.sum_keepdim(D::Minus1)?)?
}

/// A norm of rows.
pub(super) struct Norm {
    pub columns: u64,
    pub epsilon: f32,
    pub is_rms: bool,
    /// Operands that are added before: one or two.
    pub summands: usize,
}

/// The gradient of a norm's operand, the normalised rows, and the sums over the last dimension that norms have. `g` is the gradient of the
/// normalised rows.
fn of_normal(x: &Tensor, g: &Tensor, epsilon: f32, is_rms: bool) -> Result<Tensor> {
    let normal = normal(x, epsilon, is_rms)?;
    let [n, scale] = &normal;
    let along = n.broadcast_mul(&(n * g)?.mean_keepdim(D::Minus1)?)?;
    let across = if is_rms { g.clone() } else { g.broadcast_sub(&g.mean_keepdim(D::Minus1)?)? };
    (across - along)?.broadcast_mul(scale)
}

/// Normalised rows, and their factors.
fn normal(x: &Tensor, epsilon: f32, is_rms: bool) -> Result<[Tensor; 2]> {
    let x = if is_rms { x.clone() } else { x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)? };
    let scale = (x.sqr()?.mean_keepdim(D::Minus1)? + f64::from(epsilon))?.sqrt()?.recip()?;
    Ok([x.broadcast_mul(&scale)?, scale])
}

/// Of a norm of rows, or of a sum of rows, times a weight, and with a bias.
pub(super) fn norm(step: &mut Step, of: &Norm) -> Result<()> {
    if of.summands == 1 && step.is_typed() && norm_by_kernel(step, of)? {
        return Ok(());
    }
    let &Norm { columns, epsilon, is_rms, summands } = of;
    let mut x = rows(step, 0, columns)?;
    if summands == 2 {
        x = (x + rows(step, 1, columns)?)?;
    }
    let shape = x.dims().to_vec();
    let g = step.gradient(&shape)?;
    let (weight, bias) = (summands, summands + 1);
    // Weights may be views of all rows: one row of them is enough.
    let view = |step: &Step, at: usize| {
        let operand = &step.node.operands[at];
        let rows = operand.len() / columns.max(1);
        match strides_over(&operand.dims, &[rows, columns]) {
            Some(strides) if rows == 1 || strides[0] == 0 => Ok(vec![Dim { len: columns, stride: strides[1] }]),
            _ => bail!("{operand:?} has other numbers in each row"),
        }
    };
    let ones = || Tensor::ones((1, shape[0]), g.dtype(), g.device());
    if step.needs(weight) {
        let [n, _] = normal(&x, epsilon, is_rms)?;
        let dims = view(step, weight)?;
        step.give_over(weight, dims, ones()?.matmul(&(n * &g)?)?)?;
    }
    if step.node.operands.len() > bias && step.needs(bias) {
        let dims = view(step, bias)?;
        step.give_over(bias, dims, ones()?.matmul(&g.contiguous()?)?)?;
    }
    if (0..summands).any(|at| step.needs(at)) {
        let by = step.operand_as(weight, &[(step.node.operands[weight].len() / columns) as usize, columns as usize])?;
        let by = by.narrow(0, 0, 1)?;
        let gradient = of_normal(&x, &g.broadcast_mul(&by)?, epsilon, is_rms)?;
        for at in (0..summands).filter(|&at| step.needs(at)).collect::<Vec<_>>() {
            step.give(at, gradient.clone())?;
        }
    }
    Ok(())
}

/// The same by this library's kernel, if weight and bias are one number a column.
fn norm_by_kernel(step: &mut Step, of: &Norm) -> Result<bool> {
    let columns = of.columns as usize;
    let vectors = &step.node.operands[1..];
    if vectors.iter().any(|vector| !vector.is_run_of(of.columns)) {
        return Ok(false);
    }
    let x = step.of.own(&step.node.operands[0])?;
    let x = shaped(&x, &[x.elem_count() / columns.max(1), columns])?.contiguous()?;
    let weight = step.of.own(&step.node.operands[1])?.flatten_all()?.contiguous()?;
    let g = step.typed_gradient(x.dims())?.contiguous()?;
    if g.dtype() != x.dtype() || weight.dtype() != x.dtype() {
        return Ok(false);
    }
    let (of_x, of_vectors) = if of.is_rms {
        let (of_x, scale) = rms_norm_backward(&x, &weight, &g, of.epsilon)?;
        (of_x, vec![scale])
    } else {
        let LayerNormGradients { x, scale, shift } = layer_norm_backward(&x, &weight, &g, of.epsilon)?;
        (x, vec![scale, shift])
    };
    for (at, gradient) in [of_x].into_iter().chain(of_vectors).enumerate().take(step.node.operands.len()) {
        if step.needs(at) {
            step.give(at, gradient)?;
        }
    }
    Ok(true)
}

/// Of a norm of groups of channels.
pub(super) fn group_norm(step: &mut Step, groups: u64, epsilon: f32, silu: bool) -> Result<()> {
    let x = step.operand(0)?;
    let (images, channels, pixels) = x.dims3()?;
    let columns = channels / (groups as usize).max(1) * pixels;
    let grouped = |t: &Tensor| t.contiguous()?.reshape((images * groups as usize, columns));
    let x = grouped(&x)?;
    let [n, _] = normal(&x, epsilon, false)?;
    let n = n.reshape((images, channels, pixels))?;
    let [scale, shift] = [1, 2].map(|at| step.operand(at)?.reshape((1, channels, 1)));
    let (scale, shift) = (scale?, shift?);
    let mut g = step.gradient(&[images, channels, pixels])?;
    if silu {
        let y = n.broadcast_mul(&scale)?.broadcast_add(&shift)?;
        g = (g * activation_derivative(&y, Activation::Silu)?)?;
    }
    if step.needs(1) {
        step.give(1, (&g * &n)?.sum((0, 2))?)?;
    }
    if step.needs(2) {
        step.give(2, g.sum((0, 2))?)?;
    }
    if step.needs(0) {
        let g = grouped(&g.broadcast_mul(&scale)?)?;
        step.give(0, of_normal(&x, &g, epsilon, false)?)?;
    }
    Ok(())
}

/// Of a concatenation: a part for each operand.
pub(super) fn concat(step: &mut Step) -> Result<()> {
    let Compute::Concat { rows, widths } = &step.node.compute else { bail!("{:?} joins nothing", step.node.compute) };
    let all: u64 = widths.iter().sum();
    let g = step.typed_gradient(&[*rows as usize, all as usize])?;
    let mut first = 0;
    for (at, &width) in widths.iter().enumerate() {
        if step.needs(at) {
            step.give(at, g.narrow(1, first, width as usize)?)?;
        }
        first += width as usize;
    }
    Ok(())
}
