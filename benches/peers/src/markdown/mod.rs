//! Tables in Markdown.

mod details;
mod table;

use std::fmt::Write;

use opara_candle::BuiltIn;

pub use self::details::{details, kernels};
pub use self::table::Table;

use self::table::one_line;
use crate::contestants::{line_up, Side};
use crate::results::{Cell, Machine, Outcome, Results};
use crate::stats::ratio;

/// Shown in an empty cell.
const NOTHING: &str = "—";

/// Maximum characters of a failure's reason in a table's notes; some are whole tracebacks.
const LONGEST: usize = 300;

/// The origin of the results: one line per machine.
pub fn header(results: &Results) -> String {
    let mut machines: Vec<&Machine> = Vec::new();
    for run in &results.runs {
        if !machines.contains(&&run.machine) {
            machines.push(&run.machine);
        }
    }
    machines.into_iter().map(|machine| format!("- {}\n", source(machine))).collect()
}

fn source(machine: &Machine) -> String {
    let Machine { gpu, driver, commit, date, versions, absent } = machine;
    let known = |what: &str, value: &str| (!value.is_empty()).then(|| format!("{what}{value}"));
    let named = [known("", date), known("", gpu), known("driver ", driver), known("commit ", commit)];
    let versions = versions.iter().map(|(name, version)| format!("{name} {version}"));
    let absent = absent.iter().map(|(name, reason)| format!("without {name}: {}", short(reason)));
    named.into_iter().flatten().chain(versions).chain(absent).collect::<Vec<_>>().join("; ")
}

/// Medians of GPU time, one row per cell, the fastest in bold. The last column is the time of the fastest peer over the
/// time of this library's fastest contestant in the row.
pub fn medians(cells: &[Cell]) -> String {
    let names = line_up(cells.iter());
    let compared = |cell: &Cell| {
        let fastest = |side| fastest(cell, names.iter().copied().filter(|name| Side::of(name) == side));
        ratio(fastest(Side::Peer)?, fastest(Side::Ours)?)
    };
    let mut reasons = Reasons::default();
    let mut table = Table::new(["GPU time, us"].iter().chain(&names).chain(&["peer / ours"]).copied());
    for cell in cells {
        let last = compared(cell).map_or(NOTHING.into(), |ratio| format!("{ratio:.2}x"));
        table.row([cell.key.to_string()].into_iter().chain(shown(cell, &names, &mut reasons)).chain([last]));
    }
    format!("{table}{reasons}")
}

/// Like [`medians`], but of all schedulers that took part, and no other contestants.
pub fn schedulers(cells: &[Cell]) -> String {
    let took_part = |name: &&str| cells.iter().any(|cell| cell.outcome(name).is_some());
    let names: Vec<&str> = BuiltIn::ALL.map(BuiltIn::as_str).into_iter().filter(took_part).collect();
    let mut reasons = Reasons::default();
    let mut table = Table::new(["GPU time, us"].iter().chain(&names).copied());
    for cell in cells.iter().filter(|cell| names.iter().any(|name| cell.outcome(name).is_some())) {
        table.row([cell.key.to_string()].into_iter().chain(shown(cell, &names, &mut reasons)));
    }
    format!("{table}{reasons}")
}

fn fastest<'a>(cell: &Cell, names: impl Iterator<Item = &'a str>) -> Option<f64> {
    names.filter_map(|name| cell.measured(name)?.gpu_us()).min_by(f64::total_cmp)
}

/// Medians of these contestants, the fastest in bold.
fn shown(cell: &Cell, names: &[&str], reasons: &mut Reasons) -> Vec<String> {
    let fastest = fastest(cell, names.iter().copied());
    let show = |name: &&str| match cell.outcome(name) {
        None => NOTHING.into(),
        Some(Outcome::Failed(reason)) => reasons.cite(reason),
        Some(Outcome::Measured(measured)) => match measured.gpu_us() {
            us if us.is_some() && us == fastest => format!("**{}**", number(us)),
            us => number(us),
        },
    };
    names.iter().map(show).collect()
}

/// Times and rates, with three digits or more.
pub(crate) fn number(value: Option<f64>) -> String {
    match value {
        Some(value) if value.abs() < 10. => format!("{value:.2}"),
        Some(value) if value.abs() < 100. => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
        None => NOTHING.into(),
    }
}

/// A reason on one line.
pub(crate) fn short(reason: &str) -> String {
    let reason = one_line(reason);
    match reason.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{} ...", &reason[..end]),
        None => reason,
    }
}

/// The reasons why contestants of a table failed, each listed once.
#[derive(Default)]
struct Reasons(Vec<String>);

impl Reasons {
    /// The text for the table's cell.
    fn cite(&mut self, reason: &str) -> String {
        let reason = short(reason);
        let known = self.0.iter().position(|other| *other == reason);
        let at = known.unwrap_or_else(|| {
            self.0.push(reason);
            self.0.len() - 1
        });
        format!("failed ({})", at + 1)
    }
}

impl std::fmt::Display for Reasons {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.0.is_empty() {
            f.write_char('\n')?;
        }
        self.0.iter().enumerate().try_for_each(|(at, reason)| writeln!(f, "- ({}) {reason}", at + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Run;
    use crate::tests::{cell, failed, measured, sampled};

    /// The cells of the row that begins with this text.
    fn row<'a>(table: &'a str, beginning: &str) -> Vec<&'a str> {
        let line = table.lines().find(|line| line.starts_with(&format!("| {beginning}"))).unwrap();
        line.trim_matches('|').split('|').map(str::trim).collect()
    }

    #[test]
    fn the_fastest_is_bold_and_the_ratio_compares_peer_and_library() {
        let behind = [measured("opara", 200.), measured("torch graph", 150.), measured("candle", 10.)];
        let ahead = [measured("opara", 200.), measured("tuned", 100.), measured("torch graph", 123.)];
        let table = medians(&[cell("bert", "f16", 1, behind), cell("t5", "f16", 1, ahead)]);
        assert_eq!(row(&table, "GPU"), ["GPU time, us", "candle", "opara", "tuned", "torch graph", "peer / ours"]);
        assert_eq!(row(&table, "bert"), ["bert f16 batch 1", "**10.0**", "200", "—", "150", "0.75x"]);
        assert_eq!(row(&table, "t5"), ["t5 f16 batch 1", "—", "200", "**100**", "123", "1.23x"]);
    }

    #[test]
    fn failures_are_explained_once() {
        let cells = [1, 2].map(|batch| {
            let all = [failed("tuned", "no\nmemory"), failed("eager", "no memory"), failed("torch graph", "other")];
            cell("bert", "f32", batch, all)
        });
        let table = medians(&cells);
        assert_eq!(row(&table, "bert")[1..], ["failed (1)", "failed (1)", "failed (2)", "—"]);
        assert!(table.ends_with("|\n\n- (1) no memory\n- (2) other\n"), "{table}");
        assert!(short(&"ß".repeat(2 * LONGEST)).chars().count() < LONGEST + 5);
    }

    #[test]
    fn missing_and_zero_times_have_no_ratio() {
        let cells = [
            cell("bert", "f32", 1, []),
            cell("t5", "f32", 1, [sampled("tuned", &[]), measured("torch graph", 1.)]),
            cell("nasnet", "f32", 1, [measured("tuned", 0.), measured("torch graph", 1.)]),
        ];
        let table = medians(&cells);
        assert_eq!(row(&table, "bert")[1..], ["—", "—", "—"]);
        assert_eq!(row(&table, "t5")[1..], ["—", "**1.00**", "—"]);
        assert_eq!(row(&table, "nasnet")[1..], ["**0.00**", "1.00", "—"]);
        assert_eq!(medians(&[]).lines().count(), 2);
    }

    #[test]
    fn schedulers_have_their_own_table() {
        let all = ["tuned", "dag", "eager", "torch graph"].map(|name| measured(name, 5.));
        let table = schedulers(&[cell("bert", "f32", 1, all), cell("t5", "f32", 1, [measured("eager", 1.)])]);
        assert_eq!(row(&table, "GPU"), ["GPU time, us", "dag", "tuned"]);
        assert!(!table.contains("t5"), "{table}");
    }

    #[test]
    fn the_header_lists_each_machine_once() {
        let machine = Machine {
            gpu: "NVIDIA H200".into(),
            date: "2026-11-21".into(),
            versions: [("torch".to_string(), "2.11.0".to_string())].into(),
            absent: [("onnxruntime".to_string(), "not\ninstalled".to_string())].into(),
            ..Machine::default()
        };
        let run = |machine| Run { machine, turn: 1, cells: vec![] };
        let results = Results::new(vec![run(machine.clone()), run(machine)]);
        let line = "- 2026-11-21; NVIDIA H200; torch 2.11.0; without onnxruntime: not installed\n";
        assert_eq!(header(&results), line);
    }
}
