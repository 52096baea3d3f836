//! CUDA devices: creation and properties.

use candle::{Device, Tensor};

use super::driver::{self, Stream};
use crate::Result;

/// A CUDA device on which modules can be captured: candle's device with its own stream
/// (`Device::new_cuda_with_stream`).
///
/// `Device::new_cuda` works, too, but each thread then has its own stream. Other threads may use the device while
/// executors are built on it: their launches are not captured.
///
/// # Errors
/// No such device, or no driver.
pub fn cuda_device(ordinal: usize) -> Result<Device> {
    Ok(Device::new_cuda_with_stream(ordinal)?)
}

/// Lets another thread use these tensors. If each thread has its own stream, waits for the work of this thread's
/// stream.
pub(crate) fn hand_over(tensors: &[Tensor]) -> Result<()> {
    match tensors.first().map(Tensor::device) {
        Some(device) if device.is_cuda() && Stream::of(device)?.is_per_thread() => {
            Ok(driver::outside_capture(|| device.synchronize())?)
        }
        _ => Ok(()),
    }
}

/// Is a tensor aligned like an allocation of the driver? Kernels were chosen for that alignment.
pub(crate) fn is_aligned(tensor: &Tensor) -> Result<bool> {
    Ok(driver::address_of(tensor)?.is_multiple_of(driver::ALIGNMENT))
}

/// Name of the device.
pub(crate) fn device_name(device: &Device) -> String {
    Stream::of(device).and_then(|s| s.device_spec()).map_or("cuda".into(), |spec| spec.name)
}

/// Version of the driver, part of the key of cached schedules.
pub(crate) fn driver_version(device: &Device) -> String {
    Stream::of(device).and_then(|s| s.driver_version()).map_or("unknown".into(), |version| version.to_string())
}

/// The device and its software, part of the key of what is kept of rewriting.
pub(crate) fn software(device: &Device) -> String {
    Stream::of(device).map_or("unknown".into(), |stream| driver::software(&stream))
}

/// Free memory of the device in bytes.
pub(crate) fn free_memory(device: &Device) -> Result<usize> {
    let stream = Stream::of(device)?;
    stream.synchronize_device()?;
    stream.free_memory()
}

/// Bytes of the device in use that are not its memory pool's, after all its work is done.
pub(crate) fn used_outside_pool(device: &Device) -> Result<u64> {
    let stream = Stream::of(device)?;
    stream.synchronize_device()?;
    stream.used_outside_pool()
}

/// Bytes in use of the device's memory pool, after all its work is done.
pub(crate) fn pool_in_use(device: &Device) -> Result<u64> {
    let stream = Stream::of(device)?;
    stream.synchronize_device()?;
    stream.pool_in_use()
}

/// The most that were in use since the mark was reset.
pub(crate) fn pool_peak(device: &Device) -> Result<u64> {
    Stream::of(device)?.pool_peak()
}

/// Starts looking for a new peak.
pub(crate) fn reset_pool_peak(device: &Device) -> Result<()> {
    Stream::of(device)?.reset_pool_peak()
}
