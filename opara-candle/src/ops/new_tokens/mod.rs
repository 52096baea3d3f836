//! New tokens' keys and values into a cache, on a GPU: a launch that normalises and turns them, and their queries, first.

pub(super) mod launch;

use candle::cuda_backend::CudaDType;
use candle::{bail, Result, Tensor};
use cudarc::driver::DeviceRepr;

use self::launch::Operands;
pub(super) use self::launch::Sizes;
use crate::cuda::operator::{launched, with_elements, Call, Kernel};

/// Tensors that go with the new tokens: contiguous, beginning at multiples of 16 bytes, and of one device and dtype, as described at
/// [`cached_attention`](super::cached_attention).
pub(super) struct Beside<'a> {
    pub norms: Option<(&'a Tensor, &'a Tensor)>,
    pub start: &'a Tensor,
    pub counts: Option<&'a Tensor>,
    pub pages: Option<&'a Tensor>,
    pub rotary: Option<&'a Tensor>,
    /// Is written to.
    pub cache: &'a Tensor,
}

/// Writes what `qkv` has of keys and values into the cache, and gives the queries, `(batch, tokens, heads, head_dim)`. `sizes` are known.
pub(super) fn new_tokens(sizes: Sizes, qkv: &Tensor, beside: &Beside) -> Result<Tensor> {
    let Beside { norms, start, counts, pages, rotary, cache } = *beside;
    let norms = norms.map(|(q, k)| (q.clone(), k.clone()));
    let (start, counts, pages) = (start.clone(), counts.cloned(), pages.cloned());
    let kernel = IntoCache { sizes, norms, start, counts, pages, rotary: rotary.cloned(), cache: cache.clone() };
    launched(kernel, qkv, (sizes.batch, sizes.tokens, sizes.heads, sizes.head_dim))
}

struct IntoCache {
    sizes: Sizes,
    norms: Option<(Tensor, Tensor)>,
    start: Tensor,
    counts: Option<Tensor>,
    pages: Option<Tensor>,
    rotary: Option<Tensor>,
    cache: Tensor,
}

impl Kernel for IntoCache {
    const NAME: &'static str = "new_tokens";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, x, y, .. }: Call<T>) -> Result<()> {
        let Self { sizes, norms, start, counts, pages, rotary, cache } = self;
        let of_heads = [Some(cache), norms.as_ref().map(|(q, _)| q), norms.as_ref().map(|(_, k)| k)];
        with_elements(of_heads, |[cache, q, k]| {
            with_elements::<u32, _, 3>([Some(start), counts.as_ref(), pages.as_ref()], |[start, counts, pages]| {
                with_elements::<f32, _, 1>([rotary.as_ref()], |[rotary]| {
                    let (Some(cache), Some(start)) = (&cache, &start) else { bail!("there are a cache and positions") };
                    let norms = q.as_ref().zip(k.as_ref());
                    let (counts, pages, rotary) = (counts.as_ref(), pages.as_ref(), rotary.as_ref());
                    let operands = Operands { norms, start, counts, pages, rotary, cache };
                    launch::new_tokens(device, sizes, &x, &operands, y)
                })
            })
        })
    }
}
