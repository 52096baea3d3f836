//! Device memory: addresses of tensors, and the relocation of captured buffers.

use std::sync::Arc;

use candle::{CpuStorage, CudaStorage, DType, Device, InplaceOp1, Layout, Storage, Tensor};
use cudarc::driver::sys::{self, CUdeviceptr};
use cudarc::driver::DevicePtr;
use opara_interpose::without_events;

use super::allocation::{allocation_at, Allocation};
use super::{check, Stream, WatchedMemory};
use crate::gradient::made;
use crate::{Error, Result};

/// The device address of a tensor's first element.
///
/// # Errors
/// A tensor that is not on a CUDA device.
pub(crate) fn address_of(tensor: &Tensor) -> Result<u64> {
    use candle::cuda_backend::CudaStorageSlice as S;
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cuda(CudaStorage { slice, device }) = &*storage else {
        return Err(Error::NotCapturable { reason: "a tensor is not on a CUDA device".into() });
    };
    let stream = device.cuda_stream();
    let address = || match slice {
        S::U8(s) => Ok(s.device_ptr(&stream).0),
        S::U32(s) => Ok(s.device_ptr(&stream).0),
        S::I16(s) => Ok(s.device_ptr(&stream).0),
        S::I32(s) => Ok(s.device_ptr(&stream).0),
        S::I64(s) => Ok(s.device_ptr(&stream).0),
        S::BF16(s) => Ok(s.device_ptr(&stream).0),
        S::F16(s) => Ok(s.device_ptr(&stream).0),
        S::F32(s) => Ok(s.device_ptr(&stream).0),
        S::F64(s) => Ok(s.device_ptr(&stream).0),
        _ => {
            let reason = format!("tensors of dtype {:?} are not supported", tensor.dtype());
            Err(Error::NotCapturable { reason })
        }
    };
    // SAFETY: no events are recorded: the caller that launches with the address is responsible for the order.
    let start = unsafe { without_events(address) }?;
    Ok(start + (layout.start_offset() * tensor.dtype().size_in_bytes()) as u64)
}

/// Alignment of the driver's allocations in bytes.
pub(in crate::cuda) const ALIGNMENT: u64 = 256;

/// The tensor, or a copy of it: contiguous, aligned as the driver aligns allocations, for which kernels were chosen, and
/// apart from the tensors `written`.
///
/// # Errors
/// A tensor that is not on a CUDA device, or no memory for the copy.
pub(in crate::cuda) fn aligned_input(tensor: &Tensor, written: &[Tensor]) -> Result<Tensor> {
    let tensor = tensor.contiguous()?;
    let start = address_of(&tensor)?;
    let mut apart = true;
    for other in written {
        let other_start = address_of(other)?;
        apart &= start + bytes_of(&tensor) <= other_start || other_start + bytes_of(other) <= start;
    }
    if start % ALIGNMENT == 0 && apart {
        return Ok(tensor);
    }
    Ok(tensor.force_contiguous()?)
}

/// The allocation that these bytes are part of.
///
/// # Errors
/// [`Error::MemoryFreed`] if there is none.
fn allocation_of(address: u64, bytes: u64) -> Result<Allocation> {
    let has_all = |found: &Allocation| address + bytes <= found.start + found.bytes;
    allocation_at(address).filter(has_all).ok_or(Error::MemoryFreed)
}

/// Copies `count` elements from an address, as one row.
///
/// # Errors
/// Fewer bytes at the address on the device, or no memory for the copy.
pub(in crate::cuda) fn copy_of(device: &Device, address: u64, dtype: DType, elements: usize) -> Result<Tensor> {
    let copy = Tensor::zeros(elements, dtype, device)?;
    let bytes = bytes_of(&copy);
    let stream = Stream::of(device)?;
    stream.bind()?;
    allocation_of(address, bytes)?;
    // SAFETY: the driver says that the allocation around the address holds as many bytes; the copy's own are as many. Both are of
    // this device, and the work that wrote them is ordered before on its stream.
    check("cuMemcpyDtoDAsync", unsafe {
        sys::cuMemcpyDtoDAsync_v2(address_of(&copy)?, address, bytes as usize, stream.raw())
    })?;
    Ok(copy)
}

/// A tensor over memory that somebody else owns, as one row. Nothing is freed with it.
pub(crate) struct Lent {
    tensor: Tensor,
    watch: WatchedMemory,
}

impl Lent {
    /// The elements at an address.
    ///
    /// # Errors
    /// Fewer bytes at the address on the device, or a dtype that is not supported.
    pub fn new(device: &Device, address: u64, dtype: DType, elements: usize) -> Result<Self> {
        Stream::of(device)?.bind()?;
        let device = device.as_cuda_device()?;
        let bytes = (elements * dtype.size_in_bytes()) as u64;
        let watch = WatchedMemory::new();
        watch.limit_to(&[allocation_of(address, bytes)?.start]);
        macro_rules! slice {
            ($of:ty) => {{
                // SAFETY: the driver says that the allocation around the address holds as many bytes. All bits are numbers of these types.
                // `Drop` gives the slice back without freeing it.
                let slice = unsafe { device.cuda_stream().upgrade_device_ptr::<$of>(address, elements) };
                CudaStorage::wrap_cuda_slice(slice, device.clone())
            }};
        }
        let storage = match dtype {
            DType::U8 => slice!(u8),
            DType::U32 => slice!(u32),
            DType::I64 => slice!(i64),
            DType::BF16 => slice!(half::bf16),
            DType::F16 => slice!(half::f16),
            DType::F32 => slice!(f32),
            DType::F64 => slice!(f64),
            _ => return Err(Error::NotCapturable { reason: format!("tensors of dtype {dtype:?} are not supported") }),
        };
        Ok(Self { tensor: made(Storage::Cuda(storage), elements)?, watch })
    }

    /// The tensor. A clone of it must not outlive this.
    ///
    /// # Errors
    /// [`Error::MemoryFreed`] once the memory was freed.
    pub fn tensor(&self) -> Result<&Tensor> {
        match self.watch.is_freed() {
            true => Err(Error::MemoryFreed),
            false => Ok(&self.tensor),
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // Without room for a byte the tensor stays, since its end would free memory that somebody else owns.
        if let Err(error) = self.tensor.inplace_op1(&GiveBack) {
            tracing::warn!("memory that a trainer reads is kept: {error}");
            std::mem::forget(self.tensor.clone());
        }
    }
}

/// Takes memory out of a tensor, and leaves a byte.
struct GiveBack;

impl InplaceOp1 for GiveBack {
    fn name(&self) -> &'static str {
        "give-back"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> candle::Result<()> {
        candle::bail!("memory of the host is not lent")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, _: &Layout) -> candle::Result<()> {
        use candle::cuda_backend::CudaStorageSlice as S;
        let byte = S::U8(storage.device.alloc_zeros::<u8>(1)?);
        match std::mem::replace(&mut storage.slice, byte) {
            S::U8(slice) => drop(slice.leak()),
            S::U32(slice) => drop(slice.leak()),
            S::I64(slice) => drop(slice.leak()),
            S::BF16(slice) => drop(slice.leak()),
            S::F16(slice) => drop(slice.leak()),
            S::F32(slice) => drop(slice.leak()),
            S::F64(slice) => drop(slice.leak()),
            _ => {}
        }
        Ok(())
    }
}

/// A block of device memory.
#[derive(Clone)]
pub(in crate::cuda) struct MemoryBlock {
    address: u64,
    bytes: u64,
    owner: Arc<Owner>,
}

/// The owner that frees a block.
enum Owner {
    Tensor(#[allow(dead_code, reason = "only held")] Tensor),
    Allocation(CUdeviceptr, Stream),
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Owner::Allocation(address, stream) = self {
            if stream.make_current() {
                // SAFETY: this value owns the allocation. The call waits for all work of the device.
                unsafe { sys::cuMemFree_v2(*address) };
            }
        }
    }
}

impl MemoryBlock {
    /// The memory of a contiguous tensor.
    ///
    /// # Errors
    /// A tensor that is not contiguous or not on a CUDA device.
    pub fn of(tensor: &Tensor) -> Result<Self> {
        if !tensor.is_contiguous() {
            return Err(Error::InvalidLayout("a static tensor is not contiguous".into()));
        }
        Ok(Self {
            address: address_of(tensor)?,
            bytes: bytes_of(tensor),
            owner: Arc::new(Owner::Tensor(tensor.clone())),
        })
    }

    /// Allocates outside the memory pool of tensors, as libraries do.
    ///
    /// # Errors
    /// No memory left.
    pub fn outside_pool(stream: &Stream, bytes: u64) -> Result<Self> {
        stream.bind()?;
        let mut address = 0;
        // SAFETY: `address` receives the allocation, which `Owner` frees.
        check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, bytes as usize) })?;
        Ok(Self { address, bytes, owner: Arc::new(Owner::Allocation(address, stream.clone())) })
    }

    /// Its device address.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The address of a buffer at `offset` of the block.
    fn part(&self, buffer: usize, offset: u64, bytes: u64) -> Result<u64> {
        if offset + bytes > self.bytes {
            let message = format!("buffer {buffer} of {bytes} bytes does not fit at {offset} of {}", self.bytes);
            return Err(Error::InvalidLayout(message));
        }
        Ok(self.address + offset)
    }
}

/// The new address of each captured buffer: in a block that this relocation, and so the graph built with it, keeps alive; in
/// an arena, which is an argument of every launch; or, for inputs and state, another address at every launch.
#[derive(Clone, Default)]
pub(in crate::cuda) struct Relocation {
    targets: hashbrown::HashMap<usize, u64>,
    /// Number and size of the buffer of each argument of the module: an input, or a tensor of its state.
    module_arguments: hashbrown::HashMap<usize, (usize, u64)>,
    /// The addresses of the arenas.
    arenas: hashbrown::HashSet<u64>,
    owners: Vec<MemoryBlock>,
}

impl Relocation {
    /// Relocates a buffer of `bytes` bytes to `offset` of a block, and keeps the block alive.
    ///
    /// # Errors
    /// A block that is too small.
    pub fn place(&mut self, buffer: usize, bytes: u64, owner: &MemoryBlock, offset: u64) -> Result<()> {
        self.targets.insert(buffer, owner.part(buffer, offset, bytes)?);
        self.keep(owner);
        Ok(())
    }

    /// Relocates a buffer of `bytes` bytes to `offset` of an arena.
    ///
    /// # Errors
    /// An arena that is too small.
    pub fn place_in_arena(&mut self, buffer: usize, bytes: u64, arena: &MemoryBlock, offset: u64) -> Result<()> {
        self.targets.insert(buffer, arena.part(buffer, offset, bytes)?);
        self.arenas.insert(arena.address);
        Ok(())
    }

    /// Marks a buffer as an argument of the module. Every launch passes its address.
    pub fn place_argument(&mut self, buffer: usize, argument: usize, bytes: u64) {
        self.module_arguments.insert(buffer, (argument, bytes));
    }

    /// The index of the argument, if this buffer is an argument of the module.
    pub(super) fn argument(&self, buffer: usize) -> Option<usize> {
        self.module_arguments.get(&buffer).map(|&(argument, _)| argument)
    }

    /// Addresses of the module's arguments in a launch.
    ///
    /// # Errors
    /// Arguments that differ from the captured ones in size, or other arenas than this relocation's.
    pub(super) fn launched_with(&self, module_arguments: &[Tensor], arenas: &[&MemoryBlock]) -> Result<Vec<u64>> {
        let fit = |&(at, bytes): &(usize, u64)| module_arguments.get(at).is_some_and(|t| bytes_of(t) == bytes);
        let contiguous = module_arguments.iter().all(Tensor::is_contiguous);
        let same_arenas = self.arenas.iter().all(|&start| arenas.iter().any(|arena| arena.address == start));
        if !contiguous || !same_arenas || !self.module_arguments.values().all(fit) {
            return Err(Error::InvalidLayout("a launch brings other memory than its graph was built for".into()));
        }
        module_arguments.iter().map(address_of).collect()
    }

    /// Keeps another block alive.
    pub(super) fn keep(&mut self, owner: &MemoryBlock) {
        if !self.owners.iter().any(|block| Arc::ptr_eq(&block.owner, &owner.owner)) {
            self.owners.push(owner.clone());
        }
    }

    /// The new address of a buffer's first byte.
    pub fn target(&self, buffer: usize) -> Option<u64> {
        self.targets.get(&buffer).copied()
    }
}

/// Size of a tensor's elements in bytes.
pub(in crate::cuda) fn bytes_of(tensor: &Tensor) -> u64 {
    (tensor.elem_count() * tensor.dtype().size_in_bytes()) as u64
}
