//! Layers of experts: mixtures, of which each row takes a few.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(super) mod launch;
mod layer;

use candle::{bail, DType, Result, Tensor, D};

use self::layer::Layer;
use super::matmul::matmul_flops;
use super::{own_or, Activation};
use crate::cpu::record::apply;

/// The `k` largest elements of each row, `(.., n)`, the largest first, and their indices as u32: `(.., k)` both.
///
/// candle's `arg_sort_last_dim` finds them, so that the order of equal elements is its own. On a GPU it takes rows of up to 1,024
/// elements.
///
/// ```
/// # use candle::{Device::Cpu, Tensor};
/// # use opara_candle::ops;
/// let (values, ids) = ops::top_k(&Tensor::new(&[[1f32, 4., 2.]], &Cpu)?, 2)?;
/// assert_eq!((values.to_vec2::<f32>()?, ids.to_vec2::<u32>()?), (vec![vec![4., 2.]], vec![vec![1, 2]]));
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// More elements than a row has.
pub fn top_k(x: &Tensor, k: usize) -> Result<(Tensor, Tensor)> {
    let length = x.dim(D::Minus1)?;
    if k == 0 || k > length {
        bail!("the {k} largest of {length} elements")
    }
    let ids = apply("top_k", &[x], x.elem_count() as u64, move |t| {
        t[0].contiguous()?.arg_sort_last_dim(false)?.narrow(D::Minus1, 0, k)?.contiguous()
    })?;
    let values = apply("gather", &[x, &ids], 0, |t| t[0].contiguous()?.gather(t[1], D::Minus1))?;
    Ok((values, ids))
}

/// A layer of experts: for each row of `x`, `Σ weightₖ · downₖ (activation(gateₖ x) * upₖ x)` over its experts `ids`, as Mixtral, Qwen-MoE
/// and DeepSeek have it (Shazeer et al., "Outrageously Large Neural Networks", 2017). Shapes: `x` `(.., hidden)`, `weights` and `ids`
/// `(.., k)`, ids of u32, `gate_up` `(experts, 2 * inner, hidden)` with each expert's gate first, `down` `(experts, hidden, inner)`.
///
/// Nothing is read back: on a GPU the launches are the same whatever the ids are, so that one graph serves all of them. The layers of
/// candle-transformers that route on the host (Mixtral, Qwen2-MoE, DeepSeek-V2) cannot be captured; this takes their place.
///
/// Sums are in f32. The weight of an expert is read once for eight rows that take it, and a row's bits do not depend on the others. There are
/// kernels for f32, f16 and bf16, up to 1,024 experts and sizes that are multiples of 16 bytes; elsewhere, on a GPU, weights are gathered. An
/// id of no expert gives a row of NaN on a GPU, and an error on a CPU.
///
/// ```
/// # use candle::{Device::Cpu, Tensor, D};
/// # use opara_candle::ops::{self, Activation};
/// # fn main() -> candle::Result<()> {
/// # let (hidden, inner, experts) = (8, 16, 4);
/// # let x = Tensor::randn(0f32, 1., (3, hidden), &Cpu)?;
/// # let logits = Tensor::randn(0f32, 1., (3, experts), &Cpu)?;
/// # let gate_up = Tensor::randn(0f32, 1., (experts, 2 * inner, hidden), &Cpu)?;
/// # let down = Tensor::randn(0f32, 1., (experts, hidden, inner), &Cpu)?;
/// let (weights, ids) = ops::top_k(&ops::softmax_last_dim(&logits)?, 2)?;
/// let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?;
/// let y = ops::moe(&x, (&weights, &ids), &gate_up, &down, Activation::Silu)?;
/// assert_eq!(y.dims(), [3, hidden]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Shapes or dtypes that do not agree.
pub fn moe(
    x: &Tensor,
    (weights, ids): (&Tensor, &Tensor),
    gate_up: &Tensor,
    down: &Tensor,
    activation: Activation,
) -> Result<Tensor> {
    let (experts, hidden, inner) = down.dims3()?;
    let chosen = ids.dim(D::Minus1)?;
    let rows = x.elem_count() / hidden.max(1);
    let has_rows = |of: &Tensor, width| of.dims().last() == Some(&width) && of.elem_count() == rows * width;
    let are_of = has_rows(x, hidden) && has_rows(ids, chosen) && has_rows(weights, chosen);
    if !are_of || gate_up.dims() != [experts, 2 * inner, hidden] || experts * hidden * inner * chosen == 0 {
        bail!(
            "experts of {:?} and {:?} do not go with rows {:?}, weights {:?} and ids {:?}",
            gate_up.dims(),
            down.dims(),
            x.dims(),
            weights.dims(),
            ids.dims()
        )
    }
    let dtypes = [weights, gate_up, down].map(Tensor::dtype);
    if ids.dtype() != DType::U32 || dtypes[1..] != [x.dtype(); 2] || !dtypes[0].is_float() {
        bail!(
            "experts in {:?}, weights in {:?} and ids in {:?}, for {:?}",
            dtypes[1],
            dtypes[0],
            ids.dtype(),
            x.dtype()
        )
    }
    let shape = x.shape().clone();
    let flops = matmul_flops(rows * chosen * 3 * inner, hidden);
    apply("moe", &[x, weights, ids, gate_up, down], flops, move |t| {
        let of_pairs = |t: &Tensor| t.reshape((rows, chosen))?.contiguous();
        let x = t[0].reshape((rows, hidden))?.contiguous()?;
        let (weights, ids) = (of_pairs(t[1])?, of_pairs(t[2])?);
        let (gate_up, down) = (t[3].contiguous()?, t[4].contiguous()?);
        let of = Layer { x: &x, weights: &weights, ids: &ids, gate_up: &gate_up, down: &down };
        own_or(&x, || gpu!(cuda::moe(&of, activation)), || of.composed(activation))?.reshape(&shape)
    })
}
