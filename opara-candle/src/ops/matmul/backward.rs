//! Gradients of products with a weight.

use candle::{bail, Result, Tensor, D};

use crate::activation::Activation;
use crate::ops::column_sums::{activation_backward, column_sums};

/// The gradients of `x`, `weight` and bias in [`linear_act`](super::linear_act) by that of its result, as far as they are `needed`. An
/// activation comes with its operand. The weight's gradient is a product whose result has the weight's layout; the bias's is summed in
/// two stages of a fixed order, the first of which computes the derivative of the activation.
///
/// # Errors
/// Shapes or dtypes that do not agree.
pub(crate) fn linear_backward(
    x: &Tensor,
    weight: &Tensor,
    (z, activation): (Option<&Tensor>, Activation),
    gradient: &Tensor,
    needed: [bool; 3],
) -> Result<[Option<Tensor>; 3]> {
    let [of_x, of_weight, of_bias] = needed;
    let (gradient, bias) = match (z, activation) {
        (_, Activation::None) => (gradient.clone(), if of_bias { Some(column_sums(gradient)?) } else { None }),
        (Some(z), _) => {
            let (gradient, sums) = activation_backward(z, gradient, activation)?;
            (gradient, Some(sums))
        }
        (None, _) => bail!("the derivative of {activation:?} needs its operand"),
    };
    let rows = |t: &Tensor| t.contiguous()?.reshape(((), t.dim(D::Minus1)?));
    let gradient = rows(&gradient)?;
    let x_of = || gradient.matmul(weight)?.reshape(x.shape());
    let weight_of = || gradient.t()?.matmul(&rows(x)?);
    let asked = |is_needed: bool, of: &dyn Fn() -> Result<Tensor>| if is_needed { of().map(Some) } else { Ok(None) };
    Ok([asked(of_x, &x_of)?, asked(of_weight, &weight_of)?, bias.filter(|_| of_bias)])
}
