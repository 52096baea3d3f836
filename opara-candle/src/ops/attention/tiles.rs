//! The effect of a bias on each tile of scores: a kernel looks, so that other kernels leave hidden tiles out.

use candle::{CudaDevice, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig};

use crate::cuda::driver::kernels::{kernels, ptx, strided, written};

kernels! {
    /// Tells the effect of a bias on each tile of scores.
    Looks<B> = "opara_attention_gradient_tiles_" for [f16 bf16 f32] {
        items: host, numel: usize, queries: u32, keys: u32, heads: u32, of_bias: u32 [3],
        bias: in B [strided([items, heads, queries], of_bias, keys)],
        tiles: out u8 [numel],
    }
}

/// Queries and keys of a tile.
const SIDE: usize = 64;
const THREADS: u32 = 128;

/// Tiles along the keys of which a block keeps the effect of a bias.
pub(super) const MOST: usize = 512;

/// The effect of a bias on tiles.
pub(super) struct Tiles {
    pub kinds: CudaSlice<u8>,
    /// From one item to the next, and from one head to the next.
    pub strides: [usize; 2],
    /// Tiles of all items and heads that differ.
    pub all: usize,
}

impl Tiles {
    /// Whether the look costs little beside the attention: a head has many tiles, and all heads and items have one bias. A bias of each head by
    /// itself is as large as the scores.
    pub fn pay(bias_strides: [usize; 3], [batch, heads, queries, keys]: [usize; 4]) -> bool {
        /// Tiles of a head.
        const MANY: usize = 64;
        let of_one = queries.div_ceil(SIDE) * keys.div_ceil(SIDE);
        let differ = (bias_strides[0] > 0 && batch > 1) || (bias_strides[1] > 0 && heads > 1);
        of_one >= MANY && !differ && keys.div_ceil(SIDE) <= MOST
    }

    /// Looks at a bias, whose strides are over batches, heads and queries. What repeats is looked at once.
    ///
    /// # Errors
    /// A slice that is too short, or a failed launch.
    pub fn of<B: DeviceRepr>(
        device: &CudaDevice,
        bias: &CudaView<B>,
        of_bias: [usize; 3],
        [batch, heads, queries, keys]: [usize; 4],
        dtype: &str,
    ) -> Result<Self> {
        let sides = [queries.div_ceil(SIDE), keys.div_ceil(SIDE)];
        let [items, heads] =
            [(of_bias[0], batch), (of_bias[1], heads)].map(|(stride, len)| if stride == 0 { 1 } else { len });
        let of_one = sides[0] * sides[1];
        let strides = [if items > 1 { heads * of_one } else { 0 }, if heads > 1 { of_one } else { 0 }];
        let all = items * heads * of_one;
        let kinds = written::<u8>(device, all, |tiles| {
            let config = LaunchConfig {
                grid_dim: (sides[1] as u32, sides[0] as u32, (items * heads) as u32),
                block_dim: (THREADS, 1, 1),
                shared_mem_bytes: 0,
            };
            let tiles = tiles.as_view_mut();
            Looks { items, numel: all, queries, keys, heads, of_bias, bias, tiles }.launch(
                device,
                dtype,
                ptx::ATTENTION_GRADIENT,
                config,
            )
        })?;
        Ok(Self { kinds, strides, all })
    }
}

#[cfg(test)]
mod tests {
    use candle::{DType, Tensor};

    use super::*;
    use crate::ops::test_numbers::numbers;
    use crate::ops::{attention_of_scores, Bias, Scores};
    use crate::test_device::gpu;

    /// A bias of each head by itself is not looked at, so that no tile is left out. Needs a GPU; skips without one.
    #[test]
    fn hidden_tiles_change_no_bit() -> Result<()> {
        let Some(device) = gpu() else { return Ok(()) };
        let [batch, heads, queries, keys] = [2, 3, 600, 700];
        type Sees = fn(usize, usize) -> f32;
        let biases: [(&str, Sees); 6] = [
            ("causal", |query, key| if key > query + 100 { f32::NEG_INFINITY } else { 0. }),
            ("window", |query, key| if key > query || key + 150 < query { f32::NEG_INFINITY } else { 0. }),
            ("nothing", |_, _| 0.),
            ("numbers", |query, key| (query * 31 + key * 17) as f32 % 13. / 8.),
            ("first keys hidden", |_, key| if key < 256 { f32::NEG_INFINITY } else { 0.5 }),
            ("queries that see nothing", |query, _| if (64..200).contains(&query) { f32::NEG_INFINITY } else { 0. }),
        ];
        for (dtype, size) in [(DType::BF16, 64), (DType::F16, 128), (DType::BF16, 160)] {
            let of = |seed, tokens: usize| {
                let all =
                    numbers(seed, (batch * heads * tokens, size), dtype)?.reshape((batch, heads, tokens, size))?;
                all.to_device(&device)
            };
            let (q, k, v) = (of(1, queries)?, of(2, keys)?, of(3, keys)?);
            for (name, sees) in biases {
                let all = (0..queries * keys).map(|at| sees(at / keys, at % keys));
                let bias = Tensor::from_iter(all, &device)?.reshape((1, 1, queries, keys))?.to_dtype(dtype)?;
                let scores = Scores { scale: 0.125, cap: None, bias: Bias::Added, in_f32: false, by_heads: false };
                let shape = (batch, heads, queries, keys);
                let looked = attention_of_scores([&q, &k, &v], Some(&bias.broadcast_as(shape)?), &scores)?;
                let apart = bias.broadcast_as(shape)?.contiguous()?;
                let plain = attention_of_scores([&q, &k, &v], Some(&apart), &scores)?;
                let bits = |t: &Tensor| t.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
                let differ =
                    bits(&looked)?.iter().zip(&bits(&plain)?).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
                assert_eq!(differ, 0, "{name}, {dtype:?}, heads of {size}");
            }
        }
        Ok(())
    }
}
