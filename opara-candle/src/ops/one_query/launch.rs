//! Launches of `one_query.cuh`.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig, PushKernelArg};

use crate::cuda::driver::kernels::{address, arg_or_null, expect, extent, function, ptx, Capabilities};
use crate::cuda::operator::head_rows::HeadRows;
use crate::cuda::operator::places::{Split, THREADS};

/// Sizes of a launch, with the layouts of queries, keys and values.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub dtype: DType,
    pub scale: f32,
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
        let is_known = matches!(self.dtype, DType::F32 | DType::F16 | DType::BF16);
        let split = Split::new(1, dim, keys)?;
        (agree && is_there && is_counted && is_known).then_some(split)
    }

    /// Whether there is a kernel.
    pub fn is_known(&self) -> bool {
        self.kernel().is_some()
    }
}

/// The operands of a launch.
pub(super) struct Operands<'a, T> {
    pub q: &'a CudaView<'a, T>,
    pub k: &'a CudaView<'a, T>,
    pub v: &'a CudaView<'a, T>,
    pub bias: Option<&'a CudaView<'a, T>>,
}

/// What each query sees of the keys and values, into `y` as `(batch, heads, dim)`.
///
/// # Errors
/// Sizes without a kernel, slices that are too short or begin elsewhere than at multiples of 16 bytes, or a launch that fails.
pub(super) fn one_query<T: DeviceRepr>(
    device: &CudaDevice,
    sizes: &Sizes,
    operands: &Operands<T>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let Sizes { dtype, scale, q: of_q, k: of_k, v: of_v, bias: of_bias } = *sizes;
    let Operands { q, k, v, bias } = *operands;
    let Some(split) = sizes.kernel() else { bail!("no kernel for {sizes:?}") };
    let ([batch, heads, _, dim], keys) = (of_q.dims(), of_k.dims()[2]);
    for (what, operand, of) in [("the query", q, of_q), ("the key", k, of_k), ("the value", v, of_v)] {
        expect(what, operand.len(), of.needed())?;
        if !address(operand, device).is_multiple_of(16) {
            bail!("{what} of {sizes:?} does not begin at a multiple of 16 bytes")
        }
    }
    let needed = extent([(batch, of_bias[0]), (heads, of_bias[1]), (keys, 1)]);
    expect("the bias", bias.map_or(needed, CudaView::len), needed)?;
    let numel = batch * heads * dim;
    expect("the result", y.len(), numel)?;
    let code = match dtype {
        DType::F16 => ptx::ONE_QUERY_F16,
        DType::BF16 => ptx::ONE_QUERY_BF16,
        _ => ptx::ONE_QUERY_F32,
    };
    let name = format!("opara_one_query_attention_{}_{}", split.name(), dtype.as_str());
    let function = function(device, &name, code)?;
    let blocks = split.blocks(Capabilities::of(device, code)?.has_clusters());
    let ([q_item, q_head, _], [k_item, k_head, k_place]) = (of_q.strides(), of_k.strides());
    let [v_item, v_head, v_place] = of_v.strides();
    let numbers = [numel, heads, dim, keys, q_item, q_head, k_item, k_head, k_place, v_item, v_head, v_place];
    let numbers: Vec<u32> = numbers.into_iter().chain(of_bias).map(|n| n as u32).collect();
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    for number in &numbers {
        launch.arg(number);
    }
    launch.arg(&scale).arg(q).arg(k).arg(v);
    arg_or_null(&mut launch, bias);
    launch.arg(y);
    let config = LaunchConfig {
        grid_dim: (heads as u32, batch as u32, blocks),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes: 0,
    };
    // SAFETY: the arguments are those that the kernel declares. It reads each row of `q`, `k` and `v` at its strides, a number of
    // the bias for each key at its strides, nothing through null, and writes each of `numel` of `y`: all were held against the
    // slices above. Rows begin at multiples of 16 bytes: `HeadRows::of` saw the strides, and the addresses were looked at above.
    unsafe { launch.launch(config) }.w()?;
    Ok(())
}
