//! The captured launch of each op.

use std::sync::Arc;

use parking_lot::Mutex;

use super::driver::kernels::module::Kernels;
use super::driver::{CapturedGraph, LaunchNode, MemcpyNode, MemsetNode, Pointer};

/// The launches of a capture, and the owners of their resources, which copies share.
#[derive(Clone)]
pub(super) struct Launches {
    /// For each op, its launch.
    pub of: Vec<CapturedLaunch>,
    /// The graphs whose nodes are the templates of these launches.
    pub graphs: Vec<Arc<Mutex<CapturedGraph>>>,
    /// The loaded kernels that fusion generated.
    pub kernels: Vec<Arc<Kernels>>,
}

/// The launch of one op.
#[derive(Clone)]
pub(super) struct CapturedLaunch {
    pub launch: LaunchNode,
    /// Its pointers to buffers that a replay relocates.
    pub pointers: Vec<Pointer>,
    /// Offsets, in the arguments, of pointers to memory that stays where it is.
    pub fixed: Vec<usize>,
    /// Offsets of stale pointers in argument padding, which lead to tensors that the library's call does not name. They are ignored when
    /// two captures are compared.
    pub unnamed: Vec<usize>,
    /// Did a library launch it? Then its arguments may hold padding with arbitrary bytes.
    pub is_of_a_library: bool,
}

impl CapturedLaunch {
    /// The launch of a fused kernel.
    pub fn new(launch: LaunchNode, pointers: Vec<Pointer>) -> Self {
        Self { launch, pointers, fixed: Vec::new(), unnamed: Vec::new(), is_of_a_library: false }
    }

    /// Offsets of all pointers, in order.
    pub fn words(&self) -> Vec<usize> {
        let mut words: Vec<usize> = self.pointers.iter().map(|p| p.word).chain(self.fixed.iter().copied()).collect();
        words.sort_unstable();
        words
    }

    /// Does this launch do the same as one of an earlier capture, apart from the addresses of its buffers? `moved`
    /// contains the offsets of the pointers to them.
    pub fn repeats(&self, earlier: &CapturedLaunch, moved: &[usize]) -> bool {
        match (&self.launch, &earlier.launch) {
            (LaunchNode::Kernel(now), LaunchNode::Kernel(before)) => {
                let is_padding = |word: &usize| self.unnamed.contains(word) || earlier.unnamed.contains(word);
                let fixed = |of: &Self| of.fixed.iter().copied().filter(|word| !is_padding(word)).collect::<Vec<_>>();
                let own = fixed(self);
                let compared =
                    |word: &usize| if self.is_of_a_library { own.contains(word) } else { !moved.contains(word) };
                let words = now.arguments.words().zip(before.arguments.words());
                own == fixed(earlier) && words.filter(|((word, _), _)| compared(word)).all(|((_, a), (_, b))| a == b)
            }
            (LaunchNode::Memset(now), LaunchNode::Memset(before)) => {
                let target = |m: &MemsetNode| self.fixed.contains(&0).then(|| m.address());
                now.value() == before.value() && target(now) == target(before)
            }
            (LaunchNode::Memcpy(now), LaunchNode::Memcpy(before)) => {
                let source = |m: &MemcpyNode| m.source().filter(|_| self.fixed.contains(&0));
                let target = |m: &MemcpyNode| self.fixed.contains(&1).then(|| m.target());
                now.bytes_on_host() == before.bytes_on_host()
                    && (source(now), target(now)) == (source(before), target(before))
            }
            _ => false,
        }
    }
}
