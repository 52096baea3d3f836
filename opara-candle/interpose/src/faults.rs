//! For tests: injects failures into calls of the driver and of libraries.
//!
//! All interposed functions ask here first; `faulty.rs` also interposes the calls that only building makes.
//! Compiled with the feature `faults` only.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::cublas::sys as cublas;
use cudarc::cublaslt::sys as cublaslt;
use cudarc::curand::sys as curand;
use cudarc::driver::sys::CUresult;
use parking_lot::Mutex;

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// This call fails: the device has no memory left.
    OutOfMemory,
    /// This call fails: the driver rejects it.
    Refused,
    /// This call and all later ones fail: a kernel has failed.
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

/// A call that is to fail: the n-th call of a function, counted from 1.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// Name of the function in its library.
    pub call: &'static str,
    /// Number of the call, from 1.
    pub nth: usize,
    /// The kind of failure.
    pub failure: Failure,
}

/// The number of calls per function.
pub type Calls = BTreeMap<&'static str, usize>;

struct Plan {
    fault: Option<Fault>,
    calls: Calls,
}

/// The planned fault, for all threads.
static PLAN: Mutex<Option<Plan>> = Mutex::new(None);
/// Is there a plan?
static IS_PLANNED: AtomicBool = AtomicBool::new(false);

/// Runs `f`; if a fault is given, that call fails, on whichever thread it happens. Returns the numbers of calls
/// meanwhile.
///
/// # Panics
/// If called inside the closure of another call, or concurrently with one.
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

/// Counts a call. Returns its failure, if it is to fail.
fn failure_of(call: &'static str) -> Option<Failure> {
    let mut plan = PLAN.lock();
    let Plan { fault, calls } = plan.as_mut()?;
    *calls.entry(call).or_default() += 1;
    let Fault { call: of, nth, failure } = (*fault)?;
    let times = calls.get(of).copied().unwrap_or(0);
    let fails = if failure == Failure::Lost { times >= nth } else { call == of && times == nth };
    fails.then_some(failure)
}

/// Functions that release something. They do so before they report the failure, like the driver when it reports an
/// error of earlier work.
const FAIL_AFTER_THE_CALL: &[&str] = &[
    "cuMemFreeAsync",
    "cuMemFree_v2",
    "cuStreamEndCapture",
    "cuModuleUnload",
    "cublasDestroy_v2",
    "cudnnDestroy",
    "curandDestroyGenerator",
];

/// Makes a call, unless it is to fail.
pub(crate) fn unless_failing<R: Failing>(name: &'static str, call: impl FnOnce() -> R) -> R {
    let failure = IS_PLANNED.load(Ordering::Relaxed).then(|| failure_of(name)).flatten();
    let Some(failure) = failure else { return call() };
    if FAIL_AFTER_THE_CALL.contains(&name) {
        call();
    }
    R::of(failure)
}

/// A status type of a driver or library function.
pub(crate) trait Failing {
    fn of(failure: Failure) -> Self;
}

impl Failing for CUresult {
    fn of(failure: Failure) -> Self {
        failure.status()
    }
}

/// Status codes of the CUDA runtime have the same numbers.
impl Failing for c_int {
    fn of(failure: Failure) -> Self {
        failure.status() as c_int
    }
}

/// Maps each failure to a library's status codes: no memory, rejected, lost.
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
    fn one_call_fails_or_all_calls_from_one_on() {
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

        // An interposed function, with a driver or with the stub library, which never succeeds.
        let mut address = 0;
        let fault = Fault { call: "cuMemAlloc_v2", nth: 1, failure: Failure::OutOfMemory };
        // SAFETY: at most the address is written; the call fails before it reaches the driver.
        let allocate = || unsafe { cudarc::driver::sys::cuMemAlloc_v2(&mut address, 16) };
        let (status, calls) = with_fault(Some(fault), allocate);
        assert_eq!((status, calls["cuMemAlloc_v2"]), (CUresult::CUDA_ERROR_OUT_OF_MEMORY, 1));
    }
}
