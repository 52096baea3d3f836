//! CUPTI, loaded when it is asked for: when the nodes of a graph ran.
//!
//! Its activity records need no permission for hardware counters. Enabling them slows launches down by some
//! microseconds and leaves kernels as they are, concurrency included.

use std::ffi::{c_char, c_void, CStr};
use std::sync::OnceLock;

use cudarc::driver::sys;
use libloading::Library;
use parking_lot::{Mutex, MutexGuard};

use crate::{Error, Result};

/// A node of a graph, as it ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cuda) struct Activity {
    /// The graph.
    pub graph: u32,
    /// The node; nodes that were added later to a graph have larger numbers.
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

/// The functions that are used, by the names that CUPTI gives them.
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

/// Kinds of activity: copies, memsets, kernels that may run beside each other.
const KINDS: [u32; 3] = [1, 2, CONCURRENT_KERNEL];
const CONCURRENT_KERNEL: u32 = 10;

/// The oldest version whose records have the layout that is read here (CUDA 11.1).
const OLDEST: u32 = 14;

/// Words of a buffer for records; CUPTI wants them aligned to 8 bytes.
const BUFFER_WORDS: usize = 1 << 18;

static RECORDS: Mutex<Vec<Activity>> = Mutex::new(Vec::new());

fn cupti() -> Result<&'static Cupti> {
    static CUPTI: OnceLock<std::result::Result<Cupti, String>> = OnceLock::new();
    CUPTI.get_or_init(load).as_ref().map_err(|message| Error::Driver { call: "CUPTI", message: message.clone() })
}

fn load() -> std::result::Result<Cupti, String> {
    let names = ["libcupti.so.13", "libcupti.so.12", "libcupti.so"];
    // SAFETY: the library's constructors are NVIDIA's own, made to be loaded so.
    let library = names.into_iter().find_map(|name| unsafe { Library::new(name) }.ok()).ok_or_else(|| {
        "libcupti was not found: it comes with CUDA's toolkit (extras/CUPTI/lib64) and with the Python package \
         nvidia-cuda-cupti; put its folder on LD_LIBRARY_PATH"
            .to_string()
    })?;
    // SAFETY: the types below are those that cupti_activity.h and cupti_version.h declare for these names. The library
    // is never unloaded.
    unsafe {
        let library: &'static Library = Box::leak(Box::new(library));
        let missing = |error: libloading::Error| error.to_string();
        let version = library.get::<unsafe extern "C" fn(*mut u32) -> Status>(b"cuptiGetVersion").map_err(missing)?;
        let mut found = 0;
        if version(&mut found) != 0 || found < OLDEST {
            return Err(format!("CUPTI's version {found} is too old: CUDA 11.1 or later is needed"));
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

/// Gives CUPTI a buffer.
extern "C" fn requested(buffer: *mut *mut u8, bytes: *mut usize, most: *mut usize) {
    let words = vec![0u64; BUFFER_WORDS].into_boxed_slice();
    // SAFETY: CUPTI hands over three places to write to; 0 means as many records as fit.
    unsafe {
        *buffer = Box::into_raw(words).cast();
        *bytes = BUFFER_WORDS * size_of::<u64>();
        *most = 0;
    }
}

/// Takes a buffer back, and what it holds.
extern "C" fn completed(_: *mut c_void, _: u32, buffer: *mut u8, _: usize, valid: usize) {
    // SAFETY: the buffer is one that `requested` gave away, of that many words, and CUPTI is done with it.
    let words = unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(buffer.cast::<u64>(), BUFFER_WORDS)) };
    let Ok(cupti) = cupti() else { return };
    let mut record = std::ptr::null_mut();
    let mut records = RECORDS.lock();
    // SAFETY: `valid` bytes of the buffer hold whole records, which the function walks; each stays where it is until
    // the buffer is dropped.
    unsafe {
        while (cupti.next_record)(buffer, valid, &mut record) == 0 {
            records.extend(read(record));
        }
    }
    drop(words);
}

/// Reads the record of a graph's node.
///
/// # Safety
/// `record` must point at a record of one of [`KINDS`].
unsafe fn read(record: *const u8) -> Option<Activity> {
    // SAFETY: all kinds begin with their number, and have their times at these places, in every version since the
    // oldest; kernels have name, node and graph at theirs, copies and memsets node and graph. (cupti_activity.h: ActivityKernel6 and
    // later, ActivityMemcpy5 and later, ActivityMemset3 and later.) A name is a string that CUPTI keeps.
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

/// The numbers that records give a graph: its own and its executable's.
///
/// # Safety
/// Both handles must be those of things that are there.
pub(super) unsafe fn graph_ids(graph: sys::CUgraph, executable: sys::CUgraphExec) -> Result<[u32; 2]> {
    let (cupti, mut ids) = (cupti()?, [0; 2]);
    // SAFETY: the caller vouches for the handles, and each call writes one number.
    unsafe {
        status("cuptiGetGraphId", (cupti.graph_id)(graph, &mut ids[0]))?;
        status("cuptiGetGraphExecId", (cupti.executable_id)(executable, &mut ids[1]))?;
    }
    Ok(ids)
}

/// Records what graphs run, as long as it lives. One at a time: others wait.
pub(in crate::cuda) struct Watch {
    _one: MutexGuard<'static, ()>,
}

impl Watch {
    /// Begins. Graphs that are to be watched must be instantiated afterwards.
    ///
    /// # Errors
    /// CUPTI cannot be loaded (it says what to install) or is in use by a profiler.
    pub fn start() -> Result<Self> {
        static ONE: Mutex<()> = Mutex::new(());
        let cupti = cupti()?;
        let watch = Self { _one: ONE.lock() };
        // SAFETY: functions of the types that CUPTI calls, which live as long as the program.
        status("cuptiActivityRegisterCallbacks", unsafe { (cupti.register)(requested, completed) })?;
        for kind in KINDS {
            // SAFETY: a kind of activity that there is.
            status("cuptiActivityEnable", unsafe { (cupti.enable)(kind) })?;
        }
        Ok(watch)
    }

    /// What has run since the last call. The device must be idle.
    pub fn take(&self) -> Result<Vec<Activity>> {
        const FORCED: u32 = 1;
        // SAFETY: no argument points anywhere; the callbacks stay registered.
        status("cuptiActivityFlushAll", unsafe { (cupti()?.flush_all)(FORCED) })?;
        Ok(std::mem::take(&mut *RECORDS.lock()))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Ok(cupti) = cupti() {
            for kind in KINDS {
                // SAFETY: a kind that was enabled, or that disabling leaves as it is.
                unsafe { (cupti.disable)(kind) };
            }
            // Otherwise every later replay stays slower, by some 0.3 us a node.
            // SAFETY: nothing of CUPTI's is in use: this is the one watch, and it is over.
            unsafe { (cupti.finalize)() };
        }
    }
}

fn status(call: &'static str, status: Status) -> Result<()> {
    match status {
        0 => Ok(()),
        // CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
        39 => Err(Error::Driver { call, message: "another profiler is in use in this process".into() }),
        status => Err(Error::Driver { call, message: format!("CUPTI's status {status}") }),
    }
}
