//! Max and mean pooling, with padding and partial windows at the end, and subsampling.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod kind;
#[cfg(feature = "cuda")]
pub(super) mod launch;

use candle::{bail, Device, Result, Tensor};

use self::kind::PoolKind;
use super::differentiable::recomputed;
use super::{apply, own_on, own_or, PoolConfig};

/// Max pooling of `(batch, channels, h, w)`. Padding is never the maximum; NaN always is.
///
/// ```
/// # use candle::{DType, Device::Cpu, Tensor};
/// use opara_candle::ops::{self, PoolConfig};
///
/// let x = Tensor::zeros((1, 8, 32, 32), DType::F32, &Cpu)?; // (batch, channels, h, w)
/// let config = PoolConfig::new(2, 2); // kernel, stride
/// assert_eq!(ops::max_pool2d(&x, &config)?.dims(), [1, 8, 16, 16]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// A tensor of another rank, or a window that does not fit.
pub fn max_pool2d(x: &Tensor, config: &PoolConfig) -> Result<Tensor> {
    pool("max_pool2d", PoolKind::Max, x, config)
}

/// Mean pooling of `(batch, channels, h, w)`.
///
/// # Errors
/// A tensor of another rank, or a window that does not fit.
pub fn avg_pool2d(x: &Tensor, config: &PoolConfig) -> Result<Tensor> {
    pool("avg_pool2d", PoolKind::Mean, x, config)
}

fn pool(name: &'static str, kind: PoolKind, x: &Tensor, config: &PoolConfig) -> Result<Tensor> {
    let (batch, channels, h, w) = x.dims4()?;
    let (oh, ow) = config.output((h, w))?;
    let flops = (batch * channels * oh * ow * config.kernel * config.kernel) as u64;
    let config = PoolConfig { stride: config.padding.limit(config.stride, (h, w)), ..*config };
    let by_candle = move |t: &[&Tensor]| composed(t[0], kind, &config);
    let forward = move |t: &[&Tensor]| {
        let cpu = || cpu::pool(t[0], kind, config).map(Some);
        let own = own_on(t[0], cpu, || gpu!(cuda::pool(t[0], kind, &config)))?;
        own.map_or_else(|| by_candle(t), Ok)
    };
    // candle differentiates no windows that overlap or lie apart, and divides the gradient of a maximum by the window's size (0.11.1).
    let is_right = kind == PoolKind::Mean && config.stride == config.kernel;
    let differentiated = move |t: &[&Tensor]| if is_right { by_candle(t) } else { by_places(t[0], kind, &config) };
    apply(name, &[x], flops, move |t| recomputed(name, t, forward, differentiated))
}

/// The gradient of `x`, `(batch, channels, h, w)`, by that of the maxima or means `y` of its windows, of this size and so far apart. Elements
/// that are as large share the gradient. `None` if there is no kernel for the operands.
///
/// # Errors
/// Tensors of another rank, or a failed launch.
#[cfg(any(feature = "cuda", test))]
pub(crate) fn pool_gradient(operands: [&Tensor; 3], is_max: bool, windows: [[usize; 2]; 2]) -> Result<Option<Tensor>> {
    let kind = if is_max { PoolKind::Max } else { PoolKind::Mean };
    own_on(operands[0], || Ok(None), || gpu!(cuda::gradient(operands, kind, windows)))
}

/// The mean of each channel: `(batch, channels, h, w)` to `(batch, channels)`.
///
/// # Errors
/// A tensor of another rank.
pub fn global_avg_pool2d(x: &Tensor) -> Result<Tensor> {
    x.dims4()?;
    apply("global_avg_pool2d", &[x], x.elem_count() as u64, |t| {
        recomputed("global_avg_pool2d", t, global_mean, |t| t[0].mean((2, 3)))
    })
}

/// The mean of each channel. One launch on a GPU.
fn global_mean(t: &[&Tensor]) -> Result<Tensor> {
    let (batch, channels, h, w) = t[0].dims4()?;
    let config = PoolConfig::new(h.max(1), 1);
    let own = || match h == w {
        true => gpu!(cuda::pool(t[0], PoolKind::Mean, &config))?
            .map(|mean: Tensor| mean.reshape((batch, channels)))
            .transpose(),
        false => {
            let factor = 1. / (h * w) as f64;
            gpu!(cuda::plane_sums(t[0], factor))
        }
    };
    own_or(t[0], own, || t[0].mean((2, 3)))
}

/// The sum of each channel times a factor: `(batch, channels, h, w)` to `(batch, channels)`. One launch on a GPU, which reads planes
/// and channels-last images where they are. Sums are in f32, in f64 for that, and round once.
///
/// # Errors
/// A tensor of another rank.
#[cfg(any(feature = "cuda", test))]
pub(crate) fn plane_sums(x: &Tensor, factor: f64) -> Result<Tensor> {
    x.dims4()?;
    apply("plane_sums", &[x], x.elem_count() as u64, move |t| {
        let own = || gpu!(cuda::plane_sums(t[0], factor));
        own_or(t[0], own, || {
            let wide = if t[0].dtype() == candle::DType::F64 { candle::DType::F64 } else { candle::DType::F32 };
            t[0].to_dtype(wide)?.sum((2, 3))?.affine(factor, 0.)?.to_dtype(t[0].dtype())
        })
    })
}

/// Every `stride`-th row and column of `(batch, channels, h, w)` from `start` on. The result is `(batch, channels,
/// ceil(h / stride), ceil(w / stride))`, with zeros past the end of `x`.
///
/// # Errors
/// A tensor of another rank, or a stride of 0.
pub fn subsample(x: &Tensor, start: usize, stride: usize) -> Result<Tensor> {
    let (_, _, h, w) = x.dims4()?;
    if stride == 0 {
        bail!("every 0th row and column: the stride must be at least 1")
    }
    let to = (h.div_ceil(stride), w.div_ceil(stride));
    // Values beyond the image size have the same effect as the image size.
    let [start, stride] = [start, stride].map(|n| n.min(h.max(w).max(1)));
    apply("subsample", &[x], 0, move |t| {
        let own = own_on(t[0], || Ok(None), || gpu!(cuda::subsample(t[0], start, stride, to)))?;
        own.map_or_else(|| picked(t[0], start, stride, to), Ok)
    })
}

/// The same with candle's operators, for any device and dtype.
fn picked(x: &Tensor, start: usize, stride: usize, to: (usize, usize)) -> Result<Tensor> {
    let mut x = x.clone();
    for (dim, to) in [(2, to.0), (3, to.1)] {
        // Groups of `stride` elements; the first of each is kept.
        let size = x.dim(dim)?;
        let from = x.narrow(dim, start.min(size), size - start.min(size))?;
        let (before, after) = x.dims().split_at(dim);
        let shape = [before, &[to, stride], &after[1..]].concat();
        let padded = match to * stride - from.dim(dim)?.min(to * stride) {
            0 => from.narrow(dim, 0, to * stride)?,
            zeros => from.pad_with_zeros(dim, 0, zeros)?,
        };
        x = padded.contiguous()?.reshape(shape)?.narrow(dim + 1, 0, 1)?.squeeze(dim + 1)?;
    }
    x.contiguous()
}

/// The same with candle's operators, for any device and dtype.
fn composed(x: &Tensor, kind: PoolKind, config: &PoolConfig) -> Result<Tensor> {
    let PoolConfig { kernel, stride, .. } = *config;
    match kind {
        PoolKind::Max => covered(x, config, f64::NEG_INFINITY)?.max_pool2d_with_stride(kernel, stride),
        PoolKind::Mean => {
            let mean = covered(x, config, 0.)?.avg_pool2d_with_stride(kernel, stride)?;
            match parts(x, config)? {
                Some(parts) => (mean * (kernel * kernel) as f64)?.broadcast_mul(&parts),
                None => Ok(mean),
            }
        }
    }
}

/// The same with operators that candle differentiates for any stride: one for each place in a window.
fn by_places(x: &Tensor, kind: PoolKind, config: &PoolConfig) -> Result<Tensor> {
    let PoolConfig { kernel, stride, .. } = *config;
    let to = config.output((x.dim(2)?, x.dim(3)?))?;
    let covered = covered(x, config, if kind == PoolKind::Max { f64::NEG_INFINITY } else { 0. })?;
    let place = |at: usize| {
        let (row, column) = (at / kernel, at % kernel);
        let from = covered.narrow(2, row, covered.dim(2)? - row)?.narrow(3, column, covered.dim(3)? - column)?;
        picked(&from, 0, stride, to)
    };
    let first = place(0)?;
    match kind {
        PoolKind::Max => (1..kernel * kernel).try_fold(first, |all, at| all.maximum(&place(at)?)),
        PoolKind::Mean => {
            let sum = (1..kernel * kernel).try_fold(first, |all, at| all + place(at)?)?;
            match parts(x, config)? {
                Some(parts) => sum.broadcast_mul(&parts),
                None => sum / (kernel * kernel) as f64,
            }
        }
    }
}

/// The image that the windows cover, with `by` where they reach beyond it.
fn covered(x: &Tensor, config: &PoolConfig, by: f64) -> Result<Tensor> {
    let (h, w) = (x.dim(2)?, x.dim(3)?);
    let (oh, ow) = config.output((h, w))?;
    let PoolConfig { kernel, stride, padding: p, .. } = *config;
    let (bottom, right) = ((oh - 1) * stride + kernel, (ow - 1) * stride + kernel);
    let edge = |x: &Tensor, dim: usize, n: usize| {
        let mut shape = x.dims().to_vec();
        shape[dim] = n;
        Tensor::full(by as f32, shape, x.device())?.to_dtype(x.dtype())
    };
    let mut x = x.clone();
    for (dim, before, size, end) in [(2, p.top, h, bottom), (3, p.left, w, right)] {
        let after = end.saturating_sub(size + before);
        let used = size.min(end - before);
        let mut parts = vec![x.narrow(dim, 0, used)?];
        if before > 0 {
            parts.insert(0, edge(&x, dim, before)?);
        }
        if after > 0 {
            parts.push(edge(&x, dim, after)?);
        }
        x = Tensor::cat(&parts, dim)?;
    }
    Ok(x)
}

/// What each window's sum is multiplied with for its mean; `None` if every window counts all of its elements.
fn parts(x: &Tensor, config: &PoolConfig) -> Result<Option<Tensor>> {
    let (h, w) = (x.dim(2)?, x.dim(3)?);
    let (oh, ow) = config.output((h, w))?;
    let PoolConfig { kernel, padding: p, .. } = *config;
    let counted = |i: usize| {
        let rows = config.counted(i / ow, h, p.top, p.bottom);
        let columns = config.counted(i % ow, w, p.left, p.right);
        rows * columns
    };
    if (0..oh * ow).all(|i| counted(i) == kernel * kernel) {
        return Ok(None);
    }
    // Converted on the host: no kernel has to.
    let parts = Tensor::from_iter((0..oh * ow).map(|i| 1. / counted(i) as f64), &Device::Cpu)?;
    parts.reshape((1, 1, oh, ow))?.to_dtype(x.dtype())?.to_device(x.device()).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candles_operators_pool_alike() -> Result<()> {
        let x = (Tensor::arange(0f32, 210., &Device::Cpu)?.reshape((2, 3, 7, 5))? * 0.7)?.sin()?;
        let uneven = crate::ops::Padding { top: 0, bottom: 1, left: 2, right: 1 };
        for (stride, ceil, count_padding) in
            [(1, false, true), (1, false, false), (2, false, true), (2, true, true), (2, true, false)]
        {
            let config = PoolConfig::new(3, stride).padding(uneven).ceil(ceil).count_padding(count_padding);
            for (kind, own) in [(PoolKind::Max, max_pool2d(&x, &config)?), (PoolKind::Mean, avg_pool2d(&x, &config)?)] {
                for other in [composed(&x, kind, &config)?, by_places(&x, kind, &config)?] {
                    let largest = (&own - other)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
                    assert!(largest < 1e-6, "{kind:?}, {config:?}");
                }
            }
        }
        Ok(())
    }
}
