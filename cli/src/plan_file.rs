//! Plan files: a schedule, and the trace and scheduler that it belongs to.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{ensure, Context, Result};
use opara_plan::prepared::Prepared;
use opara_plan::schedule::Schedule;
use opara_plan::trace::{OpId, Trace};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A schedule as JSON. In a plan from elsewhere all other fields may be absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanFile {
    /// The trace's [`fingerprint`].
    pub trace: Option<String>,
    /// The scheduler that made the schedule.
    pub scheduler: Option<String>,
    /// For each op of the schedule its number in the trace, which also contains ops that run once.
    pub ops: Option<Vec<OpId>>,
    /// Streams, order and waits.
    pub schedule: Schedule,
}

impl PlanFile {
    /// A schedule of a trace by a scheduler.
    ///
    /// # Errors
    /// An error in writing the trace as JSON.
    pub fn new(trace: &Trace, prepared: &Prepared, scheduler: String, schedule: Schedule) -> Result<Self> {
        let ops = Some(prepared.ops.per_call.clone());
        Ok(Self { trace: Some(fingerprint(trace)?), scheduler: Some(scheduler), ops, schedule })
    }

    /// Reads a plan. [`prove`](Self::prove) checks whether it is right.
    ///
    /// # Errors
    /// A file that cannot be read or is no plan.
    pub fn load(path: &Path) -> Result<Self> {
        let told = || format!("plan `{}`", path.display());
        let file = File::open(path).with_context(told)?;
        serde_json::from_reader(BufReader::new(file)).with_context(told)
    }

    /// Proves that the plan belongs to this trace, and that every op and every buffer is safe under it.
    ///
    /// # Errors
    /// The first error found.
    pub fn prove(&self, trace: &Trace, prepared: &Prepared) -> Result<()> {
        if let Some(found) = &self.trace {
            let expected = fingerprint(trace)?;
            ensure!(*found == expected, "the plan is one of trace `{found}`, and this is trace `{expected}`");
        }
        let ops = &prepared.ops.per_call;
        ensure!(self.ops.as_ref().is_none_or(|found| found == ops), "the plan has other ops than every call runs");
        Ok(prepared.check(&self.schedule)?)
    }
}

/// Identifies the content of a trace: the SHA-256 of its JSON.
///
/// # Errors
/// An error in writing the JSON.
pub fn fingerprint(trace: &Trace) -> Result<String> {
    let mut hash = Sha256::new();
    serde_json::to_writer(&mut hash, trace)?;
    Ok(format!("{:x}", hash.finalize()))
}
