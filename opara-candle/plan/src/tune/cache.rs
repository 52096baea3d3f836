//! The cache of tuned plans on disk.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Findings;
use crate::disk_cache::{Kind, Record};
use crate::schedule::{Problem, Schedule};
use crate::trace::{Trace, TraceFileError};
use crate::Result;

/// The place of a plan in a folder. It depends on trace, device, driver, and version of this crate.
pub struct Cache(Record);

/// A stored plan. Waits are not stored but derived again, so that no file can omit one.
#[derive(Serialize, Deserialize)]
struct Entry {
    stream: Vec<usize>,
    order: Vec<usize>,
    barriers: Vec<usize>,
    urgent: Vec<usize>,
    origin: String,
    us: f64,
}

impl Cache {
    /// The place of the plan for this trace, as prepared. `driver` is the version of the device's driver.
    ///
    /// # Errors
    /// A trace beyond the limits of trace files.
    pub fn new(folder: &Path, trace: &Trace, driver: &str) -> Result<Self> {
        let hash = trace.fingerprint().map_err(|source| TraceFileError { path: folder.into(), source })?;
        let key = format!("{hash:032x}, {}, driver {driver}", trace.device.name);
        Ok(Self(Record::new(folder, Kind::Plan, &key)))
    }

    /// The stored plan, if there is a usable one. Logs a warning for a stale or damaged file.
    pub fn load(&self, problem: &Problem) -> Option<(Schedule, Findings)> {
        self.0.load(|entry| usable(entry, problem))
    }

    /// Stores a plan. If that fails, logs a warning.
    pub fn store(&self, schedule: &Schedule, findings: &Findings) {
        let Schedule { stream, order, barriers, urgent, .. } = schedule.clone();
        self.0.store(&Entry { stream, order, barriers, urgent, origin: findings.origin.clone(), us: findings.us });
    }
}

/// The schedule of a stored plan, if it is one of this problem.
fn usable(entry: Entry, problem: &Problem) -> std::result::Result<(Schedule, Findings), String> {
    let schedule = Schedule::with_barriers(problem.graph, entry.stream, entry.order, entry.barriers);
    let schedule = schedule.map_err(|error| error.to_string())?;
    if !entry.urgent.is_sorted_by(|a, b| a < b) || entry.urgent.last().is_some_and(|&op| op >= problem.graph.len()) {
        return Err("its list of urgent ops is invalid".into());
    }
    let findings = Findings {
        origin: entry.origin,
        us: entry.us,
        ranking: Vec::new(),
        tried: 0,
        accepted: 0,
        drift: 0.,
        cached: true,
    };
    Ok((Schedule { urgent: entry.urgent, ..schedule }, findings))
}
