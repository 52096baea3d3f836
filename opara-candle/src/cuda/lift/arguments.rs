//! The arguments of a launch: integers, views, and the tables that were uploaded for it.

use hashbrown::HashMap;

use crate::cuda::driver::KernelNode;
use crate::cuda::launches::CapturedLaunch;
use crate::trace::{AccessMode, BufferId, Dim, Element, Op, View};

/// The arguments of a launch of a candle kernel.
pub(super) struct Arguments<'a> {
    pub kernel: &'a KernelNode,
    /// By the offset of a pointer: its buffer, and bytes from the buffer's start.
    pointers: HashMap<usize, (BufferId, u64)>,
    uploads: &'a HashMap<BufferId, &'a [u8]>,
}

impl<'a> Arguments<'a> {
    pub fn new(
        op: &Op,
        recorded: &CapturedLaunch,
        kernel: &'a KernelNode,
        uploads: &'a HashMap<BufferId, &'a [u8]>,
    ) -> Option<Self> {
        // A kernel that is not known counts as writing all that it reads.
        let is_unknown = op.accesses.iter().any(|access| access.mode == AccessMode::ReadWrite);
        if is_unknown {
            return None;
        }
        Self::of_parts(op, recorded, kernel, uploads)
    }

    /// The same of a kernel that may read what it writes.
    pub fn of_parts(
        op: &Op,
        recorded: &CapturedLaunch,
        kernel: &'a KernelNode,
        uploads: &'a HashMap<BufferId, &'a [u8]>,
    ) -> Option<Self> {
        // There is one access per pointer, in the order of the arguments.
        let words = recorded.words();
        if words.len() != op.accesses.len() {
            return None;
        }
        let of = op.accesses.iter().map(|access| (access.buffer, access.region.start()));
        Some(Self { kernel, pointers: words.into_iter().zip(of).collect(), uploads })
    }

    pub fn integer(&self, index: usize) -> Option<u64> {
        self.kernel.arguments.integer(index)
    }

    /// The bytes that were uploaded to where the argument at an offset points.
    pub fn uploaded(&self, word: usize) -> Option<&'a [u8]> {
        let &(buffer, delta) = self.pointers.get(&word)?;
        self.uploads.get(&buffer)?.get(delta as usize..)
    }

    /// The same as numbers of eight bytes.
    pub fn table(&self, word: usize) -> Option<Vec<u64>> {
        let bytes = self.uploaded(word)?;
        Some(bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default())).collect())
    }

    /// The dimensions and strides of so many operands: the arguments `num_dims` and `info` begin at index `at`. Without a table
    /// all are `elements` in a row.
    pub fn dims(&self, at: usize, operands: usize, elements: u64) -> Option<Vec<Vec<Dim>>> {
        let rank = self.integer(at)? as usize;
        if self.integer(at + 1)? == 0 {
            return Some(vec![vec![Dim { len: elements, stride: 1 }]; operands]);
        }
        let table = self.table(self.offset(at + 1)?)?;
        let lens = table.get(..rank)?;
        let of = |operand: usize| {
            let strides = table.get(rank * (1 + operand)..rank * (2 + operand))?;
            Some(merged(lens.iter().zip(strides).map(|(&len, &stride)| Dim { len, stride })))
        };
        (0..operands).map(of).collect()
    }

    /// The offset of an argument.
    pub fn offset(&self, argument: usize) -> Option<usize> {
        Some(self.kernel.arguments.argument(argument)?.0)
    }

    /// A view from the pointer at an offset on.
    pub fn view(&self, word: usize, element: Element, dims: Vec<Dim>) -> Option<View> {
        let &(buffer, delta) = self.pointers.get(&word)?;
        let first = delta.is_multiple_of(element.bytes()).then_some(delta / element.bytes())?;
        Some(View { buffer, element, first, dims })
    }

    /// The same of an argument.
    pub fn view_of(&self, argument: usize, element: Element, dims: Vec<Dim>) -> Option<View> {
        self.view(self.offset(argument)?, element, dims)
    }
}

/// Dimensions without those of one, and those that continue each other as one.
fn merged(dims: impl Iterator<Item = Dim>) -> Vec<Dim> {
    let mut merged: Vec<Dim> = Vec::new();
    for dim in dims.filter(|dim| dim.len != 1) {
        match merged.last_mut() {
            Some(outer) if dim.len.checked_mul(dim.stride) == Some(outer.stride) => {
                *outer = Dim { len: outer.len * dim.len, stride: dim.stride };
            }
            _ => merged.push(dim),
        }
    }
    if merged.is_empty() {
        merged.push(Dim { len: 1, stride: 1 });
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_that_continue_each_other_are_one() {
        let of = |dims: &[(u64, u64)]| {
            let dims = merged(dims.iter().map(|&(len, stride)| Dim { len, stride }));
            dims.iter().map(|dim| (dim.len, dim.stride)).collect::<Vec<_>>()
        };
        assert_eq!(of(&[(2, 12), (1, 99), (3, 4), (4, 1)]), [(24, 1)]);
        assert_eq!(of(&[(2, 3), (3, 8), (4, 2)]), [(2, 3), (12, 2)]);
        assert_eq!(of(&[(2, 0), (3, 0)]), [(6, 0)]);
        assert_eq!(of(&[(1, 7)]), [(1, 1)]);
    }
}
