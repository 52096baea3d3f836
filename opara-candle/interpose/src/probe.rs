//! Calls that only ask whether they are seen.

use std::cell::Cell;

/// What a probe of this thread has come to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Probe {
    None,
    Asked,
    Seen,
}

thread_local! {
    static PROBE: Cell<Probe> = const { Cell::new(Probe::None) };
}

/// Is the call that asks a probe? Then it has been seen, and does nothing else.
pub(crate) fn is_probe() -> bool {
    let is_asked = PROBE.get() == Probe::Asked;
    if is_asked {
        PROBE.set(Probe::Seen);
    }
    is_asked
}

/// Does the call in `f` reach its definition here?
pub(crate) fn sees<T>(f: impl FnOnce() -> T) -> bool {
    PROBE.set(Probe::Asked);
    f();
    PROBE.replace(Probe::None) == Probe::Seen
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_call_that_is_no_probe_is_not_taken_for_one() {
        assert!(!super::is_probe());
        assert!(super::sees(super::is_probe));
        assert!(!super::is_probe() && !super::sees(|| ()));
    }
}
