//! Start and end of each op of a schedule, measured on the device by CUPTI.

use std::sync::Arc;

use candle::Tensor;

use super::driver::{Activity, Flush, Stream, Watch};
use super::program::CudaProgram;
use super::replay::GraphReplay;
use crate::backend::{OpTimes, Planned, Replay};
use crate::trace::Work;
use crate::{Error, Result};

/// Unmeasured replays before the measured ones.
const WARMUP: usize = 3;

/// Times that the records of a replay are asked for: those of other threads may keep them from being complete.
const TRIES: usize = 20;

/// Replays a schedule `rounds` times as a separate graph, and returns start and end of each op in each replay.
pub(super) fn op_times(
    program: &Arc<CudaProgram>,
    plan: &Arc<Planned>,
    inputs: &[Tensor],
    rounds: usize,
) -> Result<Vec<OpTimes>> {
    let watch = Watch::start()?;
    // CUPTI numbers nodes in the order of their creation, so it must watch while the graph is built.
    let replay = GraphReplay::new(program.clone(), plan.clone(), None)?;
    let launches = plan.prepared.ops.trace.ops.len();
    let run = || {
        let mut graphs = replay.ids()?;
        loop {
            watch.follow(graphs);
            replay.call_zero_copy(inputs, &mut |_| ())?;
            let activities = taken(&watch, &program.stream, launches)?;
            // An arena that another executor has made larger has the graph built anew.
            let now = replay.ids()?;
            if now == graphs {
                return Ok::<_, Error>(activities);
            }
            graphs = now;
        }
    };
    for _ in 0..WARMUP {
        run()?;
    }
    (0..rounds).map(|_| assign(run()?, plan)).collect()
}

/// The records of a replay's launches.
fn taken(watch: &Watch, stream: &Stream, launches: usize) -> Result<Vec<Activity>> {
    let mut activities = Vec::new();
    for left in (0..TRIES).rev() {
        stream.synchronize_device()?;
        activities.extend(watch.take(if left > 0 { Flush::Complete } else { Flush::Forced })?);
        if activities.len() >= launches {
            break;
        }
    }
    Ok(activities)
}

/// Assigns activities to ops, with times in nanoseconds from the first start.
fn assign(mut activities: Vec<Activity>, plan: &Planned) -> Result<OpTimes> {
    let ops = &plan.prepared.ops.trace.ops;
    let refused = |message: String| Err(Error::Driver { call: "cuptiActivityGetNextRecord", message });
    if activities.len() != ops.len() {
        return refused(format!("{} records of {} launches", activities.len(), ops.len()));
    }
    activities.sort_by_key(|activity| activity.node);
    let first = activities.iter().map(|activity| activity.start).min().unwrap_or(0);
    let mut op_times = vec![(0, 0); ops.len()];
    for (&op, activity) in plan.schedule.order.iter().zip(activities) {
        let is_kernel = matches!(ops[op].work, Work::Kernel(_));
        // The names of kernels compiled at run time end in a hash.
        let is_it = activity.kernel.as_ref().is_some_and(|kernel| kernel.starts_with(&*ops[op].name));
        if is_kernel && !is_it {
            return refused(format!("a record of `{:?}` where `{}` was launched", activity.kernel, ops[op].name));
        }
        op_times[op] = (activity.start - first, activity.end - first);
    }
    Ok(op_times)
}
