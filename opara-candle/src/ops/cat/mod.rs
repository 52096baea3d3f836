//! Concatenation, optionally of sums.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(super) mod launch;

use candle::{bail, Module, Result, Tensor};

use super::differentiable::is_tracked;
use super::{own_or, Activation};
use crate::cpu::record::apply;

/// Concatenates along `dim`.
///
/// # Errors
/// Shapes that do not agree.
pub fn cat(parts: &[&Tensor], dim: usize) -> Result<Tensor> {
    apply("cat", parts, 0, move |t| {
        if is_tracked(t) {
            return Tensor::cat(t, dim);
        }
        let composed = || Tensor::cat(t, dim);
        t.first().map_or_else(composed, |first| own_or(first, || gpu!(cuda::cat(t, dim)), composed))
    })
}

/// Concatenates along `dim`, with an optional tensor of the same shape added to each part first, followed by
/// `activation`. One launch on a GPU if the activation is none or ReLU.
///
/// # Errors
/// Shapes that do not agree.
pub fn cat_sums(parts: &[(&Tensor, Option<&Tensor>)], dim: usize, activation: Activation) -> Result<Tensor> {
    for (part, other) in parts {
        if let Some(other) = other.filter(|other| other.dims() != part.dims()) {
            bail!("cannot add {:?} and {:?}: the shapes differ", part.dims(), other.dims())
        }
    }
    let inputs: Vec<&Tensor> = parts.iter().flat_map(|(part, other)| [Some(*part), *other]).flatten().collect();
    let are_sums: Vec<bool> = parts.iter().map(|(_, other)| other.is_some()).collect();
    apply("cat_sums", &inputs, 0, move |t| {
        let mut t = t.iter().copied();
        let operands = are_sums.iter().filter_map(|is_sum| Some((t.next()?, is_sum.then(|| t.next()).flatten())));
        let (parts, others): (Vec<&Tensor>, Vec<Option<&Tensor>>) = operands.unzip();
        let composed = || {
            let sum = |(part, other): (&&Tensor, &Option<&Tensor>)| match other {
                Some(other) => *part + *other,
                None => Ok((*part).clone()),
            };
            let sums = parts.iter().zip(&others).map(sum).collect::<Result<Vec<_>>>()?;
            activation.forward(&Tensor::cat(&sums, dim)?)
        };
        if is_tracked(&parts) || is_tracked(&others.iter().copied().flatten().collect::<Vec<_>>()) {
            return composed();
        }
        let own = || gpu!(cuda::cat_sums(&parts, &others, dim, activation));
        parts.first().map_or_else(composed, |first| own_or(first, own, composed))
    })
}
