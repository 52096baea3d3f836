//! The report of an executor, as text and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use opara_plan::rewrite::rules::Applied;
use opara_plan::rewrite::Compared;
use opara_plan::tune::Findings;

/// How calls are answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Mode {
    /// One launch of a CUDA graph.
    Graph,
    /// Worker threads of the CPU, which run the ops of different streams at the same time.
    Threads,
    /// The module itself.
    #[default]
    Eager,
}

/// The result of one rule of rewriting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Rewrite {
    /// The rule's name, as [`Builder::without_rule`](crate::Builder::without_rule) takes it.
    pub rule: &'static str,
    /// Number of matches.
    pub times: usize,
    /// Number of launches saved.
    pub saved: usize,
    /// Root mean square error of the worst of the values by which it was judged, in the unit of
    /// [`Numerics::Accurate`](crate::Numerics::Accurate).
    pub error: f64,
    /// The same error of candle's kernels.
    pub candle_error: f64,
}

impl Rewrite {
    /// Of a rule that was applied where results had these errors.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only launches on a GPU are rewritten"))]
    pub(crate) fn of(
        (rule, Applied { times, saved }): (&'static str, Applied),
        Compared { candle, other, .. }: Compared,
    ) -> Self {
        Self { rule, times, saved, error: other.rms, candle_error: candle.rms }
    }

    /// One line a rule.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only launches on a GPU are rewritten"))]
    pub(crate) fn merged(rewrites: impl IntoIterator<Item = Self>) -> Vec<Self> {
        let mut merged: Vec<Self> = Vec::new();
        for rewrite in rewrites {
            match merged.iter_mut().find(|known| known.rule == rewrite.rule) {
                Some(known) => known.add(&rewrite),
                None => merged.push(rewrite),
            }
        }
        merged
    }

    /// Adds the numbers of the same rule elsewhere.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only launches on a GPU are rewritten"))]
    fn add(&mut self, other: &Rewrite) {
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

/// A rule of rewriting that fits what was recorded, before anything is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Match {
    /// The rule's name.
    pub rule: &'static str,
    /// Number of matches.
    pub times: usize,
    /// Number of launches that it would save.
    pub saved: usize,
}

impl Mode {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Graph => "graph",
            Mode::Threads => "threads",
            Mode::Eager => "eager",
        }
    }
}

impl Mode {
    /// An explanation in a few words.
    fn explained(self) -> &'static str {
        match self {
            Mode::Graph => "one launch of a CUDA graph",
            Mode::Threads => "on worker threads of the CPU",
            Mode::Eager => "the module itself runs",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The numbers of a plan; 0 in eager mode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Counts {
    /// Launches of one forward pass of the module.
    pub ops: usize,
    /// Launches that were fused into others.
    pub fused: usize,
    /// Launches that depend on no input and ran once, while the executor was built.
    pub folded: usize,
    /// Dependencies found.
    pub edges: usize,
    /// Dependencies after transitive reduction.
    pub edges_reduced: usize,
    /// Width of the graph: the maximum number of launches of one depth.
    pub width: usize,
    /// Depth of the graph: the number of launches on the longest path.
    pub depth: usize,
    /// Streams of the schedule.
    pub streams: usize,
    /// Waits across streams.
    pub waits: usize,
    /// Buffers in the arena.
    pub buffers: usize,
    /// Total size of these buffers in bytes, without sharing.
    pub buffer_bytes: u64,
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// Bytes that this executor uses of the arena for library workspaces, which all executors of the device share.
    pub workspace_bytes: u64,
    /// Bytes of constants that folded launches computed.
    pub constant_bytes: u64,
}

/// Describes the plan for one set of input shapes, and counts the executor's events since it was built. `Display` writes it as a table,
/// serde as JSON.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    pub(crate) device: String,
    pub(crate) mode: Mode,
    pub(crate) reason: Option<String>,
    pub(crate) notes: Vec<String>,
    pub(crate) scheduler: String,
    pub(crate) search: Option<Findings>,
    pub(crate) rewrites: Vec<Rewrite>,
    pub(crate) matches: Vec<Match>,
    pub(crate) rewriting_cached: bool,
    #[serde(flatten)]
    pub(crate) counts: Counts,
    pub(crate) verified: bool,
    pub(crate) verified_inputs: usize,
    pub(crate) unvaried_inputs: Vec<usize>,
    pub(crate) build_ms: BTreeMap<&'static str, f64>,
    pub(crate) eager_us: f64,
    pub(crate) replay_us: f64,
    pub(crate) rebuilds: u64,
    pub(crate) rechecks: u64,
    pub(crate) mismatches: u64,
}

impl Report {
    /// Name of the device.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// How calls are answered.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Why calls run eagerly, or otherwise than requested: the cause of a refused capture, or the check that failed.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Missed optimizations and their causes: features that the GPU or the build lacks, launches whose fused kernels do not compile.
    /// Results are not affected.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Name of the scheduler that made the schedule.
    pub fn scheduler(&self) -> &str {
        &self.scheduler
    }

    /// The result of the [search](crate::Search) for a schedule.
    pub fn search(&self) -> Option<&Findings> {
        self.search.as_ref()
    }

    /// The result of each rule of rewriting; empty with [`Numerics::Exact`](crate::Numerics::Exact).
    pub fn rewrites(&self) -> &[Rewrite] {
        &self.rewrites
    }

    /// With [`Numerics::Exact`](crate::Numerics::Exact) on a GPU, the rules that fit what was recorded.
    /// [`Builder::accurate`](crate::Builder::accurate) would replace these launches where that is no less accurate and faster, which
    /// nothing has computed.
    pub fn matches(&self) -> &[Match] {
        &self.matches
    }

    /// Was it found in the cache on disk which rules stand?
    pub fn is_rewriting_cached(&self) -> bool {
        self.rewriting_cached
    }

    /// The plan's numbers.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Did the replay give the same bits as eager execution, on [`verified_inputs`](Self::verified_inputs) inputs?
    /// [Rewritten](Self::rewrites) launches were compared with double precision, and replays with a run of them in recorded order.
    pub fn is_verified(&self) -> bool {
        self.verified
    }

    /// Number of inputs on which the replay was compared with eager execution.
    pub fn verified_inputs(&self) -> usize {
        self.verified_inputs
    }

    /// Indices of integer inputs that had the same values in all of these comparisons. With
    /// [`Builder::assume_pure`](crate::Builder::assume_pure) it is unknown whether host code of the module depends on their values:
    /// [`Builder::example`](crate::Builder::example) gives further values.
    pub fn unvaried_inputs(&self) -> &[usize] {
        &self.unvaried_inputs
    }

    /// Milliseconds of each part of building. `forward` are the module's own calls; [`OparaExecutor::new`](crate::OparaExecutor::new)
    /// has their number.
    pub fn build_ms(&self) -> &BTreeMap<&'static str, f64> {
        &self.build_ms
    }

    /// Microseconds of the fastest eager call while building, host and device.
    pub fn eager_us(&self) -> f64 {
        self.eager_us
    }

    /// Microseconds of the fastest replay while building, host and device; 0 in eager mode.
    pub fn replay_us(&self) -> f64 {
        self.replay_us
    }

    /// The same report with a program's own measurements in the place of times from building, in microseconds.
    pub fn with_times(self, eager_us: Option<f64>, replay_us: Option<f64>) -> Self {
        let (eager_us, replay_us) = (eager_us.unwrap_or(self.eager_us), replay_us.unwrap_or(self.replay_us));
        Self { eager_us, replay_us, ..self }
    }

    /// Rebuilds of plans of the executor, because they were evicted ([`max_shapes`](crate::Builder::max_shapes)) or the module had freed
    /// memory that they read.
    pub fn rebuilds(&self) -> u64 {
        self.rebuilds
    }

    /// Calls of the executor that also ran the module for comparison ([`recheck`](crate::Builder::recheck)).
    pub fn rechecks(&self) -> u64 {
        self.rechecks
    }

    /// Re-checks whose results differed. The shapes of such calls run eagerly since.
    pub fn mismatches(&self) -> u64 {
        self.mismatches
    }
}

impl Report {
    /// The report of a plan that runs the module from now on, for this reason.
    pub(crate) fn eagerly(&self, reason: String) -> Report {
        Report {
            device: self.device.clone(),
            scheduler: self.scheduler.clone(),
            reason: Some(reason),
            eager_us: self.eager_us,
            ..Report::default()
        }
    }
}

impl Report {
    /// The rows of an eager report, which has no plan.
    fn eager_rows(&self, mut row: impl FnMut(&str, String) -> fmt::Result) -> fmt::Result {
        if !self.build_ms.is_empty() {
            row("build, ms", self.stage_times())?;
        }
        if self.eager_us > 0. {
            row("eager, us", format!("{:.0}", self.eager_us))?;
        }
        self.events(row)
    }

    /// Events of the executor since it was built.
    fn events(&self, mut row: impl FnMut(&str, String) -> fmt::Result) -> fmt::Result {
        if self.rebuilds > 0 {
            row("rebuilds", self.rebuilds.to_string())?;
        }
        if self.rechecks > 0 {
            row("re-checks", format!("{}, of which {} differed", self.rechecks, self.mismatches))?;
        }
        Ok(())
    }

    fn stage_times(&self) -> String {
        let stages: Vec<String> = self.build_ms.iter().map(|(stage, ms)| format!("{stage} {ms:.2}")).collect();
        stages.join(", ")
    }

    /// What another choice of numerics would replace.
    fn matched(&self) -> Option<String> {
        let saved: usize = self.matches.iter().map(|found| found.saved).sum();
        let rules: Vec<String> = self.matches.iter().map(|found| format!("{} {}", found.rule, found.times)).collect();
        let would = format!("would save up to {saved} of these, where no less accurate and faster");
        (!rules.is_empty()).then(|| format!("{would}: {}", rules.join(", ")))
    }

    fn verification(&self) -> String {
        let inputs = match self.verified_inputs {
            _ if !self.verified => return "not verified".into(),
            1 => "bit for bit, on one input".into(),
            n => format!("bit for bit, on {n} inputs"),
        };
        let inputs = if self.rewrites.is_empty() { inputs } else { format!("no less accurate, and replayed {inputs}") };
        match &self.unvaried_inputs[..] {
            [] => inputs,
            same => format!("{inputs}, with the same integers in inputs {same:?}"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, value: String| writeln!(f, "{name:<18}{value}");
        row("device", self.device.clone())?;
        row("mode", format!("{} ({})", self.mode, self.mode.explained()))?;
        if let Some(reason) = &self.reason {
            row("reason", reason.clone())?;
        }
        for note in &self.notes {
            row("note", note.clone())?;
        }
        if self.mode == Mode::Eager {
            return self.eager_rows(row);
        }
        row("scheduler", self.scheduler.clone())?;
        if let Some(search) = &self.search {
            row("tuned", search.to_string())?;
        }
        let parts = [(self.counts.folded, "are constant and ran once"), (self.counts.fused, "are fused into others")];
        let parts = parts.iter().filter(|(count, _)| *count > 0).map(|(count, told)| format!("; {count} {told}"));
        row("ops", format!("{} in a forward pass{}", self.counts.ops, parts.collect::<String>()))?;
        for rewrite in &self.rewrites {
            row("rewritten", rewrite.to_string())?;
        }
        if let Some(matched) = self.matched() {
            row("accurate()", matched)?;
        }
        if self.rewriting_cached {
            row("rewriting", "as an earlier build decided, from disk; the pass was compared again".into())?;
        }
        row(
            "dependencies",
            format!("{}, of which {} are not implied by others", self.counts.edges, self.counts.edges_reduced),
        )?;
        row(
            "width, depth",
            format!("at most {} ops side by side, {} one after another", self.counts.width, self.counts.depth),
        )?;
        row("streams", format!("{}, with {} waits between them", self.counts.streams, self.counts.waits))?;
        let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
        let (all, arena) = (mib(self.counts.buffer_bytes), mib(self.counts.arena_bytes));
        let memory = format!("{} of {all:.1} MiB share {arena:.1} MiB", self.counts.buffers);
        let rest = (mib(self.counts.constant_bytes), mib(self.counts.workspace_bytes));
        let memory = format!("{memory}, constants {:.1} MiB, workspaces {:.1} MiB", rest.0, rest.1);
        row("buffers", memory)?;
        row("same as eager", self.verification())?;
        row("build, ms", self.stage_times())?;
        row("eager, us", format!("{:.0}", self.eager_us))?;
        let faster = if self.replay_us > 0. && self.eager_us > 0. {
            format!(", {:.2} times as fast", self.eager_us / self.replay_us)
        } else {
            String::new()
        };
        row("replay, us", format!("{:.0}{faster}", self.replay_us))?;
        self.events(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exact_report_says_what_accurate_would_replace() {
        let of = |rule, times, saved| Match { rule, times, saved };
        let exact = Report {
            mode: Mode::Graph,
            matches: vec![of("attention", 12, 36), of("convolution", 1, 0)],
            ..Report::default()
        };
        let text = exact.to_string();
        let row = text.lines().find(|line| line.starts_with("accurate()")).unwrap_or_default();
        assert!(row.contains("up to 36 of these") && row.ends_with("attention 12, convolution 1"), "{text}");
        assert!(!Report { mode: Mode::Graph, ..Report::default() }.to_string().contains("accurate()"));
    }

    #[test]
    fn an_eager_report_has_no_rows_of_zeros() {
        let built = Report { device: "cpu".into(), scheduler: "opara".into(), eager_us: 7., ..Report::default() };
        let eager = built.eagerly("it draws random numbers".into());
        let text = eager.to_string();
        let rows: Vec<&str> = text.lines().map(|line| line.split("  ").next().unwrap_or_default()).collect();
        assert_eq!(rows, ["device", "mode", "reason", "eager, us"], "{eager}");
        let replayed = Report { mode: Mode::Threads, ..built }.to_string();
        for row in ["ops", "dependencies", "streams", "buffers", "same as eager", "replay, us"] {
            assert!(replayed.lines().any(|line| line.starts_with(row)), "{row}: {replayed}");
        }
    }
}
