//! The cache of tuned plans on disk.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use super::Findings;
use crate::schedule::{Problem, Schedule};
use crate::trace::{Trace, TraceFileError};
use crate::{disk_cache, Result};

/// Plans in a folder, one file each. A file is named by the hash of trace, device, driver, and version of this crate.
pub struct Cache {
    file: PathBuf,
    key: String,
}

/// The content of a file. Waits are not stored but derived again, so that no file can omit one.
#[derive(Serialize, Deserialize)]
struct Entry {
    key: String,
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
        let mut trace = trace.clone();
        let device = trace.device.name.clone();
        trace.ops.iter_mut().for_each(|op| (op.nanos, op.label) = (None, String::new()));
        let mut bytes = Vec::new();
        trace.write_to(&mut bytes).map_err(|source| TraceFileError { path: folder.into(), source })?;
        let key = format!("{:032x}, {device}, driver {driver}, {}", xxh3_128(&bytes), env!("CARGO_PKG_VERSION"));
        let file = folder.join(format!("{:032x}.plan.json", xxh3_128(key.as_bytes())));
        Ok(Self { file, key })
    }

    /// The stored plan, if there is a usable one. Logs a warning for a stale or damaged file.
    pub fn load(&self, problem: &Problem) -> Option<(Schedule, Findings)> {
        let text = disk_cache::read(&self.file)?;
        match self.parse(&text, problem) {
            Ok(found) => Some(found),
            Err(reason) => {
                let file = self.file.display();
                tracing::warn!(%file, reason, "a tuned plan on disk cannot be used: searching again");
                None
            }
        }
    }

    fn parse(&self, text: &[u8], problem: &Problem) -> std::result::Result<(Schedule, Findings), String> {
        let entry: Entry = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        if entry.key != self.key {
            return Err(format!("it is for `{}`", entry.key));
        }
        let schedule = Schedule::with_barriers(problem.graph, entry.stream, entry.order, entry.barriers);
        let schedule = schedule.map_err(|error| error.to_string())?;
        if !entry.urgent.is_sorted_by(|a, b| a < b) || entry.urgent.last().is_some_and(|&op| op >= problem.graph.len())
        {
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

    /// Stores a plan. If that fails, logs a warning.
    pub fn store(&self, schedule: &Schedule, findings: &Findings) {
        let Schedule { stream, order, barriers, urgent, .. } = schedule.clone();
        let (origin, us) = (findings.origin.clone(), findings.us);
        let entry = Entry { key: self.key.clone(), stream, order, barriers, urgent, origin, us };
        match serde_json::to_vec(&entry) {
            Ok(text) => disk_cache::store(&self.file, &text),
            Err(error) => tracing::warn!(%error, "a tuned plan cannot be stored"),
        }
    }
}
