//! The derivative of batch norms in training mode: of the norm with its moments, and of the moments where others read them.

use candle::{Result, Tensor};

use super::super::batch_norm::{pixels, rows, Operands};
use super::super::elementwise::activation_of;
use super::step::Step;
use crate::activation::Activation;
use crate::ops::{batch_norm_backward, in_sums};

/// Rows of pixels as `(images, channels, pixels)`.
fn images(step: &Step, rows: &Tensor) -> Result<Tensor> {
    let [images, channels, pixels] = [0, 1, 2].map(|at| step.node.operands[0].dims[at].len as usize);
    rows.reshape((images, pixels, channels))?.transpose(1, 2)
}

/// Of images, `(images, channels, pixels)`, and of weight and bias, one number a channel.
pub(super) fn batch_norm(step: &mut Step, epsilon: f32) -> Result<()> {
    let [images, channels, pixels] = [0, 1, 2].map(|at| step.node.operands[0].dims[at].len as usize);
    let g = rows(&step.typed_gradient(&[channels, images, pixels])?.permute((1, 2, 0))?)?;
    give(step, &g, epsilon, Activation::None)
}

/// The same with an activation behind it, whose results are `(images, channels, pixels)`.
pub(super) fn activated(step: &mut Step, epsilon: f32, activation: &str) -> Result<()> {
    let [images, channels, pixels] = [0, 1, 2].map(|at| step.node.operands[0].dims[at].len as usize);
    let g = rows(&step.typed_gradient(&[images, channels, pixels])?.transpose(1, 2)?)?;
    give(step, &g, epsilon, activation_of(activation)?)
}

/// Gives the gradients by those of rows of pixels of the result.
fn give(step: &mut Step, g: &Tensor, epsilon: f32, activation: Activation) -> Result<()> {
    let operands = Operands::of(step.of, step.node)?;
    let vectors = operands.vectors();
    let [x, scale, shift] = batch_norm_backward(&operands.x, operands.moments(), vectors, g, epsilon, activation)?;
    if step.needs(0) {
        step.give(0, images(step, &x)?)?;
    }
    for (at, gradient) in [(3, scale), (4, shift)] {
        if at < step.node.operands.len() && step.needs(at) {
            step.give(at, gradient)?;
        }
    }
    Ok(())
}

/// Of the mean, or the variance, of each channel.
pub(super) fn batch_moments(step: &mut Step, is_mean: bool) -> Result<()> {
    let x = in_sums(&pixels(step.of, &step.node.operands[0])?)?;
    let (count, channels) = x.dims2()?;
    let g = step.gradient(&[1, channels])?.affine(1. / count as f64, 0.)?;
    let slope = if is_mean { x.ones_like()? } else { (x.broadcast_sub(&x.mean_keepdim(0)?)? * 2.)? };
    step.give(0, images(step, &slope.broadcast_mul(&g)?)?)
}
