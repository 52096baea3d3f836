//! Statistics: operations by kind with their latencies, wrong values, errors, and the modes in which modules run.

use std::collections::BTreeMap;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{anyhow, Result};
use opara_candle::{Mode, Report};
use parking_lot::Mutex;

use crate::modules::Kind;

/// The maximal number of messages kept of each sort.
const TEXTS: usize = 10;
/// Latency buckets per doubling.
const STEPS: u32 = 8;

/// A histogram of latencies. Each bucket is 2^(1/8) times as wide as the one before, so that the size stays constant
/// however long a run takes.
#[derive(Debug, Clone, Default)]
pub struct Latencies {
    buckets: BTreeMap<u32, u64>,
    longest_us: f64,
}

impl Latencies {
    fn add(&mut self, us: f64) {
        let bucket = (us.max(1e-3) * 1e3).log2() * f64::from(STEPS);
        *self.buckets.entry(bucket as u32).or_default() += 1;
        self.longest_us = self.longest_us.max(us);
    }

    fn merge(&mut self, other: Self) {
        other.buckets.into_iter().for_each(|(bucket, count)| *self.buckets.entry(bucket).or_default() += count);
        self.longest_us = self.longest_us.max(other.longest_us);
    }

    /// The percentile in microseconds, up to a bucket's width.
    pub fn percentile_us(&self, share: f64) -> f64 {
        let total: u64 = self.buckets.values().sum();
        let mut left = (total as f64 * share).ceil() as u64;
        for (bucket, count) in &self.buckets {
            if *count >= left {
                return (f64::from(bucket + 1) / f64::from(STEPS)).exp2().min(self.longest_us * 1e3) / 1e3;
            }
            left -= count;
        }
        self.longest_us
    }

    /// The longest latency in microseconds.
    pub fn longest_us(&self) -> f64 {
        self.longest_us
    }
}

/// Operations of one kind.
#[derive(Debug, Clone, Default)]
pub struct Operations {
    /// Their number.
    pub count: u64,
    /// Operations with wrong values.
    pub wrong: u64,
    /// Operations that failed.
    pub errors: u64,
    pub latencies: Latencies,
}

/// The statistics of one thread, or of all of them.
#[derive(Debug, Default)]
pub struct Tally {
    pub operations: BTreeMap<&'static str, Operations>,
    /// The first messages about wrong values and errors.
    pub texts: Vec<String>,
    /// The number of plans by origin, kind of module and mode.
    pub plans: BTreeMap<(Seen, &'static str, &'static str), u64>,
    /// Why modules that should be captured were not; the first few reasons.
    pub reasons: Vec<String>,
    /// The operation that the thread is in.
    pub doing: Arc<Mutex<&'static str>>,
}

/// The place at which a plan was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Seen {
    /// In an executor that the thread built.
    Built,
    /// In the last call of a shared executor, made by any thread.
    Used,
}

impl Seen {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Built => "built",
            Self::Used => "used",
        }
    }
}

impl Tally {
    /// Creates statistics for a thread whose current operation others can read.
    pub fn of(doing: Arc<Mutex<&'static str>>) -> Self {
        Self { doing, ..Self::default() }
    }

    /// Runs one operation and times it. Returns `None` if it failed.
    pub fn time<T>(&mut self, kind: &'static str, operation: impl FnOnce() -> Result<T>) -> Option<T> {
        *self.doing.lock() = kind;
        let began = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(operation)).unwrap_or_else(|_| Err(anyhow!("it panicked")));
        let us = began.elapsed().as_secs_f64() * 1e6;
        *self.doing.lock() = "nothing";
        let operations = self.operations.entry(kind).or_default();
        operations.count += 1;
        operations.latencies.add(us);
        match result {
            Ok(result) => Some(result),
            Err(error) => {
                operations.errors += 1;
                self.note(format!("{kind}: {error:#}"));
                None
            }
        }
    }

    /// Runs one operation, times it, and compares its values with the expected ones bit for bit.
    pub fn check(&mut self, kind: &'static str, expected: &[f32], operation: impl FnOnce() -> Result<Vec<f32>>) {
        let Some(got) = self.time(kind, operation) else { return };
        let differs = |(got, expected): (&f32, &f32)| got.to_bits() != expected.to_bits();
        let first = got.iter().zip(expected).position(differs);
        let differing = got.iter().zip(expected).filter(|pair| differs(*pair)).count();
        let wrong = differing + got.len().abs_diff(expected.len());
        if wrong > 0 {
            self.operations.entry(kind).or_default().wrong += wrong as u64;
            let pair = first.map(|at| format!(", number {at} is {} instead of {}", got[at], expected[at]));
            self.note(format!("{kind}: {wrong} of {} numbers{}", expected.len(), pair.unwrap_or_default()));
        }
    }

    /// Drops a value and times that.
    pub fn drop<T>(&mut self, kind: &'static str, value: T) {
        self.time(kind, || {
            drop(value);
            Ok(())
        });
    }

    /// Counts a plan.
    pub fn plan(&mut self, seen: Seen, kind: Kind, report: &Report) {
        *self.plans.entry((seen, kind.name(), report.mode().name())).or_default() += 1;
        if report.mode() == Mode::Eager && kind.can_be_captured(report.device() == "cpu") && self.reasons.len() < TEXTS
        {
            self.reasons.push(format!("{}: {}", kind.name(), report.reason().unwrap_or("no reason")));
        }
    }

    /// Records a message, unless it is already recorded or there are too many.
    pub fn note(&mut self, text: String) {
        if self.texts.len() < TEXTS && !self.texts.contains(&text) {
            self.texts.push(text);
        }
    }

    /// Adds the statistics of another thread.
    pub fn add(&mut self, other: Self) {
        for (kind, operations) in other.operations {
            let sum = self.operations.entry(kind).or_default();
            sum.count += operations.count;
            sum.wrong += operations.wrong;
            sum.errors += operations.errors;
            sum.latencies.merge(operations.latencies);
        }
        other.texts.into_iter().for_each(|text| self.note(text));
        other.plans.into_iter().for_each(|(plan, count)| *self.plans.entry(plan).or_default() += count);
        self.reasons.extend(other.reasons);
        self.reasons.truncate(TEXTS);
    }

    /// The number of all operations.
    pub fn count(&self) -> u64 {
        self.operations.values().map(|operations| operations.count).sum()
    }

    /// The number of operations with wrong values, and of failed operations.
    pub fn faults(&self) -> (u64, u64) {
        let of = |f: fn(&Operations) -> u64| self.operations.values().map(f).sum();
        (of(|operations| operations.wrong), of(|operations| operations.errors))
    }
}
