//! What an executor did: as text and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::tune::Findings;

/// How calls are answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Mode {
    /// One launch of a CUDA graph.
    Graph,
    /// Worker threads, one lane a stream.
    Lanes,
    /// The module itself.
    #[default]
    Eager,
}

/// What came of one rule of rewriting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Rewrite {
    /// The rule's name, as [`Builder::without_rule`](crate::Builder::without_rule) takes it.
    pub rule: &'static str,
    /// How often it fitted.
    pub times: usize,
    /// Launches that became part of others.
    pub saved: usize,
    /// The root of the mean squared error of what it is part of, as [`Numerics::Accurate`](crate::Numerics::Accurate) counts it.
    pub error: f64,
    /// That of candle's own.
    pub candle_error: f64,
}

impl Rewrite {
    /// The same rule elsewhere, too.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only launches on a GPU are rewritten"))]
    pub(crate) fn add(&mut self, other: &Rewrite) {
        self.times += other.times;
        self.saved += other.saved;
        if other.error > self.error {
            (self.error, self.candle_error) = (other.error, other.candle_error);
        }
    }
}

impl fmt::Display for Rewrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, times, saved, error, candle_error } = self;
        write!(
            f,
            "{rule} {times} times, {saved} launches fewer, error {error:.2} roundings (candle's {candle_error:.2})"
        )
    }
}

impl Mode {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Graph => "graph",
            Mode::Lanes => "lanes",
            Mode::Eager => "eager",
        }
    }
}

impl Mode {
    /// What it means, in a few words.
    fn told(self) -> &'static str {
        match self {
            Mode::Graph => "one launch of a CUDA graph",
            Mode::Lanes => "on worker threads",
            Mode::Eager => "the module itself runs",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What was built for one set of input shapes, and what became of the executor since. In eager mode the counts of what was
/// built are 0.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Name of the device.
    pub device: String,
    /// How calls are answered.
    pub mode: Mode,
    /// Why not as asked: what stood in the way of a capture, or which check failed.
    pub reason: Option<String>,
    /// What could be faster and is not, and why: what the GPU or the build for it lacks, launches that are not fused since their
    /// kernels cannot be compiled. Answers are the same.
    pub notes: Vec<String>,
    /// Name of the policy that made the schedule.
    pub policy: String,
    /// What the search for a tuned schedule found.
    pub tuning: Option<Findings>,
    /// Launches of one forward pass, as the module makes them.
    pub ops: usize,
    /// What came of each rule of rewriting; nothing with [`Numerics::Exact`](crate::Numerics::Exact).
    pub rewrites: Vec<Rewrite>,
    /// Launches that became part of others.
    pub fused: usize,
    /// Launches that depend on no input and ran once, while the executor was built.
    pub folded: usize,
    /// Dependencies found.
    pub edges: usize,
    /// Dependencies after transitive reduction.
    pub edges_reduced: usize,
    /// The most launches that lie equally deep in the graph.
    pub width: usize,
    /// Launches on the longest path.
    pub depth: usize,
    /// Streams of the schedule.
    pub streams: usize,
    /// Waits across streams.
    pub waits: usize,
    /// Buffers in the arena.
    pub buffers: usize,
    /// Bytes of those buffers, were each to have a place of its own.
    pub buffer_bytes: u64,
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// Size of the arena that library workspaces share among all executors of the device, as far as this one uses it.
    pub workspace_bytes: u64,
    /// Bytes that folded launches filled once and that stay.
    pub constant_bytes: u64,
    /// Whether replay and eager gave the same bits, on as many inputs as `verified_inputs` says. What is [rewritten](Self::rewrites) was
    /// held against double precision, and its replays against a run in recorded order.
    pub verified: bool,
    /// Different inputs that replay and eager were compared on.
    pub verified_inputs: usize,
    /// Which inputs, all of integers, had the same values in every one of these: whether outputs depend on their values in a
    /// way that a replay does not follow is not known. [`Builder::example`](crate::Builder::example) gives further values.
    pub same_in_all: Vec<usize>,
    /// Milliseconds of each stage of building. `forward` is the module's own calls, see
    /// [`OparaExecutor::new`](crate::OparaExecutor::new) for their number.
    pub build_ms: BTreeMap<&'static str, f64>,
    /// Microseconds of the fastest eager forward seen while building, host and device.
    pub eager_us: f64,
    /// Microseconds of the fastest replay seen while building, host and device.
    pub replay_us: f64,
    /// Of the executor: plans that were built again, since other shapes had taken their place
    /// ([`max_shapes`](crate::Builder::max_shapes)) or the module had freed memory that they read.
    pub rebuilds: u64,
    /// Of the executor: calls that the module answered, too, for comparison ([`recheck`](crate::Builder::recheck)).
    pub rechecks: u64,
    /// How many of those calls had two different answers. Their shapes run eagerly since.
    pub mismatches: u64,
}

impl Report {
    /// That of calls which run the module, for this reason, from now on.
    pub(crate) fn eagerly(&self, reason: String) -> Report {
        Report {
            device: self.device.clone(),
            policy: self.policy.clone(),
            reason: Some(reason),
            eager_us: self.eager_us,
            ..Report::default()
        }
    }
}

impl Report {
    /// What there is to say where the module itself answers: nothing was built.
    fn eager_rows(&self, mut row: impl FnMut(&str, String) -> fmt::Result) -> fmt::Result {
        if !self.build_ms.is_empty() {
            row("build, ms", self.stages())?;
        }
        if self.eager_us > 0. {
            row("eager, us", format!("{:.0}", self.eager_us))?;
        }
        self.counts(row)
    }

    /// What became of the executor since it was built.
    fn counts(&self, mut row: impl FnMut(&str, String) -> fmt::Result) -> fmt::Result {
        if self.rebuilds > 0 {
            row("rebuilds", self.rebuilds.to_string())?;
        }
        if self.rechecks > 0 {
            row("re-checks", format!("{}, of which {} differed", self.rechecks, self.mismatches))?;
        }
        Ok(())
    }

    fn stages(&self) -> String {
        let stages: Vec<String> = self.build_ms.iter().map(|(stage, ms)| format!("{stage} {ms:.2}")).collect();
        stages.join(", ")
    }

    fn verification(&self) -> String {
        let inputs = match self.verified_inputs {
            _ if !self.verified => return "not verified".into(),
            1 => "bit for bit, on one input".into(),
            n => format!("bit for bit, on {n} inputs"),
        };
        let inputs = if self.rewrites.is_empty() { inputs } else { format!("no less accurate, and replayed {inputs}") };
        match &self.same_in_all[..] {
            [] => inputs,
            same => format!("{inputs}, with the same integers in inputs {same:?}"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, value: String| writeln!(f, "{name:<18}{value}");
        row("device", self.device.clone())?;
        row("mode", format!("{} ({})", self.mode, self.mode.told()))?;
        if let Some(reason) = &self.reason {
            row("reason", reason.clone())?;
        }
        for note in &self.notes {
            row("note", note.clone())?;
        }
        if self.mode == Mode::Eager {
            return self.eager_rows(row);
        }
        row("policy", self.policy.clone())?;
        if let Some(tuning) = &self.tuning {
            row("tuned", tuning.to_string())?;
        }
        let parts = [(self.folded, "are constant and ran once"), (self.fused, "are fused into others")];
        let parts = parts.iter().filter(|(count, _)| *count > 0).map(|(count, told)| format!("; {count} {told}"));
        row("ops", format!("{} in a forward pass{}", self.ops, parts.collect::<String>()))?;
        for rewrite in &self.rewrites {
            row("rewritten", rewrite.to_string())?;
        }
        row("dependencies", format!("{}, of which {} are not implied by others", self.edges, self.edges_reduced))?;
        row("width, depth", format!("at most {} ops side by side, {} one after another", self.width, self.depth))?;
        row("streams", format!("{}, with {} waits between them", self.streams, self.waits))?;
        let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
        let (all, arena) = (mib(self.buffer_bytes), mib(self.arena_bytes));
        let memory = format!("{} of {all:.1} MiB share {arena:.1} MiB", self.buffers);
        let rest = (mib(self.constant_bytes), mib(self.workspace_bytes));
        let memory = format!("{memory}, constants {:.1} MiB, workspaces {:.1} MiB", rest.0, rest.1);
        row("buffers", memory)?;
        row("same as eager", self.verification())?;
        row("build, ms", self.stages())?;
        row("eager, us", format!("{:.0}", self.eager_us))?;
        let faster = if self.replay_us > 0. && self.eager_us > 0. {
            format!(", {:.2} times as fast", self.eager_us / self.replay_us)
        } else {
            String::new()
        };
        row("replay, us", format!("{:.0}{faster}", self.replay_us))?;
        self.counts(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eager_report_has_no_rows_of_zeros() {
        let built = Report { device: "cpu".into(), policy: "opara".into(), eager_us: 7., ..Report::default() };
        let eager = built.eagerly("it draws random numbers".into());
        let text = eager.to_string();
        let rows: Vec<&str> = text.lines().map(|line| line.split("  ").next().unwrap_or_default()).collect();
        assert_eq!(rows, ["device", "mode", "reason", "eager, us"], "{eager}");
        let replayed = Report { mode: Mode::Lanes, ..built }.to_string();
        for row in ["ops", "dependencies", "streams", "buffers", "same as eager", "replay, us"] {
            assert!(replayed.lines().any(|line| line.starts_with(row)), "{row}: {replayed}");
        }
    }
}
