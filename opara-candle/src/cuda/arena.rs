//! The arena: device memory that graphs share.

use std::sync::{Arc, Weak};

use candle::{DType, Device, Tensor};
use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard};

use super::driver::{Event, MemoryBlock, Stream, StreamId};
use crate::Result;

/// Device memory that graphs share; only one call at a time uses it. It grows to the size that the largest graph needs.
/// Graphs built for the smaller arena are then rebuilt.
pub(crate) struct Arena {
    state: Mutex<State>,
    kind: Kind,
}

/// The contents of an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Tensors of all shapes of one executor.
    Tensors,
    /// Workspaces of libraries such as cuBLAS, for all executors of one stream.
    Workspaces,
}

/// The arena, locked for one call.
#[derive(Default)]
pub(super) struct State {
    memory: Option<MemoryBlock>,
    /// Number of times that the arena has grown.
    pub generation: u64,
    /// The end of the last launch's work, if every thread has its own stream.
    free: Option<Event>,
    /// The stream of the last launch, if threads share streams: inputs may be on several candle devices of one GPU.
    last: Option<Stream>,
}

impl Default for Arena {
    /// An arena for tensors.
    fn default() -> Self {
        Self { state: Default::default(), kind: Kind::Tensors }
    }
}

impl Arena {
    /// The arena for library workspaces on a stream.
    pub(super) fn of_workspaces(stream: &Stream) -> Arc<Arena> {
        static ALL: Mutex<Option<HashMap<StreamId, Weak<Arena>>>> = Mutex::new(None);
        let mut all = ALL.lock();
        let all = all.get_or_insert_default();
        all.retain(|_, arena| arena.strong_count() > 0);
        if let Some(arena) = all.get(&stream.id()).and_then(Weak::upgrade) {
            return arena;
        }
        let arena = Arc::new(Arena { state: Default::default(), kind: Kind::Workspaces });
        all.insert(stream.id(), Arc::downgrade(&arena));
        arena
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Bytes that it has.
    pub(crate) fn bytes(&self) -> u64 {
        self.lock().memory.as_ref().map_or(0, MemoryBlock::bytes)
    }

    /// Gives the memory back if it is larger than this; the next call allocates what it needs. Returns whether it was.
    pub(crate) fn limit_to(&self, bytes: u64, device: &Device) -> Result<bool> {
        let mut state = self.lock();
        let is_larger = state.memory.as_ref().is_some_and(|memory| memory.bytes() > bytes);
        if is_larger {
            // Calls may still use it.
            Stream::of(device)?.wait_for_all()?;
            state.memory = None;
        }
        Ok(is_larger)
    }

    /// Returns the memory, with at least `bytes` bytes.
    pub(super) fn memory(&self, state: &mut State, bytes: u64, device: &Device) -> Result<MemoryBlock> {
        if let Some(memory) = state.memory.as_ref().filter(|memory| memory.bytes() >= bytes) {
            return Ok(memory.clone());
        }
        let stream = Stream::of(device)?;
        if state.memory.take().is_some() {
            // Calls of threads with their own streams may still use the old memory.
            stream.wait_for_all()?;
        }
        state.generation += 1;
        // An allocation of zero bytes is an error.
        let bytes = bytes.max(1);
        let memory = match self.kind {
            Kind::Tensors => MemoryBlock::of(&Tensor::zeros(bytes as usize, DType::U8, device)?)?,
            // Grows by at least an eighth, since each growth rebuilds all graphs that use it.
            Kind::Workspaces => {
                let step = (bytes.next_power_of_two() / 8).max(1);
                MemoryBlock::outside_pool(&stream, bytes.next_multiple_of(step))?
            }
        };
        Ok(state.memory.insert(memory).clone())
    }
}

impl State {
    /// Makes the next launch on this stream wait for the last one on another.
    pub fn acquire(&self, stream: &Stream) -> Result<()> {
        self.free.as_ref().map_or(Ok(()), |free| stream.wait(free))?;
        match &self.last {
            Some(last) if last.id() != stream.id() => last.then(stream),
            _ => Ok(()),
        }
    }

    /// Notes that the last launch on this stream used the arena.
    pub fn release(&mut self, stream: &Stream) -> Result<()> {
        if stream.is_per_thread() {
            stream.note(&mut self.free)?;
        } else if self.last.as_ref().is_none_or(|last| last.id() != stream.id()) {
            self.last = Some(stream.clone());
        }
        Ok(())
    }
}
