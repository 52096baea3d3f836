//! How an interposed function is defined.

use std::panic::{catch_unwind, AssertUnwindSafe};

/// Makes a call whose panic does not cross into the caller, which may be foreign code: it gets `missing` instead.
pub(crate) fn without_panic<T>(name: &str, missing: T, call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        // The subscriber is the program's own.
        let _ = catch_unwind(|| tracing::error!(function = name, "a panic inside of an interposed function"));
        missing
    })
}

/// Defines an interposed function. `next` is the library's function; `missing` is returned if there is none, or after a panic. A function
/// with which its library is [probed](super::unseen()) returns `probed` then.
macro_rules! interpose {
    ($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $return:ty, missing $missing:expr
     $(, probed $probed:expr)?; |$next:ident| $body:expr) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As the library documents.
        #[cfg_attr(feature = "interpose", no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $return {
            static NEXT: super::next::Next<unsafe extern "C" fn($($type),*) -> $return> = super::next::Next::new();
            $(if super::probe::is_probe() {
                return $probed;
            })?
            // SAFETY: the type is that of the function that is defined here, which the library declares alike.
            let Some($next) = (unsafe { NEXT.get(concat!(stringify!($name), "\0")) }) else { return $missing };
            super::symbol::without_panic(stringify!($name), $missing, || {
                #[cfg(feature = "faults")]
                return $crate::faults::unless_failing(stringify!($name), || $body);
                #[cfg(not(feature = "faults"))]
                $body
            })
        }
    };
}

/// Defines an interposed function that enqueues work on `stream`, see [`thread_capture::enqueue`].
macro_rules! redirect {
    ($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $return:ty, missing $missing:expr,
     stream $stream:ident) => {
        super::interpose! {
            $(#[$doc])*
            fn $name($($argument: $type),*) -> $return, missing $missing;
            |next| super::thread_capture::enqueue($stream.cast(), |on| {
                let $stream = on.stream();
                // SAFETY: the arguments are the caller's, but for the stream, which is of the same context.
                unsafe { next($($argument),*) }
            })
        }
    };
}

pub(crate) use {interpose, redirect};

#[cfg(test)]
mod tests {
    #[test]
    fn a_panic_becomes_an_error_code() {
        assert_eq!(super::without_panic("cuLaunchKernel", 3, || 0), 0);
        assert_eq!(super::without_panic("cuLaunchKernel", 3, || panic!("of a test")), 3);
    }
}
