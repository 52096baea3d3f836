//! Launches of `one_query.cuh`.

use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig};

use crate::cuda::driver::kernels::{kernels, ptx, strided, Capabilities};
use crate::cuda::operator::head_rows::HeadRows;
use crate::cuda::operator::places::{Split, THREADS};

kernels! {
    /// What each query sees of the keys and values.
    OneQuery<T> = "opara_attention_one_query_" for [f16 bf16 f32] {
        batch: grid [1], numel: u32, heads: u32, dim: u32, keys: u32, of_q: u32 [2], of_k: u32 [3], of_v: u32 [3],
        of_bias: u32 [2], scale: f32, cap: f32,
        q: wide in T [strided([batch, heads], of_q, dim)],
        k: early wide in T [strided([batch, heads, keys], of_k, dim)],
        v: early wide in T [strided([batch, heads, keys], of_v, dim)],
        bias: early opt T [strided([batch, heads], of_bias, keys)],
        y: out T [numel],
    }
}

/// Sizes of a launch, with the layouts of queries, keys and values.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub dtype: DType,
    pub scale: f32,
    /// What scores are limited to; 0 for none.
    pub cap: f32,
    pub q: HeadRows,
    pub k: HeadRows,
    pub v: HeadRows,
    /// Strides of the bias over items and heads.
    pub bias: [usize; 2],
}

impl Sizes {
    /// The kernel; `None` if there is none for these sizes.
    fn kernel(&self) -> Option<Split> {
        let [batch, heads, queries, dim] = self.q.dims();
        let keys = self.k.dims()[2];
        let agree = queries == 1 && self.k.dims() == [batch, heads, keys, dim] && self.v.dims() == self.k.dims();
        let is_there = batch > 0 && heads > 0 && keys > 0;
        let is_counted = batch <= 65_535 && self.bias.iter().all(|&stride| stride <= u32::MAX as usize);
        let is_known = OneQuery::<()>::is_for(self.dtype);
        let split = Split::new(1, dim, keys)?;
        (agree && is_there && is_counted && is_known).then_some(split)
    }

    /// Whether there is a kernel.
    pub fn is_known(&self) -> bool {
        self.kernel().is_some()
    }
}

/// What each query sees of the keys and values, into `y` as `(batch, heads, dim)`.
///
/// # Errors
/// Sizes without a kernel, slices that are too short or begin elsewhere than at multiples of 16 bytes, or a launch that fails.
pub(super) fn one_query<T: DeviceRepr>(
    device: &CudaDevice,
    sizes: &Sizes,
    [q, k, v]: [&CudaView<T>; 3],
    bias: Option<&CudaView<T>>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let Sizes { dtype, scale, cap, q: of_q, k: of_k, v: of_v, bias: of_bias } = *sizes;
    let Some(split) = sizes.kernel() else { bail!("no kernel for {sizes:?}") };
    let ([batch, heads, _, dim], keys) = (of_q.dims(), of_k.dims()[2]);
    let code = match dtype {
        DType::F16 => ptx::ONE_QUERY_F16,
        DType::BF16 => ptx::ONE_QUERY_BF16,
        _ => ptx::ONE_QUERY_F32,
    };
    let variant = format!("{}_{}", split.name(), dtype.as_str());
    let blocks = split.blocks(Capabilities::of(device, code)?.has_clusters());
    let ([q_item, q_head, _], of_k, of_v) = (of_q.strides(), of_k.strides(), of_v.strides());
    let (numel, of_q, y) = (batch * heads * dim, [q_item, q_head], y.as_view_mut());
    let config = LaunchConfig {
        grid_dim: (heads as u32, batch as u32, blocks),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes: 0,
    };
    OneQuery { batch, numel, heads, dim, keys, of_q, of_k, of_v, of_bias, scale, cap, q, k, v, bias, y }
        .launch(device, &variant, code, config)
}
