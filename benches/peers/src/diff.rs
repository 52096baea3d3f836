//! Compares results from before and after a change.

use std::fmt;

use serde::Serialize;

use crate::contestants::Side;
use crate::markdown::{number, short, Table};
use crate::results::{Cell, Contestant, Key, Outcome, Results};
use crate::stats::{interval, median, ratio, Interval, Turns};

/// The criteria for a change.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The smallest change that counts, relative to the time before.
    pub threshold: f64,
    /// Divide this library's ratios by the cell's drift?
    pub control: bool,
}

/// The contestants that became faster or slower, by GPU time.
#[derive(Debug, Clone, Serialize)]
pub struct Diff {
    /// The smallest change that counts, relative to the time before.
    pub threshold: f64,
    /// Were this library's ratios divided by the cell's drift?
    pub control: bool,
    /// All contestants measured in both results.
    pub changes: Vec<Change>,
    /// This library's contestants that were measured before and failed after.
    pub broken: Vec<Broken>,
}

/// One contestant in one cell, in both results.
#[derive(Debug, Clone, Serialize)]
pub struct Change {
    /// The cell.
    #[serde(flatten)]
    pub key: Key,
    /// The contestant.
    pub name: String,
    /// Median before, in microseconds.
    pub before_us: f64,
    /// Median after, in microseconds.
    pub after_us: f64,
    /// Time after over time before.
    pub ratio: f64,
    /// The 95 % confidence interval of the ratio; none with too few turns.
    pub interval: Option<Interval>,
    /// Median ratio of the cell's controls, the contestants that a change of this project does not affect: the drift of
    /// the machine.
    pub drift: Option<f64>,
    /// The verdict.
    pub verdict: Verdict,
}

/// The verdict on a ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The interval is below 1, and the change counts.
    Faster,
    /// The interval is above 1, and the change counts.
    Slower,
    /// Neither faster nor slower.
    Same,
    /// Too few turns were measured.
    Unsure,
    /// Not this library's: candle, or another framework.
    Control,
}

/// A contestant that no longer runs.
#[derive(Debug, Clone, Serialize)]
pub struct Broken {
    /// The cell.
    #[serde(flatten)]
    pub key: Key,
    /// The contestant.
    pub name: String,
    /// Why it failed, on one line.
    pub reason: String,
}

impl Default for Options {
    fn default() -> Self {
        Self { threshold: 0.01, control: false }
    }
}

/// Compares all contestants that are in both results.
pub fn diff(before: &Results, after: &Results, options: Options) -> Diff {
    let Options { threshold, control } = options;
    let mut diff = Diff { threshold, control, changes: Vec::new(), broken: Vec::new() };
    let cells = before.cells();
    for after_cell in after.cells() {
        let Some(before_cell) = cells.iter().find(|cell| cell.key == after_cell.key) else { continue };
        let key = &after_cell.key;
        let turns = [before, after].map(|results| move |name: &str| results.turn(key, name));
        let drift = drift(before_cell, &after_cell);
        for Contestant { name, outcome } in &after_cell.contestants {
            let Some(before) = before_cell.measured(name) else { continue };
            match outcome {
                Outcome::Measured(after) => {
                    let samples = [&before.warm.gpu_us[..], &after.warm.gpu_us];
                    let [before, after] = [0, 1].map(|at| Turns { samples: samples[at], turn: turns[at](name) });
                    diff.changes.extend(Change::of(key, name, [before, after], drift, options));
                }
                Outcome::Failed(reason) if Side::of(name) == Side::Ours => {
                    diff.broken.push(Broken { key: key.clone(), name: name.clone(), reason: short(reason) });
                }
                Outcome::Failed(_) => {}
            }
        }
    }
    diff
}

/// The median ratio of the contestants that the project does not change.
fn drift(before: &Cell, after: &Cell) -> Option<f64> {
    let controls = after.contestants.iter().filter(|contestant| Side::of(&contestant.name) != Side::Ours);
    let ratios = controls.filter_map(|contestant| {
        let [before, after] = [before.measured(&contestant.name)?, contestant.measured()?];
        ratio(after.gpu_us()?, before.gpu_us()?)
    });
    median(&ratios.collect::<Vec<_>>())
}

impl Change {
    /// `None` if there are no times to compare.
    fn of(key: &Key, name: &str, [before, after]: [Turns; 2], drift: Option<f64>, options: Options) -> Option<Self> {
        let [before_us, after_us] = [median(before.samples)?, median(after.samples)?];
        let ours = Side::of(name) == Side::Ours;
        let by = drift.filter(|_| ours && options.control).unwrap_or(1.);
        let ratio = ratio(after_us, before_us)? / by;
        let interval =
            interval(after, before).map(|Interval { low, high }| Interval { low: low / by, high: high / by });
        let verdict = match interval {
            _ if !ours => Verdict::Control,
            None => Verdict::Unsure,
            Some(interval) if interval.contains(1.) || (ratio - 1.).abs() <= options.threshold => Verdict::Same,
            Some(interval) if interval.low > 1. => Verdict::Slower,
            Some(_) => Verdict::Faster,
        };
        Some(Self { key: key.clone(), name: name.into(), before_us, after_us, ratio, interval, drift, verdict })
    }
}

impl Diff {
    /// The number of this library's contestants with this verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.changes.iter().filter(|change| change.verdict == verdict).count()
    }

    /// Did any of this library's contestants become slower or stop running?
    pub fn regressed(&self) -> bool {
        self.count(Verdict::Slower) + self.broken.len() > 0
    }

    /// The numbers of faster and slower contestants.
    fn summary(&self) -> String {
        let of_each = [Verdict::Faster, Verdict::Slower, Verdict::Same].map(|v| format!("{} {v}", self.count(v)));
        let mut summary = of_each.join(", ");
        for (count, what) in
            [(self.count(Verdict::Unsure), "with too few turns to tell"), (self.broken.len(), "broken")]
        {
            if count > 0 {
                summary += &format!(", {count} {what}");
            }
        }
        format!("{summary}; changes count above {} %", 100. * self.threshold)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::Same => "same",
            Self::Unsure => "unsure",
            Self::Control => "control",
        })
    }
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = ["cell", "contestant", "before, us", "after, us", "ratio", "95 %", "drift", "verdict"];
        let mut table = Table::new(header);
        for change in &self.changes {
            let three = |ratio: Option<f64>| ratio.map_or("—".into(), |ratio| format!("{ratio:.3}"));
            table.row([
                change.key.to_string(),
                change.name.clone(),
                number(Some(change.before_us)),
                number(Some(change.after_us)),
                three(Some(change.ratio)),
                change.interval.map_or("—".into(), |Interval { low, high }| format!("{low:.3} to {high:.3}")),
                three(change.drift),
                change.verdict.to_string(),
            ]);
        }
        writeln!(f, "{table}")?;
        for Broken { key, name, reason } in &self.broken {
            writeln!(f, "{key}: {name} no longer runs: {reason}")?;
        }
        let divided = if self.control { "; ours are divided by it" } else { "" };
        writeln!(f, "Drift: the median ratio of a cell's controls, which this project does not change{divided}.")?;
        writeln!(f, "{}", self.summary())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{cell, failed, measured, noisy, results, sampled};

    /// One cell whose contestants have noisy samples around these medians.
    fn around(us: &[(&str, f64)], seed: u64) -> Results {
        let contestant = |(at, (name, us)): (u64, &(&str, f64))| sampled(name, &noisy(*us, 0.03, 15, 10 * seed + at));
        results([cell("bert", "f32", 1, (0..).zip(us).map(contestant).collect::<Vec<_>>())])
    }

    fn verdicts(diff: &Diff) -> Vec<(&str, Verdict)> {
        diff.changes.iter().map(|change| (change.name.as_str(), change.verdict)).collect()
    }

    #[test]
    fn a_change_of_five_percent_is_detected_in_noise_of_three() {
        for seed in 0..5 {
            let before = around(&[("tuned", 100.), ("opara", 100.), ("torch graph", 100.)], 2 * seed);
            let after = around(&[("tuned", 106.), ("opara", 94.), ("torch graph", 106.)], 2 * seed + 1);
            let diff = diff(&before, &after, Options::default());
            let expected = [("tuned", Verdict::Slower), ("opara", Verdict::Faster), ("torch graph", Verdict::Control)];
            assert_eq!(verdicts(&diff), expected, "seed {seed}");
            assert!(diff.regressed());
        }
    }

    #[test]
    fn equal_results_have_no_change() {
        let before = around(&[("tuned", 100.), ("eager", 300.)], 1);
        let diff = diff(&before, &before, Options::default());
        assert_eq!(verdicts(&diff), [("tuned", Verdict::Same), ("eager", Verdict::Same)]);
        assert!(!diff.regressed());
        assert!(diff.to_string().ends_with("\n0 faster, 0 slower, 2 same; changes count above 1 %\n"), "{diff}");
    }

    #[test]
    fn small_changes_do_not_count() {
        let of = |us| results([cell("bert", "f32", 1, [measured("tuned", us)])]);
        let verdict =
            |threshold| diff(&of(1000.), &of(1020.), Options { threshold, control: false }).changes[0].verdict;
        assert_eq!((verdict(0.01), verdict(0.03)), (Verdict::Slower, Verdict::Same));
    }

    #[test]
    fn controls_give_the_drift() {
        let of = |ours, theirs| {
            let all = [("tuned", ours), ("candle", theirs), ("torch graph", theirs), ("onnxruntime graph", 100.)];
            results([cell("bert", "f32", 1, all.map(|(name, us)| measured(name, us)))])
        };
        let (before, after) = (of(100., 100.), of(110., 110.));
        let diff = |control| diff(&before, &after, Options { threshold: 0.01, control });
        assert_eq!(diff(false).changes[0].drift, Some(1.1));
        assert!(diff(false).regressed());
        assert_eq!(diff(true).changes[0].verdict, Verdict::Same);
        assert_eq!(diff(true).changes[0].ratio, 1.);
        assert_eq!(diff(true).changes[2].ratio, 1.1);
        assert!(!diff(true).regressed());
        let really = super::diff(&before, &of(121., 110.), Options { threshold: 0.01, control: true });
        assert_eq!(really.changes[0].verdict, Verdict::Slower);
    }

    #[test]
    fn without_controls_nothing_is_divided() {
        let of = |us| results([cell("bert", "f32", 1, [measured("tuned", us)])]);
        let diff = diff(&of(100.), &of(110.), Options { threshold: 0.01, control: true });
        assert_eq!((diff.changes[0].drift, diff.changes[0].ratio), (None, 1.1));
    }

    #[test]
    fn a_contestant_that_fails_now_is_broken() {
        let before = results([cell("bert", "f32", 1, ["tuned", "torch graph"].map(|name| measured(name, 1.)))]);
        let after = results([cell("bert", "f32", 1, ["tuned", "torch graph"].map(|name| failed(name, "no memory")))]);
        let diff = diff(&before, &after, Options::default());
        assert_eq!((diff.broken.len(), diff.changes.len()), (1, 0));
        assert!(diff.regressed());
        assert!(diff.to_string().contains("bert f32 batch 1: tuned no longer runs: no memory\n"), "{diff}");
    }

    #[test]
    fn incomparable_contestants_are_omitted_or_unsure() {
        let before =
            results([cell("bert", "f32", 1, [measured("tuned", 1.), sampled("dag", &[]), measured("ios", 0.)])]);
        let after = results([
            cell("bert", "f32", 1, [sampled("tuned", &[2.]), measured("dag", 1.), measured("ios", 1.)]),
            cell("t5", "f32", 1, [measured("tuned", 1.)]),
        ]);
        let diff = diff(&before, &after, Options::default());
        assert_eq!(verdicts(&diff), [("tuned", Verdict::Unsure)]);
        assert!(diff.to_string().contains(", 1 with too few turns to tell"), "{diff}");
        assert!(!diff.regressed());
    }

    #[test]
    fn as_json() {
        let of = |us| results([cell("bert", "f32", 1, [measured("tuned", us)])]);
        let json = serde_json::to_value(diff(&of(100.), &of(150.), Options::default())).unwrap();
        let change = &json["changes"][0];
        assert_eq!((&change["model"], &change["verdict"]), (&"bert".into(), &"slower".into()));
        assert_eq!((&change["ratio"], &change["interval"]["low"]), (&1.5.into(), &1.5.into()));
    }
}
