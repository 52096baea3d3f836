//! Launches of the kernels in `cuda/ops`.

mod attention;
mod capabilities;
mod cat;
pub(in crate::cuda) mod compile;
mod element;
mod embedding;
pub(in crate::cuda) mod fused;
pub(in crate::cuda) mod module;
mod norm;
mod product;
mod softmax;
mod space_to_depth;
mod wait;
mod window;

use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaFunction, CudaSlice, CudaView, DevicePtr, DeviceRepr, LaunchArgs, LaunchConfig, PushKernelArg,
};

pub(in crate::cuda) use self::attention::{attends, attention, HeadRows};
pub(in crate::cuda) use self::capabilities::{lacks, Capabilities};
pub(in crate::cuda) use self::cat::{cat, cat_sums, MOST_PARTS};
pub(in crate::cuda) use self::element::{bias_act, split_heads, Heads};
pub(in crate::cuda) use self::embedding::embedding;
pub(in crate::cuda) use self::norm::{add_rms_norm, layer_norm, rms_norm, Rows};
pub(in crate::cuda) use self::product::{blocks_of, product, Block};
pub(in crate::cuda) use self::softmax::softmax;
pub(in crate::cuda) use self::space_to_depth::{space_to_depth, Squares};
pub(in crate::cuda) use self::wait::wait;
pub(in crate::cuda) use self::window::{depthwise, pool, Plane, Windows};
use crate::ops::Activation;

/// Memory for elements that the next launch writes.
///
/// # Errors
/// No memory left.
pub(in crate::cuda) fn uninit<T: DeviceRepr>(device: &CudaDevice, elements: usize) -> Result<CudaSlice<T>> {
    // SAFETY: the callers pass it to a launch below, or to a library, which writes every element before anybody reads one;
    // if that fails the slice is dropped.
    unsafe { device.alloc::<T>(elements) }
}

fn function(device: &CudaDevice, name: &str, module: &str, code: &str) -> Result<CudaFunction> {
    match device.get_or_load_custom_func(name, &format!("opara_{module}"), code) {
        Ok(function) => Ok(function.into_cuda_function()),
        Err(error) => match Capabilities::of(device, code)?.refusal() {
            Some(refusal) => bail!("{refusal} ({error})"),
            None => Err(error),
        },
    }
}

pub(in crate::cuda) fn address<T>(slice: &CudaView<T>, device: &CudaDevice) -> CUdeviceptr {
    slice.device_ptr(&device.cuda_stream()).0
}

/// The kernels of `cuda/ops`, as the build compiled them.
pub(in crate::cuda) mod ptx {
    include!(concat!(env!("OUT_DIR"), "/ptx.rs"));
}

const NULL: CUdeviceptr = 0;

/// Adds an operand, or null where there is none.
fn arg_or_null<'a, T>(launch: &mut LaunchArgs<'a>, operand: Option<&'a CudaView<'a, T>>) {
    match operand {
        Some(operand) => launch.arg(operand),
        None => launch.arg(&NULL),
    };
}

fn blocks(threads: usize) -> LaunchConfig {
    const BLOCK: u32 = 128;
    LaunchConfig { grid_dim: ((threads as u32).div_ceil(BLOCK), 1, 1), block_dim: (BLOCK, 1, 1), shared_mem_bytes: 0 }
}

/// As many neighbours as 16 bytes hold (`WIDE` of `numbers.cuh`).
fn wide(dtype: DType) -> usize {
    16 / dtype.size_in_bytes()
}

/// The launch of a kernel each of whose threads makes so many elements (`Share` of `numbers.cuh`).
fn wide_blocks(elements: usize, dtype: DType) -> LaunchConfig {
    blocks(elements.div_ceil(wide(dtype)))
}

/// What `activation.cuh` calls it.
fn code_of(activation: Activation) -> i32 {
    match activation {
        Activation::None => 0,
        Activation::Relu => 1,
        Activation::Gelu => 2,
        Activation::GeluErf => 3,
        Activation::Silu => 4,
    }
}

/// Elements from the first to the last of a tensor of these sizes and strides.
fn extent(along: impl IntoIterator<Item = (usize, usize)>) -> usize {
    let last = along.into_iter().try_fold(0, |last, (size, stride)| Some(last + size.checked_sub(1)? * stride));
    last.map_or(0, |last| last + 1)
}

fn expect(what: &str, held: usize, needed: usize) -> Result<()> {
    if held < needed {
        bail!("{what} holds {held} elements where {needed} are needed")
    }
    Ok(())
}
