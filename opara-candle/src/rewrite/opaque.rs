//! Launches of kernels of which nobody knows what they compute.

use candle::{bail, DType, Result, Tensor};
use opara_plan::rewrite::Node;

use super::evaluation::{Arithmetic, Evaluation};
use crate::cuda::driver::{address_of, launch_opaque, opaque_name, opaque_reads};

/// The result of a launch, which has the types that were captured in any arithmetic.
pub(super) fn result(of: &mut Evaluation, node: &Node, number: u64) -> Result<Tensor> {
    let (arithmetic, mut reads) = (of.arithmetic, Vec::with_capacity(node.operands.len()));
    let Some((operands, position)) = node.operands.split_at_checked(opaque_reads(number)) else {
        bail!("a launch has no such operands")
    };
    for operand in operands {
        let element = of.element(operand.value);
        let x = of.own(operand)?.to_dtype(Arithmetic::Typed.dtype(element))?.contiguous()?;
        // A kernel may load 16 bytes at once, as it might from what was allocated for it.
        let is_aligned = address_of(&x).map_err(candle::Error::wrap)?.is_multiple_of(16);
        reads.push(if is_aligned { x } else { x.force_contiguous()? });
    }
    let (len, dtype) = (node.len as usize, Arithmetic::Typed.dtype(node.element));
    let result = match position {
        [] => Tensor::zeros(len, dtype, &of.device()?)?,
        // A launch that the position changes begins behind it, so that it never counts as constant.
        [position, ..] => of.tensor(position.value)?.to_dtype(dtype)?.broadcast_as(len)?.contiguous()?,
    };
    if arithmetic == Arithmetic::Typed {
        launch_opaque(number, &reads, &result).map_err(candle::Error::wrap)?;
        return Ok(result);
    }
    // While a step is judged, it is seen whether the kernel leaves what it reads.
    let given = reads.iter().map(Tensor::force_contiguous).collect::<Result<Vec<_>>>()?;
    launch_opaque(number, &given, &result).map_err(candle::Error::wrap)?;
    for (x, given) in reads.iter().zip(&given) {
        let differs =
            x.flatten_all()?.ne(&given.flatten_all()?)?.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()?;
        if differs != 0. {
            bail!(
                "`{}` writes to what it reads, or that is no number: let it write to a new tensor",
                opaque_name(number)
            )
        }
    }
    result.to_dtype(arithmetic.dtype(node.element))
}
