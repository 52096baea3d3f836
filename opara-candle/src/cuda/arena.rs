//! One arena for all shapes of an executor.

use candle::{DType, Device, Tensor};
use parking_lot::{Mutex, MutexGuard};

use super::driver::{Event, Stream};
use crate::Result;

/// Memory that the graphs of an executor share: one call at a time uses it. It grows to what the largest plan needs; then
/// graphs that were built for the old one are built again.
#[derive(Default)]
pub(crate) struct Arena(Mutex<State>);

/// The arena, for one call.
#[derive(Default)]
pub(super) struct State {
    memory: Option<Tensor>,
    /// How often it has grown.
    pub generation: u64,
    /// End of the last launch's work, where every thread has a stream of its own.
    pub free: Option<Event>,
}

impl Arena {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl State {
    /// The arena, of so many bytes or more.
    pub fn of(&mut self, bytes: u64, device: &Device) -> Result<Tensor> {
        match &self.memory {
            Some(memory) if memory.elem_count() as u64 >= bytes => Ok(memory.clone()),
            old => {
                if old.is_some() {
                    // Calls of threads with streams of their own may still be using the old one.
                    Stream::of(device)?.synchronize_device()?;
                }
                self.memory = None;
                self.generation += 1;
                let memory = Tensor::zeros(bytes.max(1) as usize, DType::U8, device)?;
                Ok(self.memory.insert(memory).clone())
            }
        }
    }
}
