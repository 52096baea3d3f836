//! The pipeline that turns a module's forward pass into something that is replayed, for one set of input shapes.
//!
//! [`stages`] is all of it, from top to bottom, with [`verified`] inside. Each stage is a function of a value to the next value:
//!
//! | stage | file | from | to | left out by |
//! |---|---|---|---|---|
//! | record | `record` | module, example | [`Recording`](crate::backend::Recording): trace, program, outputs of eager calls | |
//! | rewrite | `rewrite` | recording | [`Rewritten`](rewrite::Rewritten): the same, with some launches replaced by other operators | `Numerics::Exact` |
//! | fuse | `fuse` | rewritten | [`Fused`](fuse::Fused): trace and program with one launch a group | `Builder::fuse` |
//! | fold | `prepare` | trace | [`Optimized`](opara_plan::optimize::Optimized): ops that run once, ops that every call runs | `Builder::fold_constants` |
//! | analyse | `prepare` | ops | [`Analysed`](opara_plan::prepared::Analysed): dependencies, cost of each op | |
//! | place | `prepare` | graph | [`Prepared`](opara_plan::prepared::Prepared): offsets in the arenas | |
//! | schedule | `schedule` | problem | [`Scheduled`](schedule::Scheduled): streams, order, waits | `BuiltIn::Sequential` |
//! | instantiate | `instantiate` | schedule | [`Instance`](instantiate::Instance): the fastest schedule on the device, ready to replay | `Builder::benchmark_challengers` leaves challengers out |
//! | verify | `verify` | instance | [`Verified`](verify::Verified): the same, after replays that gave eager's bits | `Builder::verify` |
//!
//! A rewritten pass is timed against the pass without rewriting, which goes through the same stages from `fuse` on; the faster one stands
//! (`contest`). What came of both is kept on disk (`outcome`).
//!
//! `Builder::dump` writes the result of each stage to a file. `Builder::stop_after` ends building after a stage. `fallback`
//! handles the failure of a stage.

mod build;
mod contest;
mod dump;
mod fallback;
mod fuse;
mod instantiate;
mod outcome;
mod plan;
mod prepare;
mod record;
mod report;
mod rewrite;
mod schedule;
mod verify;

use std::sync::Arc;

use candle::Tensor;

use self::build::{Build, Halt};
use self::contest::{contest, Candidate};
use self::dump::Value;
use self::fuse::fuse;
use self::instantiate::instantiate;
pub(crate) use self::plan::Plan;
use self::prepare::{analyse, fold, place};
use self::record::record;
use self::report::report;
use self::rewrite::{rewrite, Rewritten};
use self::schedule::schedule;
use self::verify::verify;
use crate::backend::{Function, Fusing, Rewriting};
use crate::options::Options;
use crate::stage::Stage;
use crate::{choice_folder, cuda, Error, Result};

/// Builds a plan for inputs like these.
///
/// # Errors
/// The module's own errors, and the reason of a failed capture with `OnUncapturable::Error`.
pub(crate) fn build(
    function: &Function,
    inputs: &[Tensor],
    options: &Options,
    arena: &Arc<cuda::Arena>,
) -> Result<Plan> {
    // It may be built inside a pass of another module.
    let unwatched = || {
        cuda::unwatched(|| fallback::build(inputs, options, |how, build| stages(function, inputs, arena, how, build)))
    };
    choice_folder::within(options.kernels.as_deref().map(Arc::from), unwatched)
}

/// A plan that calls the module, since nothing else can be built.
pub(crate) fn eager(reason: &Error, inputs: &[Tensor], options: &Options) -> Plan {
    fallback::eager(reason, inputs, options)
}

/// The whole pipeline.
fn stages(
    function: &Function,
    inputs: &[Tensor],
    arena: &Arc<cuda::Arena>,
    (rewriting, fusing): (Option<Rewriting>, Option<Fusing>),
    build: &mut Build,
) -> Result<Plan, Halt> {
    let recorded = record(function, inputs, arena, build)?;
    build.after(Stage::Record, Value::Trace(&recorded.trace))?;

    let next = fusing.clone().filter(|_| build.options.stop_after != Some(Stage::Rewrite));
    let rewriting = rewriting.map(|rewriting| Rewriting { fusing: next, ..rewriting });
    let mut rewritten = rewrite(recorded, rewriting, build)?;
    build.after(Stage::Rewrite, Value::Trace(&rewritten.trace))?;

    let (exact, outcome) = (rewritten.exact.take(), rewritten.outcome.take());
    let built = verified(rewritten, fusing.clone(), build)?;
    let (Candidate { verified, fused }, times) =
        contest(built, exact, arena, build, |pass, build| verified(pass, fusing, build))?;
    verified.instance.plan.program.end_of_building()?;
    if let Some(outcome) = outcome {
        outcome.store(times);
    }
    let report = report(&verified, &fused, build)?;
    build.after(Stage::Verify, Value::Report(&report))?;

    Ok(Plan::replayed(verified.instance, fused.recorded, report))
}

/// The stages from a pass to replays of it that were verified.
fn verified(pass: Rewritten, fusing: Option<Fusing>, build: &mut Build) -> Result<Candidate, Halt> {
    let fused = fuse(pass, fusing, build)?;
    build.after(Stage::Fuse, Value::Trace(&fused.trace))?;

    let folded = fold(&fused, build);
    build.after(Stage::Fold, Value::Ops(&folded))?;

    let analysed = analyse(folded, build);
    build.after(Stage::Analyse, Value::Graph(&analysed))?;

    let prepared = place(analysed, build);
    build.after(Stage::Place, Value::Layouts(&prepared.layouts))?;

    let scheduled = schedule(prepared, &fused, build)?;
    build.after(Stage::Schedule, Value::Schedule(&scheduled.schedule))?;

    let instance = instantiate(scheduled, &fused, build)?;
    build.after(Stage::Instantiate, Value::Schedule(&instance.plan.schedule))?;

    let verified = verify(instance, &fused, build)?;
    Ok(Candidate { verified, fused })
}
