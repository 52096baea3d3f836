//! Calls of libraries, noted while they are made.

use super::library_call::{Call, LibraryCall};
use super::{thread_capture, written_memory};

/// Makes a call of a library, noted where this thread captures, and with what it writes saved where that is asked for.
/// `describe` is called only then. In a capture that has been ended the call is `refused`.
pub(super) fn noted<T>(describe: impl FnOnce() -> Call, refused: T, run: impl FnOnce() -> T) -> T {
    if thread_capture::is_capturing() {
        let Some(_call) = thread_capture::in_call() else { return refused };
        let call = describe();
        let before = thread_capture::with(|capture| capture.last_node());
        let result = run();
        thread_capture::with(|capture| {
            let nodes = [before.unwrap_or(0), capture.last_node()];
            capture.library_calls.push(LibraryCall { call, nodes });
        });
        return result;
    }
    if written_memory::is_watched() {
        written_memory::before_call(&describe());
    }
    run()
}
