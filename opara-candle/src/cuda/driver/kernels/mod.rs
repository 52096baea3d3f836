//! Shared parts of kernel launches: loading code, allocating results, and passing arguments.

mod ahead;
pub(crate) mod capabilities;
pub(in crate::cuda) mod compile;
pub(crate) mod declare;
pub(crate) mod declared;
pub(in crate::cuda) mod fused;
pub(crate) mod matrix;
pub(in crate::cuda) mod module;
mod only_kernel;
mod store;
mod wait;

use candle::cuda_backend::{CudaDType, WrapErr};
use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
use cudarc::driver::sys::CUfunction_attribute::{
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
};
use cudarc::driver::{CudaFunction, CudaSlice, CudaView, DevicePtr, DeviceRepr, LaunchConfig};

pub(crate) use self::ahead::CompilerAhead;
pub(crate) use self::capabilities::Capabilities;
pub(crate) use self::declare::kernels;
pub(in crate::cuda) use self::module::Compiled;
pub(in crate::cuda) use self::only_kernel::only_kernel;
pub(in crate::cuda) use self::store::store;
pub(crate) use self::store::Word;
pub(crate) use self::wait::wait;

/// A result of so many elements, which `launch` writes. Nobody else has the memory before: if the launch fails, it is freed.
///
/// # Errors
/// No memory left, or the launch's.
pub(crate) fn written<T: CudaDType + DeviceRepr>(
    device: &CudaDevice,
    elements: usize,
    launch: impl FnOnce(&mut CudaSlice<T>) -> Result<()>,
) -> Result<CudaSlice<T>> {
    // SAFETY: elements of candle's types are numbers, and any bytes are one: a launch that left an element out would give a
    // wrong number, and no invalid value.
    let mut result = unsafe { device.alloc::<T>(elements) }?;
    launch(&mut result)?;
    Ok(result)
}

/// Writes zeros to all of a result.
///
/// # Errors
/// A failed driver call.
pub(crate) fn write_zeros<T>(device: &CudaDevice, y: &mut CudaSlice<T>) -> Result<()> {
    let bytes = y.len() * size_of::<T>();
    // SAFETY: every value of a byte is valid, and the view is as long as the slice, in bytes.
    match unsafe { y.transmute_mut::<u8>(bytes) } {
        Some(mut bytes) => device.cuda_stream().memset_zeros(&mut bytes).w(),
        None => bail!("a result of {} elements is too short for them", y.len()),
    }
}

/// Loads the kernel `name` of the PTX module `code` on the device, without the module's other kernels.
///
/// # Errors
/// Code that does not run on the device, or has no such kernel.
pub(crate) fn function(device: &CudaDevice, name: &str, code: &str) -> Result<CudaFunction> {
    match device.get_or_load_custom_func(name, name, &only_kernel(name, code)) {
        Ok(function) => Ok(function.into_cuda_function()),
        Err(error) => match Capabilities::of(device, code)?.refusal() {
            Some(refusal) => bail!("{refusal} ({error})"),
            None => Err(error),
        },
    }
}

/// Allows launches of the kernel all shared memory that a block may have: a graph may hold launches that ask for more than the latest one.
///
/// # Errors
/// A failed driver call.
fn allow_shared(device: &CudaDevice, function: &CudaFunction) -> Result<()> {
    let stream = device.cuda_stream();
    let most = stream.context().attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN).w()?;
    let fixed = function.get_attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES).w()?;
    function.set_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most - fixed).w()
}

/// The device address of the slice.
pub(crate) fn address<T>(slice: &CudaView<T>, device: &CudaDevice) -> u64 {
    slice.device_ptr(&device.cuda_stream()).0
}

pub(crate) use opara_kernels::ptx;

/// The launch shape for this many threads.
pub(crate) fn blocks(threads: usize) -> LaunchConfig {
    const BLOCK: u32 = 128;
    LaunchConfig { grid_dim: ((threads as u32).div_ceil(BLOCK), 1, 1), block_dim: (BLOCK, 1, 1), shared_mem_bytes: 0 }
}

/// Elements of a 16-byte vector (`WIDE` of `numbers.cuh`).
pub(crate) fn wide(dtype: DType) -> usize {
    16 / dtype.size_in_bytes()
}

/// The launch shape of a kernel whose threads compute one 16-byte vector each (`ThreadElements` of `numbers.cuh`).
pub(crate) fn wide_blocks(elements: usize, dtype: DType) -> LaunchConfig {
    blocks(elements.div_ceil(wide(dtype)))
}

/// Elements from the first to the last element of a tensor with these sizes and strides.
pub(crate) fn extent(along: impl IntoIterator<Item = (usize, usize)>) -> usize {
    let last = along.into_iter().try_fold(0, |last, (size, stride)| Some(last + size.checked_sub(1)? * stride));
    last.map_or(0, |last| last + 1)
}

/// Elements from the first to the last one of rows with these sizes and strides, whose elements lie side by side.
pub(crate) fn strided<const N: usize>(sizes: [usize; N], strides: [usize; N], row: usize) -> usize {
    extent(sizes.into_iter().zip(strides).chain([(row, 1)]))
}

/// # Errors
/// Elements of another size than f64's.
pub(crate) fn expect_f64<T>(kernel: &str) -> Result<()> {
    if size_of::<T>() != size_of::<f64>() {
        bail!("{kernel} is a kernel of f64")
    }
    Ok(())
}

/// # Errors
/// A slice that holds fewer elements than are needed.
pub(crate) fn expect(what: &str, held: usize, needed: usize) -> Result<()> {
    if held < needed {
        bail!("{what} holds {held} elements, but needs {needed}")
    }
    Ok(())
}
