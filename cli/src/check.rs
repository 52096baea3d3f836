//! `opara check`: proves a plan.

use std::fmt;
use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;

use crate::answer;
use crate::input::{self, Input};
use crate::plan_file::PlanFile;

/// Proves that a plan gives the results of the trace.
///
/// No access overtakes an access that it depends on, no two buffers in use share bytes, and no wait is redundant. The
/// exit code is 1 if that does not hold.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    input: Input,

    /// A plan: JSON from `opara plan`, or one with `schedule` alone (`stream`, `order`, `barriers`, `predecessors`).
    plan: PathBuf,
}

/// The result of the check.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    /// Is the plan right?
    pub ok: bool,
    reason: Option<String>,
    scheduler: Option<String>,
    ops: usize,
}

impl Args {
    /// Checks the plan.
    ///
    /// # Errors
    /// Files that cannot be read or hold something else. A wrong plan is not an error.
    pub fn run(&self) -> Result<Verdict> {
        let trace = self.input.load()?;
        let plan = PlanFile::load(&self.plan)?;
        let proof = plan.prove(&trace, &input::prepare(&trace));
        let ops = plan.schedule.order.len();
        Ok(Verdict { ok: proof.is_ok(), reason: proof.err().map(|e| answer::told(&e)), scheduler: plan.scheduler, ops })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Some(reason) => writeln!(f, "wrong: {reason}"),
            None => writeln!(f, "right: {} ops, and every access and buffer is safe", self.ops),
        }
    }
}
