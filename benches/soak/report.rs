//! The results of a run, as text and as JSON.

use std::collections::BTreeMap;
use std::io::{self, stdout, Write};

use anyhow::Result;
use serde_json::{json, Value};

use crate::memory::Memory;
use crate::tally::Tally;

/// The results of a run.
pub struct Report {
    pub device: String,
    pub seconds: u64,
    pub threads: usize,
    pub seed: u64,
    pub tally: Tally,
    /// Memory use at the start, in the middle and at the end.
    pub memory: [Memory; 3],
}

impl Report {
    /// Was every value right, did nothing fail, and did memory stay within the bounds?
    pub fn passed(&self) -> bool {
        self.tally.faults() == (0, 0) && self.grown().is_empty()
    }

    fn grown(&self) -> Vec<(&'static str, u64, u64)> {
        let [_, middle, end] = &self.memory;
        end.grown_since(middle)
    }

    /// Prints the report on stdout.
    ///
    /// # Errors
    /// An error of writing.
    pub fn print(&self, as_json: bool) -> Result<()> {
        let mut out = stdout().lock();
        match as_json {
            true => writeln!(out, "{}", serde_json::to_string_pretty(&self.json())?)?,
            false => self.text(&mut out)?,
        }
        Ok(())
    }

    fn text(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { device, seconds, threads, seed, tally, memory } = self;
        writeln!(out, "{device}, {threads} threads, {seconds} s, seed {seed}\n")?;
        let head = ["count", "wrong", "errors", "p50 us", "p99 us", "max us"].map(|name| format!("{name:>12}"));
        writeln!(out, "{:<32}{}", "operation", head.concat())?;
        for (kind, operations) in &tally.operations {
            let latencies = &operations.latencies;
            let times = [latencies.percentile_us(0.5), latencies.percentile_us(0.99), latencies.longest_us()];
            let counts = [operations.count, operations.wrong, operations.errors].map(|n| format!("{n:>12}"));
            writeln!(out, "{kind:<32}{}{}", counts.concat(), times.map(|us| format!("{us:>12.1}")).concat())?;
        }
        writeln!(out, "\n{:<32}{:>12}{:>12}{:>12}", "plans, of modules", "", "mode", "count")?;
        for ((seen, kind, mode), count) in &tally.plans {
            writeln!(out, "{kind:<32}{:>12}{mode:>12}{count:>12}", seen.name())?;
        }
        writeln!(out, "\n{:<32}{:>12}{:>12}{:>12}", "memory, MiB", "start", "middle", "end")?;
        for (i, (name, _)) in memory[0].counts().iter().enumerate() {
            let at = memory.map(|memory| memory.counts()[i].1.map_or("-".into(), |b| format!("{:.1}", mib(b))));
            writeln!(out, "{name:<32}{:>12}{:>12}{:>12}", at[0], at[1], at[2])?;
        }
        writeln!(out)?;
        tally.reasons.iter().try_for_each(|reason| writeln!(out, "not captured: {reason}"))?;
        tally.texts.iter().try_for_each(|text| writeln!(out, "fault: {text}"))?;
        for (name, grown, bound) in self.grown() {
            writeln!(out, "{name} has grown by {:.1} MiB in the second half; the bound is {}", mib(grown), mib(bound))?;
        }
        let (wrong, errors) = tally.faults();
        writeln!(out, "{} operations, {wrong} wrong numbers, {errors} errors", tally.count())
    }

    fn json(&self) -> Value {
        let mut operations = BTreeMap::new();
        for (kind, of) in &self.tally.operations {
            let latencies = &of.latencies;
            operations.insert(
                kind,
                json!({
                    "count": of.count, "wrong": of.wrong, "errors": of.errors, "p50_us": latencies.percentile_us(0.5),
                    "p99_us": latencies.percentile_us(0.99), "max_us": latencies.longest_us(),
                }),
            );
        }
        let mut plans: BTreeMap<_, BTreeMap<_, BTreeMap<_, _>>> = BTreeMap::new();
        for ((seen, kind, mode), count) in &self.tally.plans {
            plans.entry(seen.name()).or_default().entry(kind).or_default().insert(mode, count);
        }
        let [start, middle, end] = self.memory;
        let (wrong, errors) = self.tally.faults();
        json!({
            "device": self.device, "seconds": self.seconds, "threads": self.threads, "seed": self.seed,
            "operations": operations, "plans": plans, "not_captured": self.tally.reasons, "wrong": wrong,
            "errors": errors, "faults": self.tally.texts, "grown": self.grown(), "passed": self.passed(),
            "memory_bytes": { "start": start, "middle": middle, "end": end },
        })
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1 << 20) as f64
}
