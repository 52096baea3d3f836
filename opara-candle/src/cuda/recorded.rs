//! What ops launch, as it was captured.

use super::driver::kernels::module::Kernels;
use super::driver::{Captured, Launch, MemcpyNode, MemsetNode, Pointer};

/// What ops launch.
pub(super) struct Launches {
    /// One entry an op.
    pub of: Vec<Recorded>,
    /// Own the nodes that attributes are copied from.
    pub graphs: Vec<Captured>,
    /// What some of them launch.
    pub kernels: Vec<Kernels>,
}

/// What an op launches.
pub(super) struct Recorded {
    pub launch: Launch,
    /// Pointers in it to buffers that may move.
    pub pointers: Vec<Pointer>,
    /// Places of pointers to memory that stays where it is.
    pub fixed: Vec<usize>,
    /// Whether a library launched it: its arguments may hold bytes that mean nothing.
    pub is_of_a_library: bool,
}

impl Recorded {
    /// A launch of this library's own.
    pub fn new(launch: Launch, pointers: Vec<Pointer>) -> Self {
        Self { launch, pointers, fixed: Vec::new(), is_of_a_library: false }
    }

    /// Places of all pointers, in order.
    pub fn words(&self) -> Vec<usize> {
        let mut words: Vec<usize> = self.pointers.iter().map(|p| p.word).chain(self.fixed.iter().copied()).collect();
        words.sort_unstable();
        words
    }

    /// Whether this launch does the same as one of an earlier capture, with buffers elsewhere. `moved` are the places of
    /// pointers to those.
    pub fn repeats(&self, earlier: &Recorded, moved: &[usize]) -> bool {
        match (&self.launch, &earlier.launch) {
            (Launch::Kernel(now), Launch::Kernel(before)) => {
                let compared =
                    |word: &usize| if self.is_of_a_library { self.fixed.contains(word) } else { !moved.contains(word) };
                let words = now.arguments.words().zip(before.arguments.words());
                self.fixed == earlier.fixed
                    && words.filter(|((word, _), _)| compared(word)).all(|((_, a), (_, b))| a == b)
            }
            (Launch::Memset(now), Launch::Memset(before)) => {
                let target = |m: &MemsetNode| self.fixed.contains(&0).then(|| m.address());
                now.value() == before.value() && target(now) == target(before)
            }
            (Launch::Memcpy(now), Launch::Memcpy(before)) => {
                let source = |m: &MemcpyNode| m.source().filter(|_| self.fixed.contains(&0));
                let target = |m: &MemcpyNode| self.fixed.contains(&1).then(|| m.target());
                now.bytes_on_host() == before.bytes_on_host()
                    && (source(now), target(now)) == (source(before), target(before))
            }
            _ => false,
        }
    }
}
