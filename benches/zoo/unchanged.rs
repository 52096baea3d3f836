//! Measures an entry of the zoo with candle's bits and with candle's accuracy: no eager pass beside those of building.

use std::fmt;
use std::path::Path;

use anyhow::{ensure, Result};
use opara_candle::{Mode, Numerics, OparaExecutor, Report};
use opara_examples::{Latencies, Run};
use serde::Serialize;

use crate::entry::{Entry, Model, Target};

/// A row of `benches/results/unchanged.json`, and how it came about.
#[derive(Serialize)]
pub struct Row {
    model: &'static str,
    dtype: &'static str,
    batch: usize,
    /// Median microseconds of a call with [`Numerics::Exact`].
    exact_us: Option<f64>,
    /// The same with [`Numerics::Accurate`].
    accurate_us: Option<f64>,
    /// Median microseconds of a call of the same model on this library's operators.
    native_us: Option<f64>,
    /// The worst error of what is rewritten, in roundings.
    error: Option<f64>,
    /// candle's error there.
    candle_error: Option<f64>,
    /// By numerics.
    reports: Vec<(&'static str, Report)>,
}

/// Builds executors with these numerics, and measures them side by side. Saves the trace as recorded in the folder `traces`, and beside
/// it the ops that are replayed, with their times. Without the folder `cache`, build times are those of a first build.
///
/// # Errors
/// An error of the model, the executors or the driver; a model that is not captured.
pub fn measure(
    entry: &Entry,
    target: &Target,
    iters: usize,
    numerics: &[&'static str],
    [traces, cache]: [Option<&Path>; 2],
) -> Result<Row> {
    let Target { device, dtype, batch, .. } = target;
    let model = (entry.build)(target)?;
    let Model { inputs, native, .. } = &model;
    let build = |name: &str, model: &Model| -> Result<OparaExecutor> {
        let numerics = if name == "accurate" { Numerics::Accurate } else { Numerics::Exact };
        let builder = OparaExecutor::builder().numerics(numerics).cache_folder(cache.map(Path::to_path_buf));
        let executor = model.executor(builder)?;
        let report = executor.report();
        ensure!(report.mode() != Mode::Eager, "it runs eagerly: {}", report.reason().unwrap_or_default());
        Ok(executor)
    };
    let built = numerics.iter().map(|&name| Ok((name, build(name, &model)?))).collect::<Result<Vec<_>>>()?;
    let native =
        native.as_ref().map(|model| Ok::<_, anyhow::Error>(("native", build("native", model)?))).transpose()?;
    let calls: Vec<_> = built
        .iter()
        .chain(&native)
        .map(|(name, executor)| (*name, move || Ok(executor.call_zero_copy(inputs, |_| Vec::new())?)))
        .collect();
    let runs: Vec<Run> = calls.iter().map(|(name, call)| (*name, call as _)).collect();
    let latencies = Latencies::measure(device, iters, &runs)?;
    if let (Some(folder), Some((_, last))) = (traces, built.last()) {
        let name = format!("{}-{}", entry.name, dtype.as_str());
        last.recorded_trace(inputs)?.save(folder.join(format!("{name}.trace")))?;
        last.measure(inputs)?.save(folder.join(format!("{name}-replayed.trace")))?;
    }
    let us = |name| latencies.get(name).map(|latency| latency.median_us);
    let reports: Vec<_> = built.iter().map(|(name, executor)| (*name, executor.report())).collect();
    let rewrites = reports.iter().flat_map(|(_, report)| report.rewrites());
    let worst = rewrites.max_by(|a, b| a.error.total_cmp(&b.error)).copied();
    Ok(Row {
        model: entry.name,
        dtype: dtype.as_str(),
        batch: *batch,
        exact_us: us("exact"),
        accurate_us: us("accurate"),
        native_us: us("native"),
        error: worst.map(|rewrite| rewrite.error),
        candle_error: worst.map(|rewrite| rewrite.candle_error),
        reports,
    })
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |us: Option<f64>| us.map_or("-".into(), |us| format!("{us:.0}"));
        write!(f, "{:<24}{:<5}{:>8}{:>8}", self.model, self.dtype, us(self.exact_us), us(self.accurate_us))?;
        if self.native_us.is_some() {
            write!(f, ", native {}", us(self.native_us))?;
        }
        for (name, report) in &self.reports {
            let stages: Vec<String> = report.build_ms().iter().map(|(stage, ms)| format!("{stage} {ms:.0}")).collect();
            write!(f, "\n    {name}: built in ms: {}", stages.join(", "))?;
            if report.is_rewriting_cached() {
                write!(f, "\n    rewritten as on disk")?;
            }
            let lines = report.rewrites().iter().map(ToString::to_string).chain(report.notes().iter().cloned());
            lines.into_iter().try_for_each(|line| write!(f, "\n    {line}"))?;
        }
        Ok(())
    }
}
