//! Batch norms in training mode.

use candle::{bail, Result, Tensor};
use opara_plan::rewrite::{Node, Operand, Value};

use super::elementwise::activation_of;
use super::evaluation::Evaluation;
use super::strided::shaped;
use crate::ops::{self, Activation};

/// Images, `(images, channels, pixels)`, as rows of pixels. Of images whose channels lie beside each other nothing is copied.
pub(super) fn pixels(of: &mut Evaluation, images: &Operand) -> Result<Tensor> {
    let x = of.own(images)?;
    rows(&x.transpose(1, 2)?)
}

/// `(images, pixels, channels)` as rows.
pub(super) fn rows(x: &Tensor) -> Result<Tensor> {
    let (images, pixels, channels) = x.dims3()?;
    x.contiguous()?.reshape((images * pixels, channels))
}

/// The mean or the variance of each channel. Beside the mean the variance is known from then on.
pub(super) fn batch_moments(of: &mut Evaluation, node: &Node, variance: Option<usize>) -> Result<Tensor> {
    let [of_mean, of_variance] = ops::batch_moments(&pixels(of, &node.operands[0])?)?;
    match variance {
        Some(at) => {
            of.learn(Value::Node(at), of_variance)?;
            Ok(of_mean)
        }
        None => Ok(of_variance),
    }
}

/// The operands of a batch norm: rows of pixels, moments, and weight and bias if it has them.
pub(super) struct Operands {
    pub x: Tensor,
    moments: [Tensor; 2],
    vectors: Option<[Tensor; 2]>,
}

impl Operands {
    pub fn of(of: &mut Evaluation, node: &Node) -> Result<Self> {
        let mut vector = |at: usize| of.own(&node.operands[at])?.contiguous();
        let moments = [vector(1)?, vector(2)?];
        let vectors = match node.operands.len() {
            3 => None,
            5 => Some([vector(3)?, vector(4)?]),
            count => bail!("a batch norm of {count} operands"),
        };
        Ok(Self { x: pixels(of, &node.operands[0])?, moments, vectors })
    }

    pub fn moments(&self) -> [&Tensor; 2] {
        self.moments.each_ref()
    }

    pub fn vectors(&self) -> Option<[&Tensor; 2]> {
        self.vectors.as_ref().map(|vectors| vectors.each_ref())
    }
}

/// `(channels, images, pixels)`, with channels beside each other in memory. Pixels have two dimensions, if the operand's have.
pub(super) fn batch_norm(of: &mut Evaluation, node: &Node, epsilon: f32) -> Result<Tensor> {
    let operands = Operands::of(of, node)?;
    let y = ops::batch_norm(&operands.x, operands.moments(), operands.vectors(), epsilon, Activation::None)?;
    images_of(of, node, &y)?.transpose(0, 1)
}

/// The activation of a batch norm: `(images, channels, pixels)`, which lie in the same way.
pub(super) fn activated(of: &mut Evaluation, node: &Node, epsilon: f32, activation: &str) -> Result<Tensor> {
    let operands = Operands::of(of, node)?;
    let activation = activation_of(activation)?;
    let y = ops::batch_norm(&operands.x, operands.moments(), operands.vectors(), epsilon, activation)?;
    images_of(of, node, &y)
}

/// Rows of pixels as images like the first operand.
fn images_of(of: &mut Evaluation, node: &Node, rows: &Tensor) -> Result<Tensor> {
    let x = &node.operands[0];
    let [images, channels, pixels] = x.dims[..] else { bail!("{x:?} are no images") };
    let [images, channels, pixels] = [images, channels, pixels].map(|dim| dim.len as usize);
    match of.whole_or_own(x)?.dims()[..] {
        [_, _, h, w] if h * w == pixels => rows.reshape((images, h, w, channels))?.permute((0, 3, 1, 2)),
        _ => shaped(rows, &[images, pixels, channels])?.permute((0, 2, 1)),
    }
}
