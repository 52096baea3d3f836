//! Launches of `store.cu`.

use candle::cuda_backend::{CudaStorageSlice, WrapErr};
use candle::{bail, CudaDevice, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, PinnedHostSlice, PushKernelArg, ValidAsZeroBits};

use super::ptx;
use super::{blocks, expect, function};

/// An element of four bytes.
pub(crate) trait Word: DeviceRepr + ValidAsZeroBits + Copy {
    /// The elements, if they are of this type.
    fn of(storage: &CudaStorageSlice) -> Option<&CudaSlice<Self>>;
}

macro_rules! word {
    ($($t:ty, $variant:ident;)*) => {$(
        impl Word for $t {
            fn of(storage: &CudaStorageSlice) -> Option<&CudaSlice<Self>> {
                match storage {
                    CudaStorageSlice::$variant(elements) => Some(elements),
                    _ => None,
                }
            }
        }
    )*};
}

word! { u32, U32; f32, F32; }

/// Copies elements to page-locked memory, which is written when the launch has ended: until then nobody may read or free it.
///
/// # Errors
/// More elements than there is room for, or a failed launch.
pub(in crate::cuda) fn store<T: Word>(
    device: &CudaDevice,
    from: &CudaView<T>,
    to: &mut PinnedHostSlice<T>,
) -> Result<()> {
    let elements = from.len();
    expect("the host's memory", to.len(), elements)?;
    let Ok(numel) = i32::try_from(elements) else { bail!("{elements} elements are more than the kernel counts") };
    let function = function(device, "opara_store_u32", ptx::STORE)?;
    let to = to.as_mut_ptr().w()? as u64;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&numel).arg(from).arg(&to);
    // SAFETY: the arguments are those that the kernel declares. It reads `numel` elements of four bytes, which a
    // `Word` has, and writes as many, which there are. The
    // device reaches page-locked memory by the address that the host has, since both have one address space.
    unsafe { launch.launch(blocks(elements)) }.w()?;
    Ok(())
}
