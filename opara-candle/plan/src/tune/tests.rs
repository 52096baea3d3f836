use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::device::DeviceModel;
use crate::graph::reduce::tests::dags;
use crate::graph::OpGraph;
use crate::lab::search::Simulation;
use crate::lab::simulate::simulate;
use crate::prepared::{Prepared, Settings};
use crate::profile::OpProfile;
use crate::trace::Trace;
use crate::Error;

/// A trace that was recorded on an H200.
fn recorded(model: &str) -> (Trace, Prepared) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    let trace = Trace::load(folder.join(format!("{model}.trace"))).unwrap();
    let prepared = Prepared::new(&trace, Settings::default());
    (trace, prepared)
}

/// Runs take the simulated time; every third run takes up to half a percent longer.
struct Noisy<'a>(Simulation<'a>, usize);

impl Bench for Noisy<'_> {
    type Runner = f64;
    type Error = Error;

    fn runner(&mut self, schedule: &Schedule) -> Result<f64> {
        self.0.runner(schedule)
    }

    fn run(&mut self, us: &f64) -> Result<f64> {
        self.1 += 1;
        Ok(us * if self.1.is_multiple_of(3) { 1. + (self.1 % 7) as f64 / 1400. } else { 1. })
    }
}

fn noisy<'a>(problem: &'a Problem<'a>) -> Noisy<'a> {
    Noisy(Simulation::of(problem), 0)
}

fn tuning(proposals: usize, seed: u64) -> Search {
    Search { budget: Duration::MAX, proposals, seed, cache: None, progress: None }
}

#[test]
fn the_tuned_schedule_is_sound_and_no_slower_than_any_scheduler() {
    for model in ["native-googlenet-f32", "native-deepfm-f32", "native-t5-f16"] {
        let (_, prepared) = recorded(model);
        let problem = prepared.problem();
        let winner = search(&problem, &mut noisy(&problem), &tuning(24, 0)).unwrap();
        prepared.check(&winner.schedule).unwrap();
        let us = |schedule: &Schedule| simulate(&problem, schedule, &DeviceModel::of(&problem.trace.device)).total_us;
        let best = BuiltIn::FIXED
            .map(|scheduler| us(&scheduler.schedule(&problem).unwrap()))
            .into_iter()
            .fold(f64::MAX, f64::min);
        assert!(us(&winner.schedule) <= best * 1.000_001, "{model}: {} and {best}", us(&winner.schedule));
        assert!(winner.findings.ranking.is_sorted_by(|a, b| a.1 <= b.1));
        assert!(winner.findings.drift.abs() < 0.01);
        for scheduler in BuiltIn::FIXED {
            assert!(
                winner.findings.ranking.iter().any(|(name, _)| *name == scheduler.name()),
                "{scheduler} is not in the ranking"
            );
        }
    }
}

#[test]
fn the_seed_determines_the_mutations() {
    let (_, prepared) = recorded("native-googlenet-f32");
    let problem = prepared.problem();
    let run = |seed| search(&problem, &mut noisy(&problem), &tuning(16, seed)).unwrap();
    let (a, b) = (run(7), run(7));
    assert_eq!((a.schedule, a.findings), (b.schedule, b.findings));
    let mut random = fastrand::Rng::with_seed(1);
    let mut other = fastrand::Rng::with_seed(2);
    let base = BuiltIn::Opara.schedule(&problem).unwrap();
    let (one, two) =
        (neighbours::mutate(&problem, &base, &mut random), neighbours::mutate(&problem, &base, &mut other));
    assert_ne!(one.unwrap(), two.unwrap());
}

#[test]
fn progress_ends_at_one() {
    let (_, prepared) = recorded("native-deepfm-f32");
    let problem = prepared.problem();
    let seen = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let log = seen.clone();
    let progress: OnProgress = Arc::new(move |at: &Progress| log.lock().push(*at));
    search(&problem, &mut noisy(&problem), &Search { progress: Some(progress), ..tuning(8, 0) }).unwrap();
    let seen = seen.lock();
    assert!(seen.is_sorted_by(|a, b| a.share <= b.share && a.tried <= b.tried));
    assert_eq!(seen.last().map(|at| at.share), Some(1.));
}

#[test]
fn a_budget_of_zero_still_gives_the_best_scheduler() {
    let (_, prepared) = recorded("native-deepfm-f32");
    let problem = prepared.problem();
    let tuning = Search { budget: Duration::ZERO, ..tuning(1000, 0) };
    let winner = search(&problem, &mut noisy(&problem), &tuning).unwrap();
    prepared.check(&winner.schedule).unwrap();
    assert_eq!(winner.findings.ranking.len(), BuiltIn::FIXED.len());
}

#[test]
fn the_cache_returns_a_stored_plan_and_rejects_invalid_ones() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, prepared) = recorded("native-googlenet-f32");
    let problem = prepared.problem();
    let winner = search(&problem, &mut noisy(&problem), &tuning(4, 0)).unwrap();
    let cache = |trace: &Trace, driver: &str| Cache::new(folder.path(), trace, driver).unwrap();
    assert!(cache(&trace, "13000").load(&problem).is_none());
    cache(&trace, "13000").store(&winner.schedule, &winner.findings);
    let (schedule, findings) = cache(&trace, "13000").load(&problem).unwrap();
    assert_eq!((schedule, findings.cached), (winner.schedule, true));
    // Measured times and labels do not distinguish traces.
    let mut measured = trace.clone();
    measured.ops.iter_mut().for_each(|op| (op.nanos, op.label) = (Some(5), "elsewhere".into()));
    assert!(cache(&measured, "13000").load(&problem).is_some());
    // Another driver, device or trace has another plan.
    assert!(cache(&trace, "13010").load(&problem).is_none());
    let mut other = trace.clone();
    other.device.name = "another".into();
    assert!(cache(&other, "13000").load(&problem).is_none());
    let mut other = trace.clone();
    other.ops.swap_remove(3);
    assert!(cache(&other, "13000").load(&problem).is_none());

    let file = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let text = std::fs::read_to_string(&file).unwrap();
    let mut entry: serde_json::Value = serde_json::from_str(&text).unwrap();
    entry["order"][0] = entry["order"][1].clone();
    let mut foreign: serde_json::Value = serde_json::from_str(&text).unwrap();
    foreign["key"] = "another".into();
    let mut urgent: serde_json::Value = serde_json::from_str(&text).unwrap();
    urgent["urgent"] = vec![1_000_000].into();
    let damaged =
        [text[..text.len() / 2].into(), String::new(), entry.to_string(), foreign.to_string(), urgent.to_string()];
    for damaged in damaged {
        std::fs::write(&file, damaged).unwrap();
        assert!(cache(&trace, "13000").load(&problem).is_none());
    }
}

proptest! {
    #[test]
    fn mutations_keep_every_dependency(dag in dags(), seed in any::<u64>(), staged in any::<bool>()) {
        let graph = OpGraph::from_predecessors(dag);
        let profile = vec![OpProfile { us: 1., ..Default::default() }; graph.len()];
        let problem = Problem { trace: &Trace::default(), graph: &graph, profile: &profile };
        let scheduler = if staged { BuiltIn::Rammer } else { BuiltIn::Opara };
        let mut schedule = scheduler.schedule(&problem).unwrap();
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..8 {
            // The constructor refuses invalid schedules.
            schedule = neighbours::mutate(&problem, &schedule, &mut random).unwrap();
            prop_assert!(schedule.urgent.is_sorted_by(|a, b| a < b));
        }
        let mut position = vec![0; graph.len()];
        schedule.order.iter().enumerate().for_each(|(at, &op)| position[op] = at);
        prop_assert!((0..graph.len()).all(|op| graph.predecessors(op).all(|p| position[p] < position[op])));
    }
}
