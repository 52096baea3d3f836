//! The arguments of a launch: integers, views, and the tables that were uploaded for it.

use hashbrown::HashMap;

use crate::cuda::driver::{self, KernelNode};
use crate::cuda::launches::CapturedLaunch;
use crate::trace::{BufferId, Dim, Element, Launch, Op, View};

/// The arguments of a launch of a candle kernel.
pub(super) struct Arguments<'a> {
    pub arguments: &'a driver::Arguments,
    pub launch: &'a Launch,
    /// By their offsets.
    pub pointers: HashMap<usize, Pointed>,
    pub uploads: &'a HashMap<BufferId, &'a [u8]>,
}

/// Where a pointer points.
#[derive(Clone, Copy)]
pub(super) struct Pointed {
    pub buffer: BufferId,
    /// Bytes from the buffer's start.
    pub delta: u64,
    /// Bytes that the launch accesses there.
    pub bytes: u64,
}

impl<'a> Arguments<'a> {
    pub fn new(
        op: &Op,
        recorded: &CapturedLaunch,
        kernel: &'a KernelNode,
        uploads: &'a HashMap<BufferId, &'a [u8]>,
    ) -> Option<Self> {
        // There is one access per pointer, in the order of the arguments.
        let words = recorded.words();
        let of = op.accesses.iter().map(|access| Pointed {
            buffer: access.buffer,
            delta: access.region.start(),
            bytes: access.region.bytes(),
        });
        let pointers = (words.len() == op.accesses.len()).then(|| words.into_iter().zip(of).collect())?;
        Some(Self { arguments: &kernel.arguments, launch: &kernel.launch, pointers, uploads })
    }

    pub fn integer(&self, index: usize) -> Option<u64> {
        self.arguments.integer(index)
    }

    pub fn integers<const N: usize>(&self, indices: [usize; N]) -> Option<[u64; N]> {
        let found: Vec<u64> = indices.into_iter().map(|index| self.integer(index)).collect::<Option<_>>()?;
        found.try_into().ok()
    }

    /// The bytes that were uploaded to where the argument at an offset points.
    pub fn uploaded(&self, word: usize) -> Option<&'a [u8]> {
        let Pointed { buffer, delta, .. } = self.pointers.get(&word)?;
        self.uploads.get(buffer)?.get(*delta as usize..)
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
        Some(self.arguments.argument(argument)?.0)
    }

    /// A view from where an argument points to on.
    pub fn view(&self, argument: usize, element: Element, dims: Vec<Dim>) -> Option<View> {
        self.view_at(self.offset(argument)?, element, dims)
    }

    /// The same of the pointer at an offset.
    pub fn view_at(&self, offset: usize, element: Element, dims: Vec<Dim>) -> Option<View> {
        let &Pointed { buffer, delta, .. } = self.pointers.get(&offset)?;
        let first = delta.is_multiple_of(element.bytes()).then_some(delta / element.bytes())?;
        Some(View { buffer, element, first, dims })
    }

    /// Elements in a row from there on.
    pub fn row(&self, argument: usize, element: Element, len: u64) -> Option<View> {
        self.view(argument, element, vec![Dim { len, stride: 1 }])
    }

    /// Bytes that the launch accesses from where an argument points to on.
    pub fn reach(&self, argument: usize) -> Option<u64> {
        self.reach_at(self.offset(argument)?)
    }

    /// The same of the pointer at an offset.
    pub fn reach_at(&self, offset: usize) -> Option<u64> {
        Some(self.pointers.get(&offset)?.bytes)
    }

    /// The bits of a number.
    pub fn bits(&self, argument: usize, element: Element) -> Option<u64> {
        let (_, bytes) = self.arguments.argument(argument)?;
        (bytes.len() as u64 == element.bytes()).then(|| bits(bytes))
    }

    /// A number.
    pub fn number(&self, argument: usize, element: Element) -> Option<f64> {
        let bits = self.bits(argument, element)?;
        element.number(bits).or_else(|| element.integer(bits).map(|integer| integer as f64))
    }
}

/// Rows of `columns` elements, and the elements from one to the next.
pub(super) fn by_rows(rows: u64, columns: u64, stride: u64) -> Vec<Dim> {
    vec![Dim { len: rows, stride }, Dim { len: columns, stride: 1 }]
}

/// The bits of a number of at most eight bytes.
pub(super) fn bits(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte))
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
