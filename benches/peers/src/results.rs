//! Files of results: raw samples and their origin.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::Path;

use anyhow::{ensure, Context, Result};
use serde::{Deserialize, Serialize};

use crate::stats;

/// Version of the file format.
const FORMAT: u32 = 1;

/// Any number of runs, each on one machine. If several runs measured the same contestant in one cell, only the last
/// measurement is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    format: u32,
    /// Oldest first.
    pub runs: Vec<Run>,
}

/// One run of the program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The machine and the software.
    pub machine: Machine,
    /// Calls of a contestant per turn.
    pub turn: usize,
    /// In the order of measurement.
    pub cells: Vec<Cell>,
}

/// The machine and the software of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Name of the GPU.
    pub gpu: String,
    /// Version of its driver.
    pub driver: String,
    /// Commit of this project.
    pub commit: String,
    /// Day, in UTC, as 2026-11-21.
    pub date: String,
    /// Versions of libraries and frameworks, by name.
    pub versions: BTreeMap<String, String>,
    /// Frameworks that were absent, and why.
    pub absent: BTreeMap<String, String>,
}

/// One model in one dtype at one batch size.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// Name as on the command line.
    pub model: String,
    /// `f32` or `f16`.
    pub dtype: String,
    /// Items in a batch.
    pub batch: usize,
}

/// The measurements of one [`Key`]: contestants that were measured in turns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The model, dtype and batch size.
    #[serde(flatten)]
    pub key: Key,
    /// In the order of their turns.
    pub contestants: Vec<Contestant>,
}

/// One contestant: an implementation that runs a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Contestant {
    /// A scheduler of this library, `eager`, `candle` (eager, on candle's own operators), or framework and mode, like
    /// `torch graph`.
    pub name: String,
    /// Its outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// The outcome of a contestant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It ran and gave the expected outputs.
    Measured(Box<Measured>),
    /// It could not run, or its outputs differ from this library's.
    Failed(String),
}

/// The measurements of a contestant.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// A remark, such as its number of streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Seconds until it could answer.
    pub setup_s: f64,
    /// Peak device memory beyond weights and input.
    pub peak_bytes: Option<u64>,
    /// Largest difference from the eager outputs, relative to their largest value.
    pub error: f64,
    /// Calls one after another.
    pub warm: Series,
    /// Calls with a flush of the L2 cache before each.
    pub flushed: Series,
    /// Utilisation of the GPU meanwhile, if its counters can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization: Option<Utilization>,
    /// Time of one call by kernel, if it was requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernels: Vec<Kernel>,
}

/// Samples of one call each, in microseconds, in the order in which they were taken.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// From an event before the call to an event after it, on the GPU.
    pub gpu_us: Vec<f64>,
    /// From the start of the call to the end of its work, on the host.
    pub wall_us: Vec<f64>,
    /// Until the call returned to the host, possibly before its work has finished.
    pub host_us: Vec<f64>,
}

/// Utilisation of a GPU, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Utilization {
    /// Average share of multiprocessors with work.
    pub sm: f64,
    /// Average share of resident warps that were occupied.
    pub occupancy: f64,
}

/// One kernel's share of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// Name as the profiler shows it.
    pub name: String,
    /// Launches per call.
    pub calls: f64,
    /// Microseconds of all launches of one call together.
    pub us: f64,
}

impl Results {
    /// Keeps the last measurement of each contestant and key.
    pub fn new(mut runs: Vec<Run>) -> Self {
        let mut counted: HashSet<(Key, String)> = HashSet::new();
        for cell in runs.iter_mut().rev().flat_map(|run| run.cells.iter_mut().rev()) {
            let key = &cell.key;
            cell.contestants.retain(|contestant| counted.insert((key.clone(), contestant.name.clone())));
        }
        Self { format: FORMAT, runs }
    }

    /// The results in these files, as if one program had made all runs, in the order of the files.
    ///
    /// # Errors
    /// Files that do not exist, contain no results, or have another version.
    pub fn load<P: AsRef<Path>>(files: &[P]) -> Result<Self> {
        let mut runs = Vec::new();
        for path in files {
            let shown = path.as_ref().display();
            let file = File::open(path).with_context(|| format!("cannot read {shown}"))?;
            let results: Self = serde_json::from_reader(BufReader::new(file))
                .with_context(|| format!("{shown} holds no results of this program"))?;
            ensure!(results.format == FORMAT, "{shown} is of format {}; this program reads {FORMAT}", results.format);
            runs.extend(results.runs);
        }
        Ok(Self::new(runs))
    }

    /// Writes the results to a file.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let write = || -> Result<()> {
            let mut file = BufWriter::new(File::create(path)?);
            serde_json::to_writer(&mut file, self)?;
            Ok(file.flush()?)
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    /// The names of all contestants.
    pub fn contestants(&self) -> BTreeSet<&str> {
        let cells = self.runs.iter().flat_map(|run| &run.cells);
        cells.flat_map(|cell| &cell.contestants).map(|contestant| &*contestant.name).collect()
    }

    /// The cells of all runs, one per key, sorted by key.
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells: BTreeMap<&Key, Vec<Contestant>> = BTreeMap::new();
        for cell in self.runs.iter().flat_map(|run| &run.cells) {
            cells.entry(&cell.key).or_default().extend_from_slice(&cell.contestants);
        }
        cells.into_iter().map(|(key, contestants)| Cell { key: key.clone(), contestants }).collect()
    }

    /// Calls per turn of the contestant called `name`, in the run that measured it for this key; 1 if there is none.
    pub fn turn(&self, key: &Key, name: &str) -> usize {
        let took_part = |cell: &Cell| cell.key == *key && cell.outcome(name).is_some();
        self.runs.iter().find(|run| run.cells.iter().any(took_part)).map_or(1, |run| run.turn)
    }
}

impl Run {
    /// Adds separately measured kernel times to the same contestants.
    pub fn add_kernels(&mut self, key: &Key, profiled: Vec<Contestant>) {
        let Some(cell) = self.cells.iter_mut().find(|cell| cell.key == *key) else { return };
        for Contestant { name, outcome } in profiled {
            let known = cell.contestants.iter_mut().find(|known| known.name == name).map(|known| &mut known.outcome);
            if let (Some(Outcome::Measured(known)), Outcome::Measured(measured)) = (known, outcome) {
                known.kernels = measured.kernels;
            }
        }
    }
}

impl Cell {
    /// The outcome of the contestant called `name`, if it took part.
    pub fn outcome(&self, name: &str) -> Option<&Outcome> {
        self.contestants.iter().find(|contestant| contestant.name == name).map(|contestant| &contestant.outcome)
    }

    /// The measurements of the contestant called `name`.
    pub fn measured(&self, name: &str) -> Option<&Measured> {
        self.contestants.iter().find(|contestant| contestant.name == name)?.measured()
    }
}

impl Series {
    /// Adds a turn's samples, rounded to tenths of a microsecond, which is about the clocks' resolution.
    pub fn append(&mut self, turn: Self) {
        let rounded = |us: f64| (us * 10.).round() / 10.;
        self.gpu_us.extend(turn.gpu_us.into_iter().map(rounded));
        self.wall_us.extend(turn.wall_us.into_iter().map(rounded));
        self.host_us.extend(turn.host_us.into_iter().map(rounded));
    }
}

impl Measured {
    /// Median of GPU time, in microseconds; none without samples.
    pub fn gpu_us(&self) -> Option<f64> {
        stats::median(&self.warm.gpu_us)
    }

    /// Items per second of wall time at this batch size, with consecutive calls.
    pub fn items_per_second(&self, batch: usize) -> Option<f64> {
        stats::ratio(batch as f64 * 1e6, stats::median(&self.warm.wall_us)?)
    }
}

impl Contestant {
    /// The measurements, unless it failed.
    pub fn measured(&self) -> Option<&Measured> {
        match &self.outcome {
            Outcome::Measured(measured) => Some(measured),
            Outcome::Failed(_) => None,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} batch {}", self.model, self.dtype, self.batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{cell, failed, measured};

    #[test]
    fn the_last_measurement_counts() {
        let run = |turn, cells: &[Cell]| Run { machine: Machine::default(), turn, cells: cells.into() };
        let [graph, tuned] = [measured("torch graph", 20.), measured("tuned", 9.)];
        let results = Results::new(vec![
            run(10, &[cell("bert", "f16", 1, [measured("tuned", 10.), graph.clone()])]),
            run(5, &[cell("bert", "f16", 1, [tuned.clone()]), cell("bert", "f16", 2, [measured("tuned", 11.)])]),
            run(2, &[cell("bert", "f16", 2, [failed("tuned", "no memory")])]),
        ]);
        let [one, two] = [[graph, tuned].to_vec(), vec![failed("tuned", "no memory")]];
        assert_eq!(results.cells(), [cell("bert", "f16", 1, one), cell("bert", "f16", 2, two)]);
        let key = |batch| Key { model: "bert".into(), dtype: "f16".into(), batch };
        let turns = [(1, "torch graph"), (1, "tuned"), (2, "tuned"), (2, "torch graph")];
        assert_eq!(turns.map(|(batch, name)| results.turn(&key(batch), name)), [10, 5, 2, 1]);
    }
}
