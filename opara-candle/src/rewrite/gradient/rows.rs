//! Derivatives of sums, norms and softmax of rows, and of concatenations.

use candle::{bail, Result, Tensor, D};
use opara_plan::rewrite::{strides_over, Compute, Operand};
use opara_plan::trace::Dim;

use super::super::log_softmax;
use super::super::strided::shaped;
use super::step::Step;
use crate::activation::Activation;
use crate::ops::{
    activation_derivative, in_sums, layer_norm_backward, log_softmax_at_backward, rms_norm_backward, softmax_backward,
    LayerNormGradients,
};

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
    let (y, g) = (step.typed_result(&shape)?, step.typed_gradient(&shape)?);
    step.give(0, softmax_backward(&y, &g)?)
}

/// Of rows of logits, by those of the logarithms of their classes' parts.
pub(super) fn log_softmax_at(step: &mut Step, columns: u64) -> Result<()> {
    let [x, classes] = log_softmax::operands(step.of, step.node, columns)?;
    let g = step.gradient(&[x.dim(0)?])?.contiguous()?;
    let gradient = log_softmax_at_backward(&x, &classes, &g)?;
    let (first, all) = (step.node.operands[0].first, step.of.len(step.node.operands[0].value));
    // Nobody reads what is behind rows: zeros are its gradient.
    if first == 0 && gradient.elem_count() as u64 == all {
        let dims = vec![Dim { len: all, stride: 1 }];
        return step.give_over(0, dims, gradient);
    }
    step.give(0, gradient.narrow(1, 0, columns as usize)?)
}

/// A norm of rows.
pub(super) struct Norm {
    pub columns: u64,
    pub epsilon: f32,
    pub is_rms: bool,
    /// Operands that are added before: one or two.
    pub summands: usize,
}

/// Of a norm of rows, or of a sum of rows, times a weight, and with a bias.
pub(super) fn norm(step: &mut Step, of: &Norm) -> Result<()> {
    let &Norm { columns, epsilon, is_rms, summands } = of;
    let row = columns as usize;
    let typed = |step: &mut Step, at: usize| {
        let x = step.of.own(&step.node.operands[at])?;
        shaped(&x, &[x.elem_count() / row.max(1), row])?.contiguous()
    };
    let x = match summands {
        1 => typed(step, 0)?,
        _ => (rows(step, 0, columns)? + rows(step, 1, columns)?)?,
    };
    // Weights may be views of all rows: one row of them is enough.
    let vector = |step: &Step, at: usize| {
        let operand = &step.node.operands[at];
        let rows = operand.len() / columns.max(1);
        match strides_over(&operand.dims, &[rows, columns]) {
            Some(strides) if rows == 1 || strides[0] == 0 => {
                Ok(Operand { dims: vec![Dim { len: columns, stride: strides[1] }], ..operand.clone() })
            }
            _ => bail!("{operand:?} has other numbers in each row"),
        }
    };
    let of_weight = vector(step, summands)?;
    let weight = step.of.own(&of_weight)?.contiguous()?;
    let g = step.typed_gradient(x.dims())?.contiguous()?;
    let are_alike = g.dtype() == x.dtype() && weight.dtype() == x.dtype();
    let [x, weight, g] = if are_alike { [x, weight, g] } else { [in_sums(&x)?, in_sums(&weight)?, in_sums(&g)?] };
    // The gradient of what goes around the norm is added in the same launch.
    let taken = if summands == 1 && step.needs(0) { step.take(0, true) } else { None };
    let beside = taken.map(|taken| shaped(&taken.to_dtype(x.dtype())?, x.dims())?.contiguous()).transpose()?;
    let (of_x, of_vectors) = if is_rms {
        let (of_x, scale) = rms_norm_backward(&x, &weight, &g, beside.as_ref(), epsilon)?;
        (of_x, vec![scale])
    } else {
        let LayerNormGradients { x, scale, shift } = layer_norm_backward(&x, &weight, &g, beside.as_ref(), epsilon)?;
        (x, vec![scale, shift])
    };
    for at in (0..summands).filter(|&at| step.needs(at)).collect::<Vec<_>>() {
        step.give(at, of_x.clone())?;
    }
    for (at, gradient) in (summands..step.node.operands.len()).zip(of_vectors) {
        if step.needs(at) {
            let dims = vector(step, at)?.dims;
            step.give_over(at, dims, gradient)?;
        }
    }
    Ok(())
}

/// Of a norm of groups of channels.
pub(super) fn group_norm(step: &mut Step, groups: u64, epsilon: f32, silu: bool) -> Result<()> {
    let x = step.operand(0)?;
    let (images, channels, pixels) = x.dims3()?;
    let columns = channels / (groups as usize).max(1) * pixels;
    let grouped = |t: &Tensor| t.contiguous()?.reshape((images * groups as usize, columns));
    let x = grouped(&x)?;
    let centred = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
    let deviation = (centred.sqr()?.mean_keepdim(D::Minus1)? + f64::from(epsilon))?.sqrt()?;
    let n = centred.broadcast_div(&deviation)?.reshape((images, channels, pixels))?;
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
        let (g, ones) = (grouped(&g.broadcast_mul(&scale)?)?, Tensor::ones(columns, x.dtype(), x.device())?);
        step.give(0, layer_norm_backward(&x, &ones, &g, None, epsilon)?.x)?;
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
