//! A recording on a GPU, as the rest of the crate uses it.

use std::sync::Arc;

use candle::Tensor;

use super::driver::WrittenMemory;
use super::op_times;
use super::program::CudaProgram;
use super::replay::GraphReplay;
use crate::backend::{OpTimes, Planned, Program, Replay};
use crate::Result;

impl Program for CudaProgram {
    fn restore_state(&self) -> Result<()> {
        self.state.lock().as_ref().map_or(Ok(()), WrittenMemory::restore)
    }

    fn end_of_building(&self) -> Result<()> {
        let state = self.state.lock().take();
        state.map_or(Ok(()), WrittenMemory::end)
    }

    fn replay(self: Arc<Self>, plan: Arc<Planned>) -> Result<Box<dyn Replay>> {
        Ok(Box::new(GraphReplay::new(self, plan, None)?))
    }

    fn op_times(self: Arc<Self>, plan: Arc<Planned>, inputs: &[Tensor], rounds: usize) -> Result<Vec<OpTimes>> {
        op_times::op_times(&self, &plan, inputs, rounds)
    }

    fn stressed(self: Arc<Self>, plan: Arc<Planned>, seed: u64) -> Result<Box<dyn Replay>> {
        Ok(Box::new(GraphReplay::new(self, plan, Some(seed))?))
    }
}
