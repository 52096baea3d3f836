//! For tests: calls of the driver and of libraries that fail although nothing is wrong.
//!
//! All functions that are interposed ask here first, and `interpose/faulty.rs` interposes what building calls besides. Without
//! the feature `faults` none of this exists.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::cublas::sys as cublas;
use cudarc::cublaslt::sys as cublaslt;
use cudarc::curand::sys as curand;
use cudarc::driver::sys::CUresult;
use parking_lot::Mutex;

/// How calls fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The one call: the device has no memory left.
    OutOfMemory,
    /// The one call: the driver refuses it.
    Refused,
    /// This call, and all later ones: a kernel has failed.
    Lost,
}

impl Failure {
    fn status(self) -> CUresult {
        match self {
            Failure::OutOfMemory => CUresult::CUDA_ERROR_OUT_OF_MEMORY,
            Failure::Refused => CUresult::CUDA_ERROR_INVALID_VALUE,
            Failure::Lost => CUresult::CUDA_ERROR_LAUNCH_FAILED,
        }
    }
}

/// A call that is to fail: the n-th one of a function, from 1.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// Name of the function in its library.
    pub call: &'static str,
    /// Which of its calls.
    pub nth: usize,
    /// How.
    pub failure: Failure,
}

/// How often each function was called.
pub type Calls = BTreeMap<&'static str, usize>;

struct Plan {
    fault: Option<Fault>,
    calls: Calls,
}

/// The calls that are to fail, of all threads.
static PLAN: Mutex<Option<Plan>> = Mutex::new(None);
/// Whether there is a plan.
static IS_PLANNED: AtomicBool = AtomicBool::new(false);

/// Runs `f`, with one call failing if a fault is given, whichever thread makes it; counts calls meanwhile.
///
/// # Panics
/// In a closure of another call of this function, or beside one on another thread.
pub fn with_fault<T>(fault: Option<Fault>, f: impl FnOnce() -> T) -> (T, Calls) {
    struct Planned;
    impl Drop for Planned {
        fn drop(&mut self) {
            IS_PLANNED.store(false, Ordering::SeqCst);
            PLAN.lock().take();
        }
    }
    let before = PLAN.lock().replace(Plan { fault, calls: Calls::new() });
    assert!(before.is_none(), "one plan at a time");
    let _planned = Planned;
    IS_PLANNED.store(true, Ordering::SeqCst);
    let result = f();
    let calls = PLAN.lock().as_ref().map(|plan| plan.calls.clone()).unwrap_or_default();
    (result, calls)
}

/// Counts a call; how it fails, if it does.
fn failure_of(call: &'static str) -> Option<Failure> {
    let mut plan = PLAN.lock();
    let Plan { fault, calls } = plan.as_mut()?;
    *calls.entry(call).or_default() += 1;
    let Fault { call: of, nth, failure } = (*fault)?;
    let times = calls.get(of).copied().unwrap_or(0);
    let fails = if failure == Failure::Lost { times >= nth } else { call == of && times == nth };
    fails.then_some(failure)
}

/// Functions that end something. They do so and fail nevertheless, as the driver's do to report an error of earlier work.
const DONE_ALL_THE_SAME: &[&str] = &[
    "cuMemFreeAsync",
    "cuMemFree_v2",
    "cuStreamEndCapture",
    "cuModuleUnload",
    "cublasDestroy_v2",
    "cudnnDestroy",
    "curandDestroyGenerator",
];

/// Makes a call, unless it is to fail.
pub(super) fn unless_failing<R: Failing>(name: &'static str, call: impl FnOnce() -> R) -> R {
    let failure = IS_PLANNED.load(Ordering::Relaxed).then(|| failure_of(name)).flatten();
    let Some(failure) = failure else { return call() };
    if DONE_ALL_THE_SAME.contains(&name) {
        call();
    }
    R::of(failure)
}

/// What functions return.
pub(super) trait Failing {
    fn of(failure: Failure) -> Self;
}

impl Failing for CUresult {
    fn of(failure: Failure) -> Self {
        failure.status()
    }
}

/// Codes of CUDA's runtime: these are the same numbers.
impl Failing for c_int {
    fn of(failure: Failure) -> Self {
        failure.status() as c_int
    }
}

/// Defines the codes of a library: without memory, refused, lost.
macro_rules! codes {
    ($($(#[$cfg:meta])? $status:ty: $no_memory:ident, $refused:ident, $lost:ident;)*) => {$(
        $(#[$cfg])?
        impl Failing for $status {
            fn of(failure: Failure) -> Self {
                match failure {
                    Failure::OutOfMemory => Self::$no_memory,
                    Failure::Refused => Self::$refused,
                    Failure::Lost => Self::$lost,
                }
            }
        }
    )*};
}

codes! {
    cublas::cublasStatus_t: CUBLAS_STATUS_ALLOC_FAILED, CUBLAS_STATUS_INVALID_VALUE, CUBLAS_STATUS_EXECUTION_FAILED;
    cublaslt::cublasStatus_t: CUBLAS_STATUS_ALLOC_FAILED, CUBLAS_STATUS_INVALID_VALUE, CUBLAS_STATUS_EXECUTION_FAILED;
    curand::curandStatus_t:
        CURAND_STATUS_ALLOCATION_FAILED, CURAND_STATUS_TYPE_ERROR, CURAND_STATUS_LAUNCH_FAILURE;
    #[cfg(feature = "cudnn")]
    cudarc::cudnn::sys::cudnnStatus_t:
        CUDNN_STATUS_INTERNAL_ERROR, CUDNN_STATUS_NOT_SUPPORTED, CUDNN_STATUS_EXECUTION_FAILED;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_fails_or_all_from_one_on() {
        let call = |name| unless_failing(name, || CUresult::CUDA_SUCCESS);
        let names = ["a", "b", "a", "b", "a"];
        let failing = |fault| {
            let (results, calls) = with_fault(fault, || names.map(call));
            assert_eq!((calls["a"], calls["b"]), (3, 2));
            results.map(|status| status != CUresult::CUDA_SUCCESS)
        };
        assert_eq!(failing(None), [false; 5]);
        let fault = |failure| Some(Fault { call: "a", nth: 2, failure });
        assert_eq!(failing(fault(Failure::Refused)), [false, false, true, false, false]);
        assert_eq!(failing(fault(Failure::Lost)), [false, false, true, true, true]);
        assert_eq!(call("a"), CUresult::CUDA_SUCCESS);

        // A function that is interposed, whether there is a driver or only the stub, which never succeeds.
        let mut address = 0;
        let fault = Fault { call: "cuMemAlloc_v2", nth: 1, failure: Failure::OutOfMemory };
        // SAFETY: the address is written at most; the call fails before it reaches the driver.
        let allocate = || unsafe { cudarc::driver::sys::cuMemAlloc_v2(&mut address, 16) };
        let (status, calls) = with_fault(Some(fault), allocate);
        assert_eq!((status, calls["cuMemAlloc_v2"]), (CUresult::CUDA_ERROR_OUT_OF_MEMORY, 1));
    }
}
