//! Records library calls.

use super::library_call::{Call, LibraryCall};
use super::status::Status;
use super::{thread_capture, watch};

/// Makes a library call. On a capturing thread it is captured and recorded, and made once more if what is captured runs. On a thread
/// whose writes are watched, the memory that it writes is saved before; if there is no memory for that, the call is refused. `describe`
/// is called only on such threads.
pub(crate) fn noted<T: Status>(describe: impl FnOnce() -> Call, run: impl Fn() -> T) -> T {
    noted_beside(describe, &run, || thread_capture::outside(&run))
}

/// Like [`noted`], for a call that is made in another way, by `beside`, to run what is captured.
pub(crate) fn noted_beside<T: Status>(
    describe: impl FnOnce() -> Call,
    run: impl Fn() -> T,
    beside: impl FnOnce() -> T,
) -> T {
    let (captures, saves) = (thread_capture::is_capturing(), watch::is_watched());
    if !captures && !saves {
        return run();
    }
    let call = describe();
    if saves && !watch::before_call(&call) {
        return T::NO_MEMORY;
    }
    if !captures {
        return run();
    }
    let status = {
        let Some(_in_call) = thread_capture::in_call() else { return T::REFUSED };
        let before = thread_capture::with(|capture| capture.last_node());
        let status = run();
        thread_capture::with(|capture| {
            capture.join();
            let nodes = [before.unwrap_or(0), capture.last_node()];
            capture.recorded.library_calls.push(LibraryCall { call, nodes });
        });
        status
    };
    let runs = thread_capture::with(|capture| capture.runs).unwrap_or(false);
    if status == T::SUCCESS && runs {
        beside()
    } else {
        status
    }
}
