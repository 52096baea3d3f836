//! Nearest upsampling.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(super) mod launch;

use candle::{Result, Tensor};

use super::differentiable::recomputed;
use super::own_or;
use crate::cpu::record::apply;

/// `x`, `(batch, channels, h, w)`, with so many rows and columns. Each pixel is a copy of one of `x`, as candle's operator of this
/// name chooses it: of row `r`, that of row `floor(r * (h / rows))`, where the quotient and the product are rounded to f64.
///
/// On a GPU, images keep their memory layout.
///
/// ```
/// # use candle::{Device::Cpu, Tensor};
/// # use opara_candle::ops;
/// let x = Tensor::new(&[[[[1f32, 2.]]]], &Cpu)?; // (batch, channels, h, w)
/// let y = ops::upsample_nearest2d(&x, 2, 4)?;
/// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [1., 1., 2., 2., 1., 1., 2., 2.]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// A tensor of another rank.
pub fn upsample_nearest2d(x: &Tensor, rows: usize, columns: usize) -> Result<Tensor> {
    x.dims4()?;
    apply("upsample_nearest2d", &[x], 0, move |t| {
        let by_candle = move |t: &[&Tensor]| t[0].upsample_nearest2d(rows, columns);
        let forward =
            |t: &[&Tensor]| own_or(t[0], || gpu!(cuda::upsample_nearest2d(t[0], rows, columns)), || by_candle(t));
        recomputed("upsample_nearest2d", t, forward, by_candle)
    })
}
