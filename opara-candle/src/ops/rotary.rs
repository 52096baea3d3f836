//! Rotary position embedding.

use candle::{bail, Result, Tensor};
use candle_nn::rotary_emb;

use super::differentiable::differentiable;
use crate::cpu::record::apply;

/// Turns pairs of elements of `x`, `(batch, heads, seq, dim)`, by angles whose `cos` and `sin` are `(seq, dim / 2)` or
/// `(batch, seq, dim / 2)`: those of the first half with those of the second one (Su et al., "RoFormer", 2021).
///
/// ```
/// # use candle::{Device::Cpu, Tensor};
/// # use opara_candle::ops;
/// let x = Tensor::new(&[1f32, 2., 3., 4.], &Cpu)?.reshape((1, 1, 1, 4))?;
/// let (cos, sin) = (Tensor::new(&[[0f32, 1.]], &Cpu)?, Tensor::new(&[[1f32, 0.]], &Cpu)?);
/// assert_eq!(ops::rope(&x, &cos, &sin)?.flatten_all()?.to_vec1::<f32>()?, [-3., 2., 1., 4.]);
/// assert_eq!(ops::rope_i(&x, &cos, &sin)?.flatten_all()?.to_vec1::<f32>()?, [-2., 1., 3., 4.]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Shapes that do not agree.
pub fn rope(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    turn("rope", rotary_emb::rope, [x, cos, sin])
}

/// [`rope`] of neighbouring elements.
///
/// # Errors
/// Shapes that do not agree.
pub fn rope_i(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    turn("rope_i", rotary_emb::rope_i, [x, cos, sin])
}

/// candle's operators, which have no backward pass: it turns the other way.
fn turn(
    name: &'static str,
    by: fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
    [x, cos, sin]: [&Tensor; 3],
) -> Result<Tensor> {
    // candle panics where nothing is to be turned.
    let forward = move |x: &Tensor, cos: &Tensor, sin: &Tensor| match x.elem_count() {
        0 => Ok(x.clone()),
        _ => by(&x.contiguous()?, &cos.contiguous()?, &sin.contiguous()?),
    };
    apply(name, &[x, cos, sin], 3 * x.elem_count() as u64, move |t| {
        let pass = |t: &[&Tensor]| Ok((forward(t[0], t[1], t[2])?, Vec::new()));
        differentiable(name, t, pass, move |passed| {
            let [_, cos, sin] = passed.operands else { bail!("`{name}` without angles") };
            if passed.needs(1) || passed.needs(2) {
                bail!("`{name}` has no backward pass to its angles");
            }
            Ok(vec![Some(forward(passed.gradient, cos, &sin.neg()?)?), None, None])
        })
    })
}
