use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::graph::reduce::tests::dags;
use crate::schedule::tests::block;

fn op(us: f64, share: f64) -> OpProfile {
    OpProfile { us, share, ..Default::default() }
}

/// DAGs small enough to try all stages.
fn small() -> impl Strategy<Value = OpGraph> {
    (1usize..7).prop_flat_map(|n| (0..n).map(|v| prop::collection::vec(any::<bool>(), v)).collect::<Vec<_>>()).prop_map(
        |rows| {
            let ends = |row: Vec<bool>| row.into_iter().enumerate().filter_map(|(p, on)| on.then_some(p)).collect();
            OpGraph::from_predecessors(rows.into_iter().map(ends).collect())
        },
    )
}

fn singles(graph: &OpGraph) -> Vec<Vec<OpId>> {
    (0..graph.len()).map(|op| vec![op]).collect()
}

/// Connected components, by merging neighbours until nothing changes.
fn connected(graph: &OpGraph, ops: &[OpId]) -> Stage {
    let mut part: Vec<usize> = (0..graph.len()).collect();
    for _ in 0..graph.len() {
        for &op in ops {
            for p in graph.predecessors(op).filter(|p| ops.contains(p)) {
                let least = part[op].min(part[p]);
                (part[op], part[p]) = (least, least);
            }
        }
    }
    let names: BTreeSet<usize> = ops.iter().map(|&op| part[op]).collect();
    names.iter().map(|&name| ops.iter().copied().filter(|&op| part[op] == name).collect()).collect()
}

/// The smallest cost of all sequences of stages over the ops that are not done yet.
fn by_brute_force(graph: &OpGraph, done: u32, pruning: Pruning, cost: &impl Fn(&Stage) -> f64) -> f64 {
    let is = |set: u32, op: usize| set >> op & 1 == 1;
    if done.count_ones() as usize == graph.len() {
        return 0.;
    }
    let firsts = (1u32..1 << graph.len()).filter(|&first| {
        let met = |op: usize| graph.predecessors(op).all(|p| is(done | first, p));
        first & done == 0 && (0..graph.len()).all(|op| !is(first, op) || met(op))
    });
    let costs = firsts.filter_map(|first| {
        let stage = connected(graph, &(0..graph.len()).filter(|&op| is(first, op)).collect::<Vec<_>>());
        let allowed = stage.len() <= pruning.max_groups && stage.iter().all(|group| group.len() <= pruning.max_group);
        allowed.then(|| cost(&stage) + by_brute_force(graph, done | first, pruning, cost))
    });
    costs.fold(f64::INFINITY, f64::min)
}

/// An arbitrary cost; a stage always has the same.
fn arbitrary(seed: u64) -> impl Fn(&Stage) -> f64 {
    move |stage| {
        let mut stage = stage.clone();
        stage.iter_mut().for_each(|group| group.sort_unstable());
        stage.sort_unstable();
        let mix = |hash: u64, op: usize| (hash ^ op as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        (stage.iter().flat_map(|group| group.iter().copied().chain([99])).fold(seed, mix) % 100) as f64
    }
}

#[test]
fn stages_of_a_block_by_hand() {
    // Branches that fill a quarter of the device each are one stage between the first op and the last one.
    let profile = [op(4., 0.25); 9];
    let found = stages(&block(), Pruning::default(), modelled(&profile));
    assert_eq!(found, [vec![vec![0]], vec![vec![1], vec![2, 5], vec![3, 6], vec![4, 7]], vec![vec![8]]]);
    let schedule = Schedule::from_stages(&block(), &found).unwrap();
    assert_eq!(schedule.barriers, [8], "the branches wait for op 0 by themselves");
}

#[test]
fn pruning_bounds_groups_and_stages() {
    let profile = [op(4., 0.); 9];
    for (max_group, max_groups) in [(1, 8), (3, 1), (1, 1), (0, 0)] {
        let found = stages(&block(), Pruning { max_group, max_groups }, modelled(&profile));
        assert!(found.iter().all(|stage| stage.len() <= max_groups.max(1)), "{found:?}");
    }
}

#[test]
fn a_stage_costs_its_longest_group_or_the_time_that_it_fills_the_device() {
    let profile = [op(3., 0.5), op(4., 0.5), op(5., 1.)];
    let cost = modelled(&profile);
    assert_eq!(cost(&vec![vec![0, 1]]), 7. + BARRIER_US);
    assert_eq!(cost(&vec![vec![0], vec![1]]), 4. + BARRIER_US);
    assert_eq!(cost(&vec![vec![0], vec![2]]), 6.5 + BARRIER_US);
}

#[test]
fn a_network_is_cut_where_it_narrows() {
    let graph = OpGraph::from_predecessors(vec![vec![], vec![0], vec![0], vec![1, 2], vec![], vec![3, 4]]);
    assert_eq!(blocks(&graph), [0..1, 1..4, 4..6]);
    let skip = OpGraph::from_predecessors(vec![vec![], vec![0], vec![], vec![2], vec![1, 3]]);
    assert_eq!(blocks(&skip).len(), 1, "two branches start at the input");
    assert_eq!(by_level(&skip, 0..5), [0, 2, 1, 3, 4]);
    assert_eq!(
        sequences(&block(), &(0..9).collect::<Vec<_>>()),
        [vec![0], vec![1], vec![2, 5], vec![3, 6], vec![4, 7], vec![8]]
    );
}

#[test]
fn a_constant_is_put_before_its_reader() {
    // 4 depends on nothing and is needed at the end of the chain 0-1-2-3-5.
    let graph = OpGraph::from_predecessors(vec![vec![], vec![0], vec![1], vec![2], vec![], vec![3, 4]]);
    assert_eq!(blocks(&graph), [0..1, 1..2, 2..3, 3..4, 4..6]);
    assert_eq!(by_level(&graph, 0..6), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn wide_and_long_blocks_are_cut_in_parts() {
    let wide: Vec<Vec<OpId>> = (0..300).map(|op| if op == 0 { vec![] } else { vec![0] }).collect();
    let tangled: Vec<Vec<OpId>> =
        (0..300usize).map(|op| (op.saturating_sub(9)..op.saturating_sub(5)).collect()).collect();
    for dag in [wide, tangled] {
        let graph = OpGraph::from_predecessors(dag);
        let profile = vec![op(4., 0.1); graph.len()];
        let found = stages(&graph, Pruning::default(), modelled(&profile));
        assert!(found.iter().any(|stage| stage.len() > 1));
        Schedule::from_stages(&graph, &found).unwrap();
    }
}

proptest! {
    #[test]
    fn no_stages_cost_less(graph in small(), seed: u64, max_group in 1usize..5, max_groups in 1usize..4) {
        let pruning = Pruning { max_group, max_groups };
        let mut cost = arbitrary(seed);
        let mut search = StageSearch::new(&graph, singles(&graph), pruning, &mut cost).unwrap();
        let least = search.solve(search.all()).unwrap();
        let found = search.stages();
        prop_assert_eq!(found.iter().map(arbitrary(seed)).sum::<f64>(), least);
        prop_assert_eq!(by_brute_force(&graph, 0, pruning, &arbitrary(seed)), least);
    }

    #[test]
    fn every_op_is_in_one_stage_after_its_dependencies(dag in dags(), times in prop::collection::vec(1f64..9., 40)) {
        let graph = OpGraph::from_predecessors(dag);
        let profile: Vec<OpProfile> = times.iter().map(|&us| op(us, us / 10.)).collect();
        let found = stages(&graph, Pruning::default(), modelled(&profile));
        prop_assert!(Schedule::from_stages(&graph, &found).is_ok(), "{:?}", found);
        prop_assert!(found.iter().all(|stage| connected(&graph, &stage.concat()).len() == stage.len()));
    }
}
