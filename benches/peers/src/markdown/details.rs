//! The details of one cell: numbers by contestant, and time by kernel family.

use std::collections::{BTreeMap, BTreeSet};

use super::{number, short, Table, NOTHING};
use crate::families::{shares, Family, Share};
use crate::results::{Cell, Contestant, Measured, Outcome};
use crate::stats::{median, quantile};

/// The columns of [`details`], after the contestant's name.
const COLUMNS: [&str; 16] = [
    "GPU us",
    "p99",
    "flushed us",
    "p99",
    "wall us",
    "p99",
    "host us",
    "items/s",
    "set-up s",
    "peak MiB",
    "SMs busy",
    "occupancy",
    "error",
    "samples",
    "flushed",
    "note",
];

/// All measurements of each contestant in a cell: medians and 99th percentiles in microseconds.
pub fn details(cell: &Cell) -> String {
    let mut table = Table::new(["contestant"].into_iter().chain(COLUMNS));
    for Contestant { name, outcome } in &cell.contestants {
        let cells = match outcome {
            Outcome::Measured(measured) => numbers(measured, cell.key.batch),
            Outcome::Failed(reason) => failure(reason),
        };
        table.row([name.clone()].into_iter().chain(cells));
    }
    table.to_string()
}

fn numbers(measured: &Measured, batch: usize) -> [String; COLUMNS.len()] {
    let Measured { note, setup_s, peak_bytes, error, warm, flushed, utilization, .. } = measured;
    let middle = |samples: &[f64]| number(median(samples));
    let p99 = |samples: &[f64]| number(quantile(samples, 0.99));
    let part = |part: Option<f64>| part.map_or(NOTHING.into(), |part| format!("{:.0} %", 100. * part));
    [
        middle(&warm.gpu_us),
        p99(&warm.gpu_us),
        middle(&flushed.gpu_us),
        p99(&flushed.gpu_us),
        middle(&warm.wall_us),
        p99(&warm.wall_us),
        middle(&warm.host_us),
        number(measured.items_per_second(batch)),
        number(Some(*setup_s)),
        number(peak_bytes.map(|bytes| bytes as f64 / f64::from(1 << 20))),
        part(utilization.map(|utilization| utilization.sm)),
        part(utilization.map(|utilization| utilization.occupancy)),
        format!("{error:.0e}"),
        warm.gpu_us.len().to_string(),
        flushed.gpu_us.len().to_string(),
        note.clone().unwrap_or_default(),
    ]
}

fn failure(reason: &str) -> [String; COLUMNS.len()] {
    let mut cells = [NOTHING; COLUMNS.len()].map(String::from);
    if let Some(note) = cells.last_mut() {
        *note = format!("failed: {}", short(reason));
    }
    cells
}

/// Microseconds by kernel family, with launches in brackets, for each contestant with timed kernels; `None` if there is
/// none.
pub fn kernels(cell: &Cell) -> Option<String> {
    let timed = cell.contestants.iter().filter_map(|contestant| {
        let kernels = &contestant.measured()?.kernels;
        (!kernels.is_empty()).then(|| (contestant.name.as_str(), shares(kernels)))
    });
    let timed: Vec<(&str, BTreeMap<Family, Share>)> = timed.collect();
    if timed.is_empty() {
        return None;
    }
    let mut table = Table::new(["kernels, us (launches)"].into_iter().chain(timed.iter().map(|(name, _)| *name)));
    let families: BTreeSet<Family> = timed.iter().flat_map(|(_, shares)| shares.keys().copied()).collect();
    for family in families {
        let shares = timed.iter().map(|(_, shares)| shares.get(&family).map_or(NOTHING.into(), share));
        table.row([family.to_string()].into_iter().chain(shares));
    }
    let sum = |shares: &BTreeMap<Family, Share>| {
        let add = |a: Share, b: &Share| Share { calls: a.calls + b.calls, us: a.us + b.us };
        share(&shares.values().fold(Share::default(), add))
    };
    table.row(["all".to_string()].into_iter().chain(timed.iter().map(|(_, shares)| sum(shares))));
    Some(table.to_string())
}

fn share(Share { calls, us }: &Share) -> String {
    // An integer, unless a kernel runs in some calls only.
    let digits = usize::from(calls.fract() != 0.);
    format!("{} ({calls:.digits$})", number(Some(*us)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Kernel, Utilization};
    use crate::tests::{cell, failed, sampled};

    fn contestant(measured: Measured) -> Contestant {
        Contestant { name: "tuned".into(), outcome: Outcome::Measured(Box::new(measured)) }
    }

    fn rows(table: &str) -> Vec<Vec<&str>> {
        table.lines().map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
    }

    #[test]
    fn all_numbers_of_a_contestant() {
        let samples: Vec<f64> = (0..=100).map(|at| 100. + f64::from(at)).collect();
        let mut tuned = sampled("tuned", &samples).measured().unwrap().clone();
        tuned.note = Some("3 streams".into());
        tuned.peak_bytes = Some(3 << 20);
        tuned.utilization = Some(Utilization { sm: 0.5, occupancy: 0.25 });
        let table = details(&cell("bert", "f32", 3, [contestant(tuned), failed("eager", "no | memory")]));
        let rows = rows(&table);
        let numbers = ["150", "199", "150", "199", "300", "398", "150", "10000", "0.00", "3.00", "50 %", "25 %", "0e0"];
        assert_eq!(rows[2], [&["tuned"][..], &numbers, &["101", "101", "3 streams"]].concat());
        assert_eq!(rows[3][..2], ["eager", "—"]);
        assert!(table.ends_with("failed: no \\| memory |\n"), "{table}");
    }

    #[test]
    fn a_contestant_without_samples_has_no_numbers() {
        let table = details(&cell("bert", "f32", 1, [contestant(Measured::default())]));
        assert_eq!(rows(&table)[2][1..9], ["—"; 8]);
    }

    #[test]
    fn time_by_family() {
        let kernel = |name: &str, calls, us| Kernel { name: name.into(), calls, us };
        let kernels_of = |kernels| contestant(Measured { kernels, ..Measured::default() });
        let tuned = kernels_of(vec![kernel("nvjet_hsh", 2., 10.), kernel("badd_f16", 1., 5.)]);
        let mut graph = kernels_of(vec![kernel("triton_poi_fused_add_0", 0.5, 2.)]);
        graph.name = "torch graph".into();
        let cell = cell("bert", "f16", 1, [tuned, graph, failed("eager", "")]);
        let table = kernels(&cell).unwrap();
        let rows = rows(&table);
        assert_eq!(rows[0], ["kernels, us (launches)", "tuned", "torch graph"]);
        assert_eq!(rows[2], ["matmul", "10.0 (2)", "—"]);
        assert_eq!(rows[3], ["element-wise", "5.00 (1)", "2.00 (0.5)"]);
        assert_eq!(rows[4], ["all", "15.0 (3)", "2.00 (0.5)"]);
        assert_eq!(rows.len(), 5);
    }

    #[test]
    fn no_kernels_no_table() {
        assert_eq!(kernels(&cell("bert", "f16", 1, [sampled("tuned", &[1.])])), None);
    }
}
