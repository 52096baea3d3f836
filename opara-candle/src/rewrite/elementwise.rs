//! Operators on single elements, by their names.

use candle::{bail, Result, Tensor};

#[cfg(feature = "cuda")]
use crate::ops::double_binary;
use crate::ops::format::is_channels_last;
use crate::ops::{bias_act, Activation};

/// `f` of operands over one shape, in the order in which the channels of images lie.
pub(super) fn in_order(operands: &[Tensor], f: impl FnOnce(&[Tensor]) -> Result<Tensor>) -> Result<Tensor> {
    if !operands.iter().any(is_channels_last) {
        return f(operands);
    }
    let inside = operands.iter().map(|operand| operand.permute((0, 2, 3, 1))).collect::<Result<Vec<_>>>()?;
    f(&inside)?.permute((0, 3, 1, 2))
}

/// The operator that has this name in the catalogue.
pub(super) fn unary(name: &str, x: &Tensor) -> Result<Tensor> {
    match name {
        // candle's kernels take twice as long as memory does.
        "gelu" | "gelu_erf" if x.dtype().size_in_bytes() == 2 => bias_act(x, None, activation_of(name)?),
        "sqr" => x.sqr(),
        "sqrt" => x.sqrt(),
        "neg" => x.neg(),
        "abs" => x.abs(),
        "recip" => x.recip(),
        "relu" => x.relu(),
        "exp" => x.exp(),
        "log" => x.log(),
        "sin" => x.sin(),
        "cos" => x.cos(),
        "tanh" => x.tanh(),
        "silu" => x.silu(),
        "gelu_erf" => x.gelu_erf(),
        "gelu" => x.gelu(),
        "sigmoid" => candle_nn::ops::sigmoid(x),
        "erf" => x.erf(),
        // Half of 1 + erf(x / sqrt(2)).
        "normcdf" => (x * std::f64::consts::FRAC_1_SQRT_2)?.erf()?.affine(0.5, 0.5),
        "ceil" => x.ceil(),
        "floor" => x.floor(),
        "round" => x.round(),
        "sign" => x.sign(),
        _ => bail!("there is no operator for {name}"),
    }
}

/// The same of two operands, which broadcast.
pub(super) fn binary(name: &str, x: &Tensor, y: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if let Some(result) = double_binary(name, x, y)? {
        return Ok(result);
    }
    match name {
        "add" => x.broadcast_add(y),
        "sub" => x.broadcast_sub(y),
        "mul" => x.broadcast_mul(y),
        "div" => x.broadcast_div(y),
        "min" => x.broadcast_minimum(y),
        "max" => x.broadcast_maximum(y),
        "eq" => x.broadcast_eq(y),
        "ne" => x.broadcast_ne(y),
        "lt" => x.broadcast_lt(y),
        "le" => x.broadcast_le(y),
        "gt" => x.broadcast_gt(y),
        "ge" => x.broadcast_ge(y),
        _ => bail!("there is no operator for {name}"),
    }
}

/// The activation that has this name in the catalogue.
pub(super) fn activation_of(name: &str) -> Result<Activation> {
    Ok(match name {
        "relu" => Activation::Relu,
        "gelu" => Activation::Gelu,
        "gelu_erf" => Activation::GeluErf,
        "silu" => Activation::Silu,
        _ => bail!("{name} is no activation of an operator"),
    })
}
