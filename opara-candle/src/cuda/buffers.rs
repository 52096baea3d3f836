//! Buffers by address, while a captured pass allocates and frees them.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use super::driver::{AllocationTable, Stream};
use crate::trace::{Buffer, BufferId, Region, Role};
use opara_plan::memory::aligned;

/// The owner of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// A tensor.
    Tensor,
    /// A library.
    Library,
}

/// Buffers by address, updated by allocations and frees.
pub(super) struct Memory<'a> {
    stream: &'a Stream,
    pub buffers: Vec<Buffer>,
    pub owners: Vec<Owner>,
    /// Live buffers by their first byte.
    pub live: BTreeMap<u64, BufferId>,
    pub external: HashMap<u64, BufferId>,
    allocations: AllocationTable,
    /// Bytes of candle's live allocations, and their peak.
    bytes: u64,
    pub peak: u64,
    /// Does a known kernel write to an input?
    pub writes_input: bool,
}

impl<'a> Memory<'a> {
    pub fn new(stream: &'a Stream) -> Self {
        Self {
            stream,
            buffers: Vec::new(),
            owners: Vec::new(),
            live: Default::default(),
            external: HashMap::new(),
            allocations: AllocationTable::default(),
            bytes: 0,
            peak: 0,
            writes_input: false,
        }
    }

    pub fn add(&mut self, bytes: u64, role: Role, owner: Owner) -> BufferId {
        self.buffers.push(Buffer { bytes, role });
        self.owners.push(owner);
        self.buffers.len() - 1
    }

    pub fn allocate(&mut self, address: u64, bytes: u64, library: bool) -> BufferId {
        let (role, owner) =
            if library { (Role::Workspace, Owner::Library) } else { (Role::Intermediate, Owner::Tensor) };
        // Another thread freed the previous buffer at this address.
        self.free(address);
        let id = self.add(bytes, role, owner);
        self.live.insert(address, id);
        self.bytes += if library { 0 } else { aligned(bytes) };
        self.peak = self.peak.max(self.bytes);
        id
    }

    pub fn free(&mut self, address: u64) {
        if let Some(id) = self.live.remove(&address) {
            let library = self.owners[id] == Owner::Library;
            self.bytes -= if library { 0 } else { aligned(self.buffers[id].bytes) };
        }
    }

    pub fn is_input(&self, buffer: BufferId) -> bool {
        matches!(self.buffers[buffer].role, Role::Input(_))
    }

    /// Finds the buffer that contains an address, and the offset in it.
    pub fn find(&mut self, address: u64) -> Option<(BufferId, u64)> {
        if let Some(found) = self.find_live(address) {
            return Some(found);
        }
        let allocation = self.allocations.find(self.stream, address)?;
        let id = match self.external.get(&allocation.start) {
            Some(&id) => id,
            None => {
                let owner = if allocation.pooled { Owner::Tensor } else { Owner::Library };
                let id = self.add(allocation.bytes, Role::External, owner);
                self.external.insert(allocation.start, id);
                id
            }
        };
        Some((id, address - allocation.start))
    }

    /// The same of the pass's own buffers and its arguments.
    fn find_live(&self, address: u64) -> Option<(BufferId, u64)> {
        let around = self.live.range(..=address).next_back().map(|(&start, &id)| (id, address - start));
        around.filter(|&(id, delta)| delta < self.buffers[id].bytes)
    }

    /// Does an address lead to a tensor from before the pass that is none of these buffers? Such a tensor does not become one of the
    /// pass's buffers.
    pub fn is_foreign(&mut self, address: u64, among: impl Fn(BufferId) -> bool) -> bool {
        if self.find_live(address).is_some() {
            return false;
        }
        let Some(allocation) = self.allocations.find(self.stream, address) else { return false };
        allocation.pooled && !self.external.get(&allocation.start).is_some_and(|&id| among(id))
    }

    pub fn whole(&self, buffer: BufferId, from: u64) -> Region {
        Region::contiguous(from, self.buffers[buffer].bytes - from)
    }
}

/// The latest buffer at each address. Unlike `live`, it also contains freed buffers, such as outputs at the end of a
/// pass.
#[derive(Default)]
pub(super) struct Latest(BTreeMap<u64, BufferId>);

impl Latest {
    /// Replaces older buffers in this address range.
    pub fn insert(&mut self, address: u64, bytes: u64, buffer: BufferId) {
        let gone: Vec<u64> = self.0.range(address..address + bytes).map(|(&address, _)| address).collect();
        for address in gone {
            self.0.remove(&address);
        }
        self.0.insert(address, buffer);
    }

    pub fn at(&self, address: u64) -> Option<BufferId> {
        self.0.get(&address).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_hides_older_buffers_in_its_memory() {
        let mut latest = Latest::default();
        for (address, bytes, buffer) in [(100, 50, 0), (150, 50, 1), (200, 50, 2), (100, 0, 3), (100, 100, 4)] {
            latest.insert(address, bytes, buffer);
        }
        assert_eq!([100, 150, 200].map(|address| latest.at(address)), [Some(4), None, Some(2)]);
        latest.insert(150, 50, 5);
        assert_eq!([100, 150, 200].map(|address| latest.at(address)), [Some(4), Some(5), Some(2)]);
    }
}
