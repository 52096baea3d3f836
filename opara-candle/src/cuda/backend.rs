//! Recording on a GPU, behind the interface that the rest of the crate uses.

use std::sync::Arc;

use candle::Tensor;
use opara_plan::rewrite::Outcome;

use super::driver::WrittenMemory;
use super::fuse::Replaced;
use super::op_times;
use super::program::CudaProgram;
use super::replay::GraphReplay;
use crate::backend::{Example, FusedProgram, Fusing, OpTimes, Planned, Program, Replay, Rewriting, RewrittenProgram};
use crate::{capture_thread, Result};

impl Program for CudaProgram {
    fn rewrite(
        self: Box<Self>,
        examples: Vec<Example>,
        rewriting: Rewriting,
        kept: Option<Outcome>,
    ) -> Result<RewrittenProgram> {
        super::rewrite::rewrite(self, examples, rewriting, kept)
    }

    fn fuse(self: Box<Self>, fusing: Fusing) -> Result<FusedProgram> {
        capture_thread::run(move || {
            let mut program = self;
            let CudaProgram { capture, stream, device, .. } = &mut *program;
            let Replaced { launches: replaced, refused } = capture.fuse(stream, device, &fusing)?;
            let trace = capture.trace.clone().into();
            program.compiled.clear();
            Ok(FusedProgram { trace, replaced, notes: refused_note(&refused).into_iter().collect(), program })
        })
    }

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

/// The report note on fusion groups whose kernels could not be compiled; it gives the first reason.
fn refused_note(refused: &[String]) -> Option<String> {
    let first = refused.first()?;
    let groups = if refused.len() == 1 { "group" } else { "groups" };
    let note = format!("{} {groups} of launches not fused: {first}", refused.len());
    tracing::warn!("{note}");
    Some(note)
}
