//! Attention of new tokens over a cache that has their keys and values already, on a GPU: a launch that reads as many places as the
//! tokens see.

pub(super) mod launch;

use candle::cuda_backend::CudaDType;
use candle::{bail, Result, Tensor};
use cudarc::driver::DeviceRepr;

pub(super) use self::launch::Sizes;
use crate::cuda::operator::{launched, with_elements, Call, Kernel};

/// What queries `(batch, tokens, heads, head_dim)` see of the cache, `(batch, tokens, heads * head_dim)`: of sequence `i`, token `t` stands
/// at place `start[i] + t`, which is in the cache where the table of pages says, if there is one. All are contiguous, and begin at multiples of 16 bytes. `None` where other operators have to do it.
pub(super) fn causal_attention(
    sizes: Sizes,
    q: &Tensor,
    cache: &Tensor,
    start: &Tensor,
    pages: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    if !launch::attends(q.device().as_cuda_device()?, &sizes)? {
        return Ok(None);
    }
    let kernel = Causal { sizes, cache: cache.clone(), start: start.clone(), pages: pages.cloned() };
    launched(kernel, q, (sizes.batch, sizes.tokens, sizes.heads * sizes.head_dim)).map(Some)
}

struct Causal {
    sizes: Sizes,
    cache: Tensor,
    start: Tensor,
    pages: Option<Tensor>,
}

impl Kernel for Causal {
    const NAME: &'static str = "causal_attention";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, x, y, .. }: Call<T>) -> Result<()> {
        let Self { sizes, cache, start, pages } = self;
        with_elements([Some(cache)], |[cache]| {
            with_elements::<u32, _, 2>([Some(start), pages.as_ref()], |[start, pages]| {
                let (Some(cache), Some(start)) = (&cache, &start) else { bail!("there are a cache and positions") };
                launch::causal_attention(device, sizes, &x, cache, (start, pages.as_ref()), y)
            })
        })
    }
}
