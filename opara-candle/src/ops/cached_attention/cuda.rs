//! Attention of one new token a sequence in one launch.

use candle::cuda_backend::CudaDType;
use candle::{bail, Result, Tensor};
use cudarc::driver::DeviceRepr;

use super::launch::{self, Operands, Sizes};
use super::{CachedAttention, NewTokens};
use crate::cuda::driver::address_of;
use crate::cuda::operator::{launched, takes, with_elements, Call, Kernel};

/// See [`cached_attention`](super::cached_attention); `None` where other operators have to do it.
pub(super) fn cached_attention(of: &CachedAttention, cache: &Tensor, new: &NewTokens) -> Result<Option<Tensor>> {
    let NewTokens { qkv, start, rotary, norms } = *new;
    let (batch, tokens, _) = qkv.dims3()?;
    let (positions, turning) = rotary.dims2()?;
    let sizes = Sizes { of: *of, dtype: qkv.dtype(), batch, capacity: cache.dim(3)?, pairs: turning / 2, positions };
    let together = [start, rotary].iter().all(|tensor| tensor.device().same_device(qkv.device()));
    if tokens != 1
        || !sizes.is_known()
        || !together
        || !takes(qkv, &[Some(cache), norms.map(|(q, _)| q), norms.map(|(_, k)| k)])
    {
        return Ok(None);
    }
    let norms = norms.map(|(q, k)| Ok::<_, candle::Error>((q.contiguous()?, k.contiguous()?))).transpose()?;
    let (qkv, start, rotary) = (qkv.contiguous()?, start.contiguous()?, rotary.contiguous()?);
    let loaded =
        [Some(&qkv), Some(cache), Some(&rotary), norms.as_ref().map(|(q, _)| q), norms.as_ref().map(|(_, k)| k)];
    for operand in loaded.into_iter().flatten() {
        if !address_of(operand).map_err(candle::Error::wrap)?.is_multiple_of(16) {
            return Ok(None);
        }
    }
    let kernel = OneToken { sizes, norms, start, rotary, cache: cache.clone() };
    launched(kernel, &qkv, (batch, 1, of.heads * of.head_dim)).map(Some)
}

struct OneToken {
    sizes: Sizes,
    norms: Option<(Tensor, Tensor)>,
    start: Tensor,
    rotary: Tensor,
    cache: Tensor,
}

impl Kernel for OneToken {
    const NAME: &'static str = "cached_attention";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, x, y, .. }: Call<T>) -> Result<()> {
        let Self { sizes, norms, start, rotary, cache } = self;
        let of_heads = [Some(cache), norms.as_ref().map(|(q, _)| q), norms.as_ref().map(|(_, k)| k)];
        with_elements(of_heads, |[cache, q, k]| {
            with_elements::<u32, _, 1>([Some(start)], |[start]| {
                with_elements::<f32, _, 1>([Some(rotary)], |[rotary]| {
                    let (Some(cache), Some(start), Some(rotary)) = (&cache, &start, &rotary) else {
                        bail!("there are a cache, positions and a table")
                    };
                    let operands = Operands { norms: q.as_ref().zip(k.as_ref()), start, rotary, cache };
                    launch::cached_attention(device, sizes, &x, &operands, y)
                })
            })
        })
    }
}
