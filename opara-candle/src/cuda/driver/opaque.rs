//! Launches of kernels of which nobody knows what they compute, with other operands.

use std::cell::RefCell;
use std::sync::{Arc, LazyLock, Weak};

use candle::Tensor;
use cudarc::driver::sys::{self, CUfunction, CUkernelNodeAttrID, CUkernelNodeAttrValue};
use hashbrown::HashMap;
use parking_lot::Mutex;

use super::by_length::{ByLength, Length};
use super::kernel::KernelNode;
use super::memory::address_of;
use super::{check, get, position};
use crate::{Error, Result};

/// A launch whose pointers to operands are null.
struct OpaqueLaunch {
    kernel: KernelNode,
    /// Offsets of the pointers to what it reads.
    reads: Vec<usize>,
    /// Offset of the pointer to its result.
    result: usize,
}

// SAFETY: the driver's handles may be used from any thread whose context is current; the node of the capture is not used.
unsafe impl Send for OpaqueLaunch {}
// SAFETY: nothing of a launch changes once it is made.
unsafe impl Sync for OpaqueLaunch {}

/// Keeps a launch known by its number.
#[derive(Clone)]
pub(crate) struct HeldLaunch(#[expect(dead_code, reason = "is held, not read")] Arc<OpaqueLaunch>);

impl OpaqueLaunch {
    fn is_same(&self, other: &Self) -> bool {
        let of = |of: &Self| (of.kernel.launch, of.kernel.by_length.clone());
        self.pointers() == other.pointers() && of(self) == of(other) && self.kernel.arguments == other.kernel.arguments
    }

    /// The kernel, and where it has pointers.
    fn pointers(&self) -> (CUfunction, &[usize], usize) {
        (self.kernel.params.func, &self.reads, self.result)
    }
}

/// The launches that are held, by numbers that no others had.
#[derive(Default)]
struct Numbered {
    of: HashMap<u64, Weak<OpaqueLaunch>>,
    next: u64,
}

impl Numbered {
    fn get(&self, number: u64) -> Option<Arc<OpaqueLaunch>> {
        self.of.get(&number)?.upgrade()
    }

    /// The number of a launch: that of the same one, if it is held.
    fn number(&mut self, launch: OpaqueLaunch) -> (u64, HeldLaunch) {
        let mut held = self.of.iter().filter_map(|(number, of)| Some((*number, of.upgrade()?)));
        if let Some((number, known)) = held.find(|(_, of)| of.is_same(&launch)) {
            return (number, HeldLaunch(known));
        }
        self.of.retain(|_, of| of.strong_count() > 0);
        let (number, launch) = (self.next, Arc::new(launch));
        self.next += 1;
        self.of.insert(number, Arc::downgrade(&launch));
        (number, HeldLaunch(launch))
    }
}

/// Those of the process: a number tells a launch from others.
static LAUNCHES: LazyLock<Mutex<Numbered>> = LazyLock::new(Mutex::default);

/// The number of a launch that reads through the pointers at these offsets, and writes its result through another one: that of all
/// launches of the same kernel with the same other arguments. `None` of blocks that wait for each other, or share memory.
///
/// # Errors
/// A failed driver call.
pub(in crate::cuda) fn opaque_launch(
    kernel: &KernelNode,
    reads: &[usize],
    result: usize,
) -> Result<Option<(u64, HeldLaunch)>> {
    if kernel.template.is_null() || has_groups(kernel)? {
        return Ok(None);
    }
    let mut kernel = kernel.clone();
    kernel.template = std::ptr::null_mut();
    reads.iter().chain([&result]).for_each(|&word| kernel.arguments.set_word(word, 0));
    let launch = OpaqueLaunch { kernel, reads: reads.to_vec(), result };
    Ok(Some(LAUNCHES.lock().number(launch)))
}

/// Do blocks of a captured launch depend on each other?
fn has_groups(kernel: &KernelNode) -> Result<bool> {
    // SAFETY: the node is one of a graph that its capture holds; all bits of the value are numbers.
    let attribute = |which| unsafe {
        get("cuGraphKernelNodeGetAttribute", |value: *mut CUkernelNodeAttrValue| {
            sys::cuGraphKernelNodeGetAttribute(kernel.template, which, value)
        })
    };
    let cooperative = attribute(CUkernelNodeAttrID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE)?;
    let cluster = attribute(CUkernelNodeAttrID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)?;
    // SAFETY: the driver has written the fields of these attributes.
    let (cooperative, [x, y, z]) =
        unsafe { (cooperative.cooperative, [cluster.clusterDim.x, cluster.clusterDim.y, cluster.clusterDim.z]) };
    Ok(cooperative != 0 || [x, y, z].iter().any(|&blocks| blocks > 1))
}

/// The name of a launch's kernel.
pub(crate) fn opaque_name(number: u64) -> String {
    LAUNCHES.lock().get(number).map_or_else(String::new, |of| of.kernel.name.to_string())
}

/// How many tensors a launch reads.
pub(crate) fn opaque_reads(number: u64) -> usize {
    LAUNCHES.lock().get(number).map_or(0, |of| of.reads.len())
}

/// The number of a launch whose numbers follow from `length`, by its numbers at several lengths, in ascending order.
///
/// # Errors
/// The part of the launches that differs in another way.
pub(crate) fn opaque_at_lengths(
    launches: &[(u64, u64)],
    length: &Length,
) -> std::result::Result<(u64, HeldLaunch), String> {
    let mut all = LAUNCHES.lock();
    let held: Option<Vec<_>> = launches.iter().map(|&(number, at)| Some((all.get(number)?, at))).collect();
    let Some(held) = held.filter(|of| !of.is_empty()) else { return Err("kernel".into()) };
    let (first, _) = &held[0];
    if held.iter().any(|(of, _)| of.pointers() != first.pointers()) {
        return Err("kernel, or number of pointers".into());
    }
    let kernels: Vec<_> = held.iter().map(|(of, at)| (&of.kernel.arguments, &of.kernel.launch, *at)).collect();
    let by_length = Some(Arc::new(ByLength::of(&kernels, length)?));
    let kernel = KernelNode { by_length, ..first.kernel.clone() };
    Ok(all.number(OpaqueLaunch { kernel, reads: first.reads.clone(), result: first.result }))
}

/// Has a launch whose numbers follow from the length blocks at every length below this one?
pub(crate) fn opaque_has_blocks_before(number: u64, length: u64) -> bool {
    let of = LAUNCHES.lock().get(number);
    of.is_some_and(|of| {
        let by_length = of.kernel.by_length.as_ref();
        by_length.is_none_or(|by| by.has_blocks_before(length, of.kernel.launch.block))
    })
}

/// Is the launch `number` the launch `at_lengths`, whose numbers follow from the length, at this length?
pub(crate) fn is_opaque_at(at_lengths: u64, length: u64, number: u64) -> bool {
    let all = LAUNCHES.lock();
    let (Some(of), Some(other)) = (all.get(at_lengths), all.get(number)) else { return false };
    let [own, other_launch] = [&of, &other].map(|of| (&of.kernel.arguments, &of.kernel.launch));
    let is_like = |by: &Arc<ByLength>| by.is_at(length, own, other_launch);
    of.pointers() == other.pointers() && of.kernel.by_length.as_ref().is_some_and(is_like)
}

/// Launches of a capture whose numbers follow from a length, with its position behind each.
type Noted = Vec<(usize, Arc<ByLength>)>;

thread_local! {
    /// Those of this thread's capture; `None` outside of one.
    static NOTED: RefCell<Option<Noted>> = const { RefCell::new(None) };
}

/// The launches of a capture whose numbers follow from a length, by their nodes.
#[derive(Default)]
pub(in crate::cuda) struct NotedLaunches(HashMap<usize, Arc<ByLength>>);

impl NotedLaunches {
    /// Says of a captured kernel how its numbers follow from a length, if they do.
    pub fn tell(&self, kernel: &mut KernelNode) {
        kernel.by_length = self.0.get(&(kernel.template as usize)).cloned();
    }
}

/// Runs `f`, which captures on this thread, and notes its launches whose numbers follow from a length.
pub(in crate::cuda) fn noted_launches<T>(f: impl FnOnce() -> T) -> (T, NotedLaunches) {
    struct Restore(Option<Noted>);
    impl Drop for Restore {
        fn drop(&mut self) {
            NOTED.set(self.0.take());
        }
    }
    let _restore = Restore(NOTED.replace(Some(Vec::new())));
    let result = f();
    (result, NotedLaunches(NOTED.take().into_iter().flatten().collect()))
}

/// Launches a kernel with these operands, each as large as when it was captured, and this result. Numbers that follow from a length are
/// those of its text now.
///
/// # Errors
/// Operands that are not on a CUDA device, and a failed launch.
pub(crate) fn launch_opaque(number: u64, reads: &[Tensor], result: &Tensor) -> Result<()> {
    // No other thread waits for the driver's calls.
    let of = LAUNCHES.lock().get(number).filter(|of| of.reads.len() == reads.len());
    let Some(of) = of else { return Err(Error::Internal { message: "there is no such launch".into() }) };
    let mut kernel = of.kernel.clone();
    for (&word, tensor) in of.reads.iter().zip(reads) {
        kernel.arguments.set_word(word, address_of(tensor)?);
    }
    kernel.arguments.set_word(of.result, address_of(result)?);
    let stream = result.device().as_cuda_device()?.cuda_stream();
    stream.context().bind_to_thread().map_err(super::wrap("cuCtxSetCurrent"))?;
    let (function, mut launch) = (kernel.params.func, kernel.launch);
    if let Some(of) = &kernel.by_length {
        of.set(&mut kernel.arguments, &mut launch.grid, launch.block);
    }
    let ([x, y, z], [tx, ty, tz]) = (launch.grid, launch.block);
    check(
        "cuLaunchKernel",
        // SAFETY: the module launched the same kernel with the same arguments, but for pointers to memory of these sizes. Who made the
        // kernel keeps it loaded as long as the module may be called, as for replays of its passes.
        kernel.arguments.with_raw(|parameters, extra| unsafe {
            let shared = launch.dynamic_shared;
            sys::cuLaunchKernel(function, x, y, z, tx, ty, tz, shared, stream.cu_stream(), parameters, extra)
        }),
    )?;
    let Some(of) = kernel.by_length else { return Ok(()) };
    NOTED.with_borrow_mut(|noted| match (noted, position()) {
        (Some(noted), node) => {
            noted.push((node, of));
            Ok(())
        }
        (None, 0) => Ok(()),
        // A replay would keep the numbers of this length.
        (None, _) => {
            Err(Error::Internal { message: "a launch by length is captured on a thread that does not note it".into() })
        }
    })
}
