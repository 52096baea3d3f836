//! The CPU backend: records operators as the module calls them, and replays them on worker threads.

pub(crate) mod cores;
mod dispatch;
pub(crate) mod kernels;
mod program;
pub(crate) mod record;
pub(crate) mod scheduled_program;
mod state;
mod team;
mod unread;

use std::sync::Arc;

use candle::Tensor;
use opara_plan::rewrite::Outcome;
use opara_plan::stopwatch::wall_us;

use self::program::CpuProgram;
use self::scheduled_program::ScheduledProgram;
use self::state::Pass;
use crate::backend::{
    Example, Function, FusedProgram, Fusing, Planned, Program, Recording, Replay, Rewriting, RewrittenProgram,
};
use crate::examples::{Examples, Other};
use crate::report::Mode;
use crate::timing::StageTimes;
use crate::{Error, Result};

/// Records `function` on the example, on other inputs, and on the example again, and checks that it calls the same operators
/// each time, at last without values.
pub(crate) fn record(function: &Function, inputs: &[Tensor], examples: &Examples) -> Result<Recording> {
    let is_pure = examples.is_pure;
    let contiguous = inputs.iter().map(Tensor::contiguous).collect::<candle::Result<Vec<_>>>()?;
    let pass = |inputs: &[Tensor]| -> Result<Pass> {
        let (recorded, us) = wall_us(|| record::record(|inputs| function(inputs), inputs, &examples.state));
        let (program, outputs) = recorded?;
        Ok(Pass { program, outputs, us })
    };
    let first = pass(inputs)?;
    let traced = first.program.check_outputs();
    // If the module will run eagerly anyway, only the check for state remains.
    let others = if traced.is_ok() { examples.others(inputs)? } else { Vec::new() };
    let (mut passes, mut recorded, mut refused) = (vec![first], Vec::new(), None);
    if let (Ok(()), false) = (&traced, examples.state.is_empty()) {
        // From the state that the first call left: so host code that reads a position is seen. If the state is at its end,
        // there is no such call.
        let next = examples.state.next(inputs, &passes[0].outputs);
        if let Ok(pass) = pass(&next) {
            passes.push(pass);
            recorded.push(next);
        }
    }
    for Other { inputs, given } in others {
        match pass(&inputs) {
            Ok(pass) => {
                passes.push(pass);
                recorded.push(inputs);
            }
            Err(error @ (Error::Candle(_) | Error::Panicked { .. })) if !given => {
                refused = Some(Error::FailsOnOtherValues { source: error.into() })
            }
            Err(error) => return Err(error),
        }
    }
    // The last pass, so that state left by the other passes shows.
    passes.push(pass(inputs)?);
    state::check(&passes, &contiguous)?;
    traced?;
    refused.map_or(Ok(()), Err)?;
    // The first call may have built tables that later calls reuse.
    let compared = if recorded.is_empty() { 0..1 } else { 1..passes.len() - 1 };
    let again = passes.len() - 1;
    let agree = passes[compared].iter().try_for_each(|other| passes[again].program.agrees_with(&other.program));
    if let Err(difference) = agree {
        // The difference may come from the values, from state, or from a table that the first call built: another call
        // on the example decides.
        passes.push(pass(inputs)?);
        let agrees = state::check_calls(&passes, again, &contiguous)?;
        if !(agrees && recorded.is_empty()) {
            return Err(difference);
        }
    }
    let (first, others) = (&passes[0], &passes[1..again]);
    let mut examples = vec![Example::new(inputs.to_vec(), &first.outputs, first.us.min(passes[again].us))];
    examples
        .extend(recorded.into_iter().zip(others).map(|(inputs, pass)| Example::new(inputs, &pass.outputs, pass.us)));
    let mut program = passes.swap_remove(again).program;
    program.spoil_integers()?;
    let program = Arc::new(program);
    if !is_pure {
        record::check_unread(|inputs| function(inputs), inputs, &program)?;
    }
    let program = Arc::into_inner(program).ok_or_else(|| Error::Internal { message: "a pass goes on".into() })?;
    let program = Box::new(program);
    let trace = program.trace().into();
    Ok(Recording { trace, notes: Vec::new(), examples, program, unfinished_us: 0. })
}

impl Program for CpuProgram {
    fn rewrite(self: Box<Self>, examples: Vec<Example>, _: Rewriting, _: Option<Outcome>) -> Result<RewrittenProgram> {
        let trace = self.trace().into();
        let times = StageTimes::default();
        Ok(RewrittenProgram::unchanged(trace, examples, times, self))
    }

    fn fuse(self: Box<Self>, _: Fusing) -> Result<FusedProgram> {
        Ok(FusedProgram { trace: self.trace().into(), replaced: 0, notes: Vec::new(), program: self })
    }

    fn replay(self: Arc<Self>, plan: Arc<Planned>) -> Result<Box<dyn Replay>> {
        let program = Arc::new(ScheduledProgram::new(self, &plan.prepared.ops, &plan.schedule)?);
        let parallel = program.is_parallel();
        Ok(Box::new(CpuReplay { program, parallel }))
    }
}

/// Replay on worker threads, or on the caller's thread alone if that measured faster.
struct CpuReplay {
    program: Arc<ScheduledProgram>,
    parallel: bool,
}

impl Replay for CpuReplay {
    fn mode(&self) -> Mode {
        Mode::Threads
    }

    fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        // The recording was made with contiguous inputs, so it contains no operator that makes them contiguous.
        let inputs: Vec<Tensor> =
            inputs.iter().map(|input| input.detach().contiguous()).collect::<candle::Result<_>>()?;
        self.program.run(&inputs, self.parallel)
    }

    /// Parallel branches on worker threads; or one operator after the other, each with all cores.
    fn variants(&self) -> usize {
        if self.program.is_parallel() {
            2
        } else {
            1
        }
    }

    fn choose(&mut self, variant: usize) {
        self.parallel = variant == 0 && self.program.is_parallel();
    }
}
