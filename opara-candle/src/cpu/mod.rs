//! Without a GPU: operators are recorded as the module calls them and replayed on worker threads.

mod dispatch;
pub(crate) mod kernels;
pub(crate) mod lanes;
pub(crate) mod record;

use std::sync::Arc;

use candle::Tensor;

use crate::backend::{Example, Function, Program, Recording, Replay};
use crate::plan::Planned;
use crate::report::Mode;
use crate::timing::wall_us;
use crate::{verify, Result};

/// Threads that operators may use, in this process and by its environment.
pub(crate) fn cores() -> usize {
    candle::utils::get_num_threads().max(1)
}

/// Records `function` on the example and on other values of the same shapes, and makes sure that both agree.
pub(crate) fn record(function: &Function, inputs: &[Tensor]) -> Result<Recording> {
    let mut examples = Vec::new();
    let mut programs = Vec::new();
    for inputs in [inputs.to_vec(), verify::other_values(inputs)?] {
        let (result, eager_us) = wall_us(|| record::record(|inputs| function(inputs), &inputs));
        let on_example = examples.is_empty();
        let (program, outputs) = result.map_err(|e| if on_example { e } else { verify::fails_on_other_values(e) })?;
        programs.push(program);
        examples.push(Example::new(inputs, &outputs, eager_us));
    }
    programs[0].agrees_with(&programs[1])?;
    let program = Arc::new(programs.swap_remove(0));
    Ok(Recording { trace: program.trace(), replaced: 0, fused: 0, notes: Vec::new(), examples, program })
}

impl Program for record::Program {
    fn replay(self: Arc<Self>, plan: Arc<Planned>) -> Result<Box<dyn Replay>> {
        let lanes = Arc::new(lanes::Lanes::new(self, &plan.prepared.ops, &plan.schedule)?);
        let parallel = lanes.is_parallel();
        Ok(Box::new(CpuReplay { lanes, parallel }))
    }
}

/// Replay on worker threads, or on the caller's alone where that measured faster.
struct CpuReplay {
    lanes: Arc<lanes::Lanes>,
    parallel: bool,
}

impl Replay for CpuReplay {
    fn mode(&self) -> Mode {
        Mode::Lanes
    }

    fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        // As they were recorded: a module that makes them contiguous itself left no operator that would.
        let inputs: Vec<Tensor> = inputs.iter().map(Tensor::contiguous).collect::<candle::Result<_>>()?;
        self.lanes.run(&inputs, self.parallel)
    }

    /// Branches on cores of their own, or one operator after the other with all cores in each.
    fn variants(&self) -> usize {
        if self.lanes.is_parallel() {
            2
        } else {
            1
        }
    }

    fn choose(&mut self, variant: usize) {
        self.parallel = variant == 0 && self.lanes.is_parallel();
    }
}
