//! Tokens drawn from logits.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(super) mod launch;
mod parameters;

use candle::{bail, DType, Device, Result, Tensor};

pub(super) use self::cpu::philox;
pub use self::parameters::{Sampler, Sampling, BARRED, NO_TOKEN, SEEN};
use crate::cpu::record::{apply, apply_in_place};

/// Draws a token for each row of `logits`, `(rows, vocab)` of f32, f16 or bf16. Returns `(rows)` of u32.
///
/// Each row has its own [`Sampling`], which is applied in this order:
///
/// 1. the repetition penalty, on tokens that `seen`, `(rows, vocab)` of u8, [marks](mark_seen): positive logits are divided by
///    it, others multiplied (Keskar et al., [arXiv:1909.05858](https://arxiv.org/abs/1909.05858)). Tokens that `seen` marks with
///    [`BARRED`] are not drawn by rows that [bar](Sampler::barring) them;
/// 2. temperature 0 takes the first of the largest logits, and ends here;
/// 3. division by the temperature;
/// 4. top-k: the `k` largest, and tokens equal to the last of them;
/// 5. top-p: the largest of these that together have at least this probability, and tokens equal to the last of them
///    (Holtzman et al., [arXiv:1904.09751](https://arxiv.org/abs/1904.09751));
/// 6. min-p: tokens whose probability is at least this fraction of the most probable one's
///    ([arXiv:2407.01082](https://arxiv.org/abs/2407.01082));
/// 7. a draw from the rest by probability: the largest sum of scaled logit and Gumbel noise.
///
/// The noise is a function of seed, `positions` and token alone (Philox4x32-10). So a row's token does not depend on its index or
/// its neighbours, and is the same on the CPU and on a GPU. `positions`, of u32, is one number for all rows or one per row. A row
/// with a NaN, with a logit of infinity, or of minus infinity alone has no token: it gives [`NO_TOKEN`].
///
/// ```
/// use candle::{DType, Device::Cpu, Tensor};
/// use opara_candle::ops::{self, Sampler, Sampling};
///
/// let logits = Tensor::new(&[[0f32, 4., 1.], [0., 4., 1.]], &Cpu)?;
/// let creative = Sampling { temperature: 0.8, top_k: 2, seed: 7, ..Sampling::default() };
/// let sampler = Sampler::new(&[Sampling::default(), creative], &Cpu)?;
/// let position = Tensor::zeros(1, DType::U32, &Cpu)?;
/// let tokens = ops::sample(&logits, &sampler, &position, None)?.to_vec1::<u32>()?;
/// assert!(tokens[0] == 1 && tokens[1] != 0);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Shapes or dtypes that do not agree, or a row without logits.
pub fn sample(logits: &Tensor, sampler: &Sampler, positions: &Tensor, seen: Option<&Tensor>) -> Result<Tensor> {
    let (rows, vocab) = logits.dims2()?;
    let parameters = sampler.parameters();
    let is_float = matches!(logits.dtype(), DType::F32 | DType::F16 | DType::BF16);
    if !is_float || vocab == 0 || parameters.dim(0)? != rows {
        let (dtype, slots) = (logits.dtype(), parameters.dim(0)?);
        bail!("{slots} rows of parameters for logits of {dtype:?} {:?}: f32, f16 or bf16, as many rows", logits.dims())
    }
    if positions.dtype() != DType::U32 || ![1, rows].contains(&positions.elem_count()) {
        bail!("positions are one or {rows} numbers of u32, not {:?} {:?}", positions.dtype(), positions.dims())
    }
    if let Some(seen) = seen {
        check_seen(seen, rows, vocab)?;
    }
    let inputs: Vec<&Tensor> = [logits, parameters, positions].into_iter().chain(seen).collect();
    apply("sample", &inputs, 8 * logits.elem_count() as u64, |t| {
        let operands = t.iter().map(|t| t.contiguous()).collect::<Result<Vec<_>>>()?;
        let seen = operands.get(3);
        match t[0].device() {
            Device::Cpu => cpu::sample(&operands[0], &operands[1], &operands[2], seen),
            Device::Cuda(_) => match gpu!(cuda::sample(&operands[0], &operands[1], &operands[2], seen))? {
                Some(tokens) => Ok(tokens),
                None => bail!("this build samples on the CPU alone"),
            },
            Device::Metal(_) => bail!("tokens are sampled on CUDA devices and on the CPU"),
        }
    })
}

/// Marks a token of each row, `(rows)` of u32, as seen, in place: `seen`, `(rows, vocab)` of u8, becomes 1 there. A token
/// beyond the vocabulary marks nothing.
///
/// # Errors
/// Shapes or dtypes that do not agree.
pub fn mark_seen(seen: &Tensor, tokens: &Tensor) -> Result<()> {
    let (rows, vocab) = seen.dims2()?;
    check_seen(seen, rows, vocab)?;
    if tokens.dtype() != DType::U32 || tokens.elem_count() != rows {
        bail!("{rows} tokens of u32 are marked, not {:?} {:?}", tokens.dtype(), tokens.dims())
    }
    apply_in_place("mark_seen", &[seen, tokens], |t| t[0].inplace_op2(&t[1].contiguous()?, &cpu::Mark))
}

fn check_seen(seen: &Tensor, rows: usize, vocab: usize) -> Result<()> {
    if seen.dtype() != DType::U8 || seen.dims() != [rows, vocab] || !seen.is_contiguous() {
        bail!("`seen` is {:?} {:?}: it must be contiguous u8 {:?}", seen.dtype(), seen.layout(), [rows, vocab])
    }
    Ok(())
}
