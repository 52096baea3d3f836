//! One simulated pass.

use std::path::PathBuf;

use anyhow::{Context, Result};
use opara_plan::prepared::Prepared;
use opara_plan::schedule::Schedule;
use opara_plan::simulate::{simulate, DeviceModel};
use opara_plan::timeline::Timeline;
use opara_plan::Scheduler;

use crate::device::ChosenDevice;
use crate::input::{self, Input};
use crate::plan_file::PlanFile;
use crate::scheduler::ChosenScheduler;

/// The pass to simulate; flatten it into a subcommand's arguments.
#[derive(Debug, Clone, clap::Args)]
pub struct Pass {
    #[command(flatten)]
    input: Input,

    #[command(flatten)]
    scheduler: ChosenScheduler,

    /// Use the schedule of this plan, after proving it.
    #[arg(long, conflicts_with = "scheduler")]
    plan: Option<PathBuf>,

    #[command(flatten)]
    device: ChosenDevice,
}

/// A simulated pass.
pub struct Simulated {
    /// The trace.
    pub prepared: Prepared,
    /// The scheduler or the plan's author.
    pub scheduler: String,
    /// The schedule.
    pub schedule: Schedule,
    /// The simulated device.
    pub device: DeviceModel,
    /// The time of each op.
    pub timeline: Timeline,
}

impl Pass {
    /// Simulates the pass.
    ///
    /// # Errors
    /// Files that cannot be read, a wrong plan, or an error of the scheduler.
    pub fn run(&self) -> Result<Simulated> {
        let trace = self.input.load()?;
        let device = self.device.device(&trace.device)?;
        let prepared = input::prepare(&trace);
        let (scheduler, schedule) = match &self.plan {
            Some(path) => {
                let plan = PlanFile::load(path)?;
                plan.prove(&trace, &prepared).with_context(|| format!("plan `{}`", path.display()))?;
                (plan.scheduler.unwrap_or_else(|| "plan".into()), plan.schedule)
            }
            None => (self.scheduler.scheduler.name(), self.scheduler.scheduler.schedule(&prepared.problem())?),
        };
        let timeline = simulate(&prepared.problem(), &schedule, &device);
        Ok(Simulated { prepared, scheduler, schedule, device, timeline })
    }
}
