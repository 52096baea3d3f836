//! Softmax cross-entropy: from logits to a loss, and to their gradient.

mod config;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(super) mod launch;

use candle::{bail, DType, Result, Tensor, D};

pub use self::config::CrossEntropy;
use super::column_sums::in_sums;
use super::differentiable::differentiable;
use super::own_on;
use crate::cpu::record::apply;

/// The mean over all rows of the cross-entropy between the softmax of `logits`, `(.., classes)`, and `targets`, `(..)`, which are of u32 or
/// i64. Sums and loss are in f32, or in f64 for logits of f64. Neither logarithms nor weights are stored: the backward pass reads the
/// logits again, and writes their gradient.
///
/// The loss is not a number if no row counts. On a GPU it is not one either if a target is no class, which is an error on a CPU.
///
/// ```
/// # use candle::{Device::Cpu, Tensor, Var};
/// # use opara_candle::ops::{self, CrossEntropy};
/// let logits = Var::from_tensor(&Tensor::zeros((2, 4), candle::DType::F32, &Cpu)?)?;
/// let targets = Tensor::new(&[3u32, 0], &Cpu)?;
/// let loss = ops::cross_entropy(&logits, &targets, CrossEntropy { ignored: Some(0), ..Default::default() })?;
/// assert!((loss.to_scalar::<f32>()? - 4f32.ln()).abs() < 1e-6);
/// let gradient = loss.backward()?.get(&logits).unwrap().to_vec2::<f32>()?;
/// assert!((gradient[0][3] + 0.75).abs() < 1e-6 && gradient[1] == [0.; 4]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Shapes that do not agree, and targets of another type.
pub fn cross_entropy(logits: &Tensor, targets: &Tensor, of: CrossEntropy) -> Result<Tensor> {
    let Some((&classes, rows)) = logits.dims().split_last() else { bail!("a scalar has no classes") };
    if rows != targets.dims() || classes == 0 {
        bail!("targets of {:?} for logits of {:?}", targets.shape(), logits.shape())
    }
    if !matches!(targets.dtype(), DType::U32 | DType::I64) {
        bail!("targets are of u32 or i64, not {:?}", targets.dtype())
    }
    apply("cross_entropy", &[logits, targets], 6 * logits.elem_count() as u64, move |t| {
        let forward = |t: &[&Tensor]| {
            let own = || gpu!(cuda::cross_entropy(t[0], t[1], of));
            match own_on(t[0], || Ok(None), own)? {
                Some((loss, losses)) => Ok((loss, vec![losses])),
                None => Ok((Rows::of(t[0], t[1], of)?.loss()?, Vec::new())),
            }
        };
        differentiable("cross_entropy", t, forward, move |passed| {
            let [logits, targets] = passed.operands else { bail!("a loss without targets") };
            Ok(vec![Some(cross_entropy_backward(logits, targets, passed.saved.first(), passed.gradient, of)?), None])
        })
    })
}

/// The gradient of the logits by that of the loss. `losses` are those of a launch of [`cross_entropy`]'s on a GPU; without them the loss is
/// computed again.
///
/// # Errors
/// As for [`cross_entropy`].
pub(crate) fn cross_entropy_backward(
    logits: &Tensor,
    targets: &Tensor,
    losses: Option<&Tensor>,
    gradient: &Tensor,
    of: CrossEntropy,
) -> Result<Tensor> {
    let own = || match losses {
        Some(losses) => gpu!(cuda::gradient(logits, targets, losses, gradient, of)),
        None => Ok(None),
    };
    own_on(logits, || Ok(None), own)?.map_or_else(|| Rows::of(logits, targets, of)?.gradient(gradient, logits), Ok)
}

/// The same by candle's operators.
struct Rows {
    of: CrossEntropy,
    /// The class of each row, and 1 for a row that counts.
    targets: Tensor,
    counts: Tensor,
    /// Of the softmax.
    logarithms: Tensor,
}

impl Rows {
    fn of(logits: &Tensor, targets: &Tensor, of: CrossEntropy) -> Result<Self> {
        let classes = logits.dim(D::Minus1)?;
        let logits = in_sums(logits)?.contiguous()?.reshape(((), classes))?;
        let targets = targets.flatten_all()?.to_dtype(DType::I64)?;
        let counts = match of.ignored {
            Some(ignored) => targets.ne(ignored)?,
            None => targets.ones_like()?.to_dtype(DType::U8)?,
        };
        let targets = counts.where_cond(&targets, &targets.zeros_like()?)?.unsqueeze(1)?;
        let centred = logits.broadcast_sub(&logits.max_keepdim(1)?)?;
        let logarithms = centred.broadcast_sub(&centred.exp()?.sum_keepdim(1)?.log()?)?;
        Ok(Self { of, targets, counts: counts.to_dtype(logits.dtype())?.unsqueeze(1)?, logarithms })
    }

    /// The weights of a row's own class, and of each class.
    fn weights(&self) -> Result<(f64, f64)> {
        let smoothing = f64::from(self.of.smoothing);
        Ok((1. - smoothing, smoothing / self.logarithms.dim(1)? as f64))
    }

    fn loss(&self) -> Result<Tensor> {
        let (own, each) = self.weights()?;
        let mut losses = (self.logarithms.gather(&self.targets, 1)? * -own)?;
        if each > 0. {
            losses = (losses - (self.logarithms.sum_keepdim(1)? * each)?)?;
        }
        (losses * &self.counts)?.sum_all()? / self.counts.sum_all()?
    }

    fn gradient(&self, gradient: &Tensor, like: &Tensor) -> Result<Tensor> {
        let (own, each) = self.weights()?;
        let wanted = self.targets.ones_like()?.to_dtype(self.logarithms.dtype())?.affine(-own, 0.)?;
        let differences = self.logarithms.exp()?.affine(1., -each)?.scatter_add(&self.targets, &wanted, 1)?;
        let factor = (gradient / self.counts.sum_all()?)?;
        let counted = differences.broadcast_mul(&self.counts)?.broadcast_mul(&factor)?;
        counted.reshape(like.shape())?.to_dtype(like.dtype())
    }
}
