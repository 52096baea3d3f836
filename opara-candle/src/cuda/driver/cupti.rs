//! CUPTI, loaded on demand: the times at which the nodes of a graph ran.
//!
//! Its activity records need no permission for hardware counters. While they are enabled, launches take some
//! microseconds longer; kernels run as before, also concurrently.

use std::collections::VecDeque;
use std::ffi::{c_char, c_void, CStr};
use std::sync::OnceLock;

use cudarc::driver::sys;
use libloading::Library;
use parking_lot::{Mutex, MutexGuard};

use crate::{Error, Result};

/// One execution of a graph node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cuda) struct Activity {
    /// Identifies the graph.
    pub graph: u32,
    /// Identifies the node; nodes that were added later have larger numbers.
    pub node: u64,
    /// The kernel's mangled name; `None` for copies and memsets.
    pub kernel: Option<String>,
    /// Nanoseconds on the device's clock.
    pub start: u64,
    pub end: u64,
}

type Status = u32;
type Requested = extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type Completed = extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);

/// The functions of CUPTI that are used.
struct Cupti {
    enable: unsafe extern "C" fn(u32) -> Status,
    disable: unsafe extern "C" fn(u32) -> Status,
    flush_all: unsafe extern "C" fn(u32) -> Status,
    register: unsafe extern "C" fn(Requested, Completed) -> Status,
    graph_id: unsafe extern "C" fn(sys::CUgraph, *mut u32) -> Status,
    executable_id: unsafe extern "C" fn(sys::CUgraphExec, *mut u32) -> Status,
    next_record: unsafe extern "C" fn(*mut u8, usize, *mut *mut u8) -> Status,
}

/// The kinds of activity that are recorded: copies, memsets, and kernels that may run concurrently.
const KINDS: [u32; 3] = [MEMCPY, MEMSET, CONCURRENT_KERNEL];
const MEMCPY: u32 = 1;
const MEMSET: u32 = 2;
const CONCURRENT_KERNEL: u32 = 10;

/// The oldest version with the record layout that is read here (CUDA 11.1).
const OLDEST: u32 = 14;

/// Size of a record buffer in 8-byte words, since CUPTI needs 8-byte alignment.
const BUFFER_WORDS: usize = 1 << 16;

/// Buffers that wait before the oldest one is used again.
const SPARE_BUFFERS: usize = 32;

static RECORDS: Mutex<Records> = Mutex::new(Records { graphs: [0; 2], read: Vec::new(), spare: VecDeque::new() });

struct Records {
    /// The graphs whose records are read.
    graphs: [u32; 2],
    read: Vec<Activity>,
    /// Addresses of buffers that CUPTI gave back. None is freed: a thread of the process may be about to complete a record in one.
    spare: VecDeque<usize>,
}

fn cupti() -> Result<&'static Cupti> {
    static CUPTI: OnceLock<std::result::Result<Cupti, String>> = OnceLock::new();
    CUPTI.get_or_init(load).as_ref().map_err(|message| Error::Driver { call: "CUPTI", message: message.clone() })
}

fn load() -> std::result::Result<Cupti, String> {
    let names = ["libcupti.so.13", "libcupti.so.12", "libcupti.so"];
    // SAFETY: loading runs the library's constructors, which are NVIDIA's own.
    let library = names.into_iter().find_map(|name| unsafe { Library::new(name) }.ok()).ok_or_else(|| {
        "libcupti was not found: it comes with CUDA's toolkit (extras/CUPTI/lib64) and with the Python package \
         nvidia-cuda-cupti; put its folder on LD_LIBRARY_PATH"
            .to_string()
    })?;
    // SAFETY: the types below are the declarations of these names in cupti_activity.h and cupti_version.h. The library
    // is never unloaded.
    unsafe {
        let library: &'static Library = Box::leak(Box::new(library));
        let missing = |error: libloading::Error| error.to_string();
        let version = library.get::<unsafe extern "C" fn(*mut u32) -> Status>(b"cuptiGetVersion").map_err(missing)?;
        let mut found = 0;
        if version(&mut found) != 0 || found < OLDEST {
            return Err(format!("CUPTI API version {found} is too old: install CUPTI of CUDA 11.1 or later"));
        }
        Ok(Cupti {
            enable: *library.get(b"cuptiActivityEnable").map_err(missing)?,
            disable: *library.get(b"cuptiActivityDisable").map_err(missing)?,
            flush_all: *library.get(b"cuptiActivityFlushAll").map_err(missing)?,
            register: *library.get(b"cuptiActivityRegisterCallbacks").map_err(missing)?,
            graph_id: *library.get(b"cuptiGetGraphId").map_err(missing)?,
            executable_id: *library.get(b"cuptiGetGraphExecId").map_err(missing)?,
            next_record: *library.get(b"cuptiActivityGetNextRecord").map_err(missing)?,
        })
    }
}

/// CUPTI callback: provides a buffer.
extern "C" fn requested(buffer: *mut *mut u8, bytes: *mut usize, most: *mut usize) {
    let spare = &mut RECORDS.lock().spare;
    let used = if spare.len() > SPARE_BUFFERS { spare.pop_front() } else { None };
    let new = || Box::into_raw(vec![0u64; BUFFER_WORDS].into_boxed_slice()).cast::<u8>();
    // SAFETY: CUPTI passes three valid out-pointers; 0 means as many records as fit.
    unsafe {
        *buffer = used.map_or_else(new, |address| address as *mut u8);
        *bytes = BUFFER_WORDS * size_of::<u64>();
        *most = 0;
    }
}

/// CUPTI callback: takes a buffer back, and reads its records.
extern "C" fn completed(_: *mut c_void, _: u32, buffer: *mut u8, _: usize, valid: usize) {
    let Ok(cupti) = cupti() else { return };
    let mut record = std::ptr::null_mut();
    let mut records = RECORDS.lock();
    let graphs = records.graphs;
    // SAFETY: `valid` bytes of the buffer, which `requested` made, hold whole records. The function iterates over them.
    unsafe {
        while (cupti.next_record)(buffer, valid, &mut record) == 0 {
            records.read.extend(read(record, graphs));
        }
    }
    records.spare.push_back(buffer as usize);
}

/// The beginning of a record of a kernel: `CUpti_ActivityKernel6` of cupti_activity.h, which later versions continue.
#[repr(C, packed(8))]
#[derive(Clone, Copy)]
struct Kernel {
    kind: u32,
    cache_config: u8,
    shared_memory_config: u8,
    registers_per_thread: u16,
    partitioned_global_cache_requested: u32,
    partitioned_global_cache_executed: u32,
    start: u64,
    end: u64,
    completed: u64,
    device: u32,
    context: u32,
    stream: u32,
    grid: [i32; 3],
    block: [i32; 3],
    static_shared_memory: i32,
    dynamic_shared_memory: i32,
    local_memory_per_thread: u32,
    local_memory_total: u32,
    correlation: u32,
    grid_id: i64,
    name: *const c_char,
    reserved: *mut c_void,
    queued: u64,
    submitted: u64,
    launch_type: u8,
    is_carveout_requested: u8,
    carveout_requested: u8,
    padding: u8,
    shared_memory_executed: u32,
    graph_node: u64,
    shared_memory_limit_config: u32,
    graph: u32,
}

/// The beginning of a record of a copy: `CUpti_ActivityMemcpy5`.
#[repr(C, packed(8))]
#[derive(Clone, Copy)]
struct Memcpy {
    kind: u32,
    copy_kind: u8,
    source_kind: u8,
    target_kind: u8,
    flags: u8,
    bytes: u64,
    start: u64,
    end: u64,
    device: u32,
    context: u32,
    stream: u32,
    correlation: u32,
    runtime_correlation: u32,
    padding: u32,
    reserved: *mut c_void,
    graph_node: u64,
    graph: u32,
}

/// The beginning of a record of a memset: `CUpti_ActivityMemset3`.
#[repr(C, packed(8))]
#[derive(Clone, Copy)]
struct Memset {
    kind: u32,
    value: u32,
    bytes: u64,
    start: u64,
    end: u64,
    device: u32,
    context: u32,
    stream: u32,
    correlation: u32,
    flags: u16,
    memory_kind: u16,
    padding: u32,
    reserved: *mut c_void,
    graph_node: u64,
    graph: u32,
}

/// Reads the record of a node of one of these graphs; `None` for other work, and for records of other kinds.
///
/// # Safety
/// `record` must point at a record of CUPTI, and the graphs must be alive.
unsafe fn read(record: *const u8, graphs: [u32; 2]) -> Option<Activity> {
    let is_node = |node: u64, graph: u32| node != 0 && graphs.contains(&graph);
    // SAFETY: records of all kinds begin with the kind.
    let kind = unsafe { record.cast::<u32>().read_unaligned() };
    let (node, graph, start, end, kernel) = match kind {
        CONCURRENT_KERNEL => {
            // SAFETY: in every version since the oldest supported one, records of this kind begin so.
            let Kernel { graph_node, graph, start, end, name, .. } =
                unsafe { record.cast::<Kernel>().read_unaligned() };
            let is_named = is_node(graph_node, graph) && !name.is_null();
            // SAFETY: the string lives as long as the kernel's module, which the graph keeps.
            let name = is_named.then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned());
            (graph_node, graph, start, end, name)
        }
        MEMCPY => {
            // SAFETY: as for kernels.
            let Memcpy { graph_node, graph, start, end, .. } = unsafe { record.cast::<Memcpy>().read_unaligned() };
            (graph_node, graph, start, end, None)
        }
        MEMSET => {
            // SAFETY: as for kernels.
            let Memset { graph_node, graph, start, end, .. } = unsafe { record.cast::<Memset>().read_unaligned() };
            (graph_node, graph, start, end, None)
        }
        _ => return None,
    };
    is_node(node, graph).then_some(Activity { graph, node, kernel, start, end })
}

/// The ids of a graph and of its executable in CUPTI's records.
///
/// # Safety
/// Both handles must be alive.
pub(super) unsafe fn graph_ids(graph: sys::CUgraph, executable: sys::CUgraphExec) -> Result<[u32; 2]> {
    let (cupti, mut ids) = (cupti()?, [0; 2]);
    // SAFETY: the handles are alive by the caller's promise, and each call writes one number.
    unsafe {
        status("cuptiGetGraphId", (cupti.graph_id)(graph, &mut ids[0]))?;
        status("cuptiGetGraphExecId", (cupti.executable_id)(executable, &mut ids[1]))?;
    }
    Ok(ids)
}

/// Records graph activity while it lives. There is one at a time; others wait.
///
/// CUPTI stays in the process afterwards, and later replays take about 0.3 us a node longer: `cuptiFinalize` would end that, but corrupts
/// the heap where another thread is in a call of CUDA.
pub(in crate::cuda) struct Watch {
    /// Are the callbacks registered?
    _one: MutexGuard<'static, bool>,
}

impl Watch {
    /// Starts recording. Graphs must be instantiated afterwards to be recorded.
    ///
    /// # Errors
    /// CUPTI cannot be loaded (it says what to install) or is in use by a profiler.
    pub fn start() -> Result<Self> {
        static ONE: Mutex<bool> = Mutex::new(false);
        let cupti = cupti()?;
        let mut one = ONE.lock();
        if !*one {
            // SAFETY: the callbacks have the types that CUPTI expects, and live as long as the program.
            status("cuptiActivityRegisterCallbacks", unsafe { (cupti.register)(requested, completed) })?;
            *one = true;
        }
        let watch = Self { _one: one };
        for kind in KINDS {
            // SAFETY: the argument is a valid activity kind.
            status("cuptiActivityEnable", unsafe { (cupti.enable)(kind) })?;
        }
        Ok(watch)
    }

    /// Records the activity of these graphs from now on.
    pub fn follow(&self, graphs: [u32; 2]) {
        let mut records = RECORDS.lock();
        records.graphs = graphs;
        records.read.clear();
    }

    /// The activity since the last call, as far as its records are complete: all of it if the device was idle for a moment since. `Flush`
    /// says what becomes of buffers that other threads are writing.
    pub fn take(&self, flush: Flush) -> Result<Vec<Activity>> {
        // SAFETY: the argument is no pointer, and the callbacks stay registered.
        status("cuptiActivityFlushAll", unsafe { (cupti()?.flush_all)(flush as u32) })?;
        Ok(std::mem::take(&mut RECORDS.lock().read))
    }
}

/// The buffers that CUPTI gives back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cuda) enum Flush {
    /// Those whose records are complete.
    Complete = 0,
    /// All.
    Forced = 1,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.follow([0; 2]);
        if let Ok(cupti) = cupti() {
            for kind in KINDS {
                // SAFETY: the argument is a valid activity kind; disabling one that is not enabled does nothing.
                unsafe { (cupti.disable)(kind) };
            }
        }
    }
}

fn status(call: &'static str, status: Status) -> Result<()> {
    match status {
        0 => Ok(()),
        // CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
        39 => Err(Error::Driver { call, message: "another profiler is in use in this process".into() }),
        status => Err(Error::Driver { call, message: format!("CUPTI returned status {status}") }),
    }
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, zeroed};

    use super::*;

    /// The offsets of the fields that are read, and how far the last one of them reaches, by a C compiler.
    #[test]
    fn records_lie_as_in_the_header() {
        assert_eq!([offset_of!(Kernel, kind), offset_of!(Memcpy, kind), offset_of!(Memset, kind)], [0; 3]);
        assert_eq!([offset_of!(Kernel, start), offset_of!(Memcpy, start), offset_of!(Memset, start)], [16; 3]);
        assert_eq!([offset_of!(Kernel, end), offset_of!(Memcpy, end), offset_of!(Memset, end)], [24; 3]);
        assert_eq!(offset_of!(Kernel, name), 104);
        let nodes = [offset_of!(Kernel, graph_node), offset_of!(Memcpy, graph_node), offset_of!(Memset, graph_node)];
        assert_eq!(nodes, [144, 64, 64]);
        assert_eq!([offset_of!(Kernel, graph), offset_of!(Memcpy, graph), offset_of!(Memset, graph)], [156, 72, 72]);
        assert_eq!([size_of::<Kernel>(), size_of::<Memcpy>(), size_of::<Memset>()], [160, 80, 80]);
        assert_eq!([align_of::<Kernel>(), align_of::<Memcpy>(), align_of::<Memset>()], [8; 3]);
    }

    #[test]
    fn records_of_nodes_are_read_and_others_are_not() {
        // SAFETY: a record is numbers, and pointers that may be null.
        let (kernel, memcpy, memset): (Kernel, Memcpy, Memset) = unsafe { (zeroed(), zeroed(), zeroed()) };
        let kernel = Kernel { kind: 10, start: 5, end: 9, name: c"add".as_ptr(), graph_node: 7, graph: 3, ..kernel };
        let memcpy = Memcpy { kind: 1, start: 5, end: 9, graph_node: 7, graph: 3, ..memcpy };
        let memset = Memset { kind: 2, start: 5, end: 9, graph_node: 7, graph: 3, ..memset };
        let (unnamed, outside) = (Kernel { name: std::ptr::null(), ..kernel }, Kernel { graph_node: 0, ..kernel });
        let (other, of_another) =
            (Memset { kind: 3, ..memset }, Kernel { graph: 4, name: std::ptr::dangling(), ..kernel });
        let without_name = Activity { graph: 3, node: 7, kernel: None, start: 5, end: 9 };
        // SAFETY: each is a record of its kind.
        unsafe {
            let named = Activity { kernel: Some("add".into()), ..without_name.clone() };
            let graphs = [3, 9];
            assert_eq!(read((&raw const kernel).cast(), graphs), Some(named));
            assert_eq!(read((&raw const unnamed).cast(), graphs).as_ref(), Some(&without_name));
            assert_eq!(read((&raw const memcpy).cast(), graphs).as_ref(), Some(&without_name));
            assert_eq!(read((&raw const memset).cast(), graphs).as_ref(), Some(&without_name));
            assert_eq!(read((&raw const outside).cast(), graphs), None);
            assert_eq!(read((&raw const other).cast(), graphs), None);
            assert_eq!(read((&raw const of_another).cast(), graphs), None, "its name may be gone");
        }
    }
}
