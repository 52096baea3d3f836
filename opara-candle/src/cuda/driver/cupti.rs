//! CUPTI, loaded on demand: the times at which the nodes of a graph ran.
//!
//! Its activity records need no permission for hardware counters. While they are enabled, launches take some
//! microseconds longer; kernels run as before, also concurrently.

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
    finalize: unsafe extern "C" fn() -> Status,
    graph_id: unsafe extern "C" fn(sys::CUgraph, *mut u32) -> Status,
    executable_id: unsafe extern "C" fn(sys::CUgraphExec, *mut u32) -> Status,
    next_record: unsafe extern "C" fn(*mut u8, usize, *mut *mut u8) -> Status,
}

/// Activity kinds: memcpy, memset, kernels that may run concurrently.
const KINDS: [u32; 3] = [1, 2, CONCURRENT_KERNEL];
const CONCURRENT_KERNEL: u32 = 10;

/// The oldest version with the record layout that is read here (CUDA 11.1).
const OLDEST: u32 = 14;

/// Size of a record buffer in 8-byte words, since CUPTI needs 8-byte alignment.
const BUFFER_WORDS: usize = 1 << 18;

static RECORDS: Mutex<Vec<Activity>> = Mutex::new(Vec::new());

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
            finalize: *library.get(b"cuptiFinalize").map_err(missing)?,
            next_record: *library.get(b"cuptiActivityGetNextRecord").map_err(missing)?,
        })
    }
}

/// CUPTI callback: provides a buffer.
extern "C" fn requested(buffer: *mut *mut u8, bytes: *mut usize, most: *mut usize) {
    let words = vec![0u64; BUFFER_WORDS].into_boxed_slice();
    // SAFETY: CUPTI passes three valid out-pointers; 0 means as many records as fit.
    unsafe {
        *buffer = Box::into_raw(words).cast();
        *bytes = BUFFER_WORDS * size_of::<u64>();
        *most = 0;
    }
}

/// CUPTI callback: takes a buffer back, and reads its records.
extern "C" fn completed(_: *mut c_void, _: u32, buffer: *mut u8, _: usize, valid: usize) {
    // SAFETY: the buffer was allocated by `requested` with this length, and CUPTI no longer uses it.
    let words = unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(buffer.cast::<u64>(), BUFFER_WORDS)) };
    let Ok(cupti) = cupti() else { return };
    let mut record = std::ptr::null_mut();
    let mut records = RECORDS.lock();
    // SAFETY: `valid` bytes of the buffer hold whole records, which the function iterates; the records do not move
    // before the buffer is dropped.
    unsafe {
        while (cupti.next_record)(buffer, valid, &mut record) == 0 {
            records.extend(read(record));
        }
    }
    drop(words);
}

/// Reads the record of a graph node.
///
/// # Safety
/// `record` must point at a record of one of [`KINDS`].
unsafe fn read(record: *const u8) -> Option<Activity> {
    // SAFETY: in every version since the oldest supported one, records of all kinds begin with the kind and have their
    // times at these offsets. Kernel records have name, node and graph at these offsets, memcpy and memset records node
    // and graph (cupti_activity.h: ActivityKernel6, ActivityMemcpy5, ActivityMemset3 and later). The name is a string
    // that CUPTI keeps alive.
    unsafe {
        let word = |offset: usize| record.add(offset).cast::<u64>().read_unaligned();
        let kind = record.cast::<u32>().read_unaligned();
        let kernel = kind == CONCURRENT_KERNEL;
        let node = word(if kernel { 144 } else { 64 });
        let graph = record.add(if kernel { 156 } else { 72 }).cast::<u32>().read_unaligned();
        let name = word(104) as *const c_char;
        let name = (kernel && !name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned());
        (KINDS.contains(&kind) && node != 0).then(|| Activity {
            graph,
            node,
            kernel: name,
            start: word(16),
            end: word(24),
        })
    }
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
pub(in crate::cuda) struct Watch {
    _one: MutexGuard<'static, ()>,
}

impl Watch {
    /// Starts recording. Graphs must be instantiated afterwards to be recorded.
    ///
    /// # Errors
    /// CUPTI cannot be loaded (it says what to install) or is in use by a profiler.
    pub fn start() -> Result<Self> {
        static ONE: Mutex<()> = Mutex::new(());
        let cupti = cupti()?;
        let watch = Self { _one: ONE.lock() };
        // SAFETY: the callbacks have the types that CUPTI expects, and live as long as the program.
        status("cuptiActivityRegisterCallbacks", unsafe { (cupti.register)(requested, completed) })?;
        for kind in KINDS {
            // SAFETY: the argument is a valid activity kind.
            status("cuptiActivityEnable", unsafe { (cupti.enable)(kind) })?;
        }
        Ok(watch)
    }

    /// The activity since the last call. The device must be idle.
    pub fn take(&self) -> Result<Vec<Activity>> {
        const FORCED: u32 = 1;
        // SAFETY: the argument is no pointer, and the callbacks stay registered.
        status("cuptiActivityFlushAll", unsafe { (cupti()?.flush_all)(FORCED) })?;
        Ok(std::mem::take(&mut *RECORDS.lock()))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Ok(cupti) = cupti() {
            for kind in KINDS {
                // SAFETY: the argument is a valid activity kind; disabling one that is not enabled does nothing.
                unsafe { (cupti.disable)(kind) };
            }
            // Without this, every later replay stays slower, by about 0.3 us per node.
            // SAFETY: nothing of CUPTI is in use: this is the only watch, and it ends here.
            unsafe { (cupti.finalize)() };
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
