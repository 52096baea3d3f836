//! What holds for every rule: the graphs of all tests here are held to it, and recorded models.

use std::path::Path;

use hashbrown::HashSet;
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

/// Rules that read what was padded or repeated where it was before, whoever reads the result. Others do so behind copies alone.
const READ_BEHIND: [&str; 3] = ["convolution-padding", "pool-padding", "grouped-heads"];

/// The graph that one rule makes of another, if it is refused at these nodes, and what fitted.
fn changed(graph: &Graph, rule: &'static str, refused: impl Iterator<Item = usize>) -> (Graph, Vec<rules::Match>) {
    let mut changed = graph.clone();
    let others: Vec<&str> = rules::RULES.iter().map(|of| of.name).filter(|name| *name != rule).collect();
    let fits = rules::apply(&mut changed, &others, &refused.map(|at| (rule, at)).collect());
    (changed, fits)
}

/// How many launches compute what a graph's outputs depend on.
fn launches(graph: &Graph) -> usize {
    let given: HashSet<usize> = graph.nodes.iter().flat_map(Node::given_beside).copied().collect();
    let live = graph.live();
    let own = (0..graph.nodes.len()).filter(|at| live[*at] && !given.contains(at));
    own.map(|at| graph.nodes[at].launches()).sum()
}

/// Checks that no rule adds launches, that each saves what it says, and that none matches a formula of which something else reads a value in
/// between, one of these.
pub(super) fn check(graph: &Graph, values: impl Fn(&[usize]) -> Vec<usize>) {
    let mut graph = graph.clone();
    for rule in rules::RULES.iter().map(|rule| rule.name) {
        let (after, fits) = changed(&graph, rule, std::iter::empty());
        let saved: usize = fits.iter().map(|fit| fit.saved).sum();
        assert_eq!(launches(&graph).checked_sub(launches(&after)), Some(saved), "{rule}");
        for at in values(&fits.iter().map(|fit| fit.at).collect::<Vec<_>>()) {
            let others = || (0..graph.nodes.len()).filter(|&other| other != at);
            let alone = changed(&graph, rule, others()).0;
            let (before, after) = (graph.live(), alone.live());
            // Who reads a copy, or a number, may as well read it before.
            let is_copy =
                |at: &usize| matches!(graph.nodes[*at].compute, Compute::Recorded(Function::Copy | Function::Fill(_)));
            let removed = (0..before.len()).filter(|&at| before[at] && !after[at]).filter(|at| !is_copy(at));
            for removed in values(&removed.collect::<Vec<_>>()) {
                let mut elsewhere = graph.clone();
                elsewhere.outputs.push(Output { value: Value::Node(removed), buffer: 99 });
                let is_same = changed(&elsewhere, rule, others()).0.nodes[at] == alone.nodes[at];
                assert!(!is_same || READ_BEHIND.contains(&rule), "{rule} at {at} although {removed} is read elsewhere");
            }
        }
        graph = after;
    }
}

fn recorded(model: &str) -> Graph {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/meanings/{model}.trace"));
    let all = regions(&Trace::load(file).unwrap()).into_iter().map(|region| region.graph);
    all.max_by_key(|graph| graph.nodes.len()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Recorded models of which any values are read elsewhere.
    #[test]
    fn laws_hold_for_recorded_models(model in 0..4usize, elsewhere: [Index; 3], one: Index) {
        let mut graph = recorded(["bert-base-f16", "dinov2-small-f16", "eva2-base-f16", "qwen2-0.5b-f16"][model]);
        for at in elsewhere {
            let value = Value::Node(at.index(graph.nodes.len()));
            graph.outputs.push(Output { value, buffer: 98 });
        }
        check(&graph, |all| all.iter().copied().skip(one.index(all.len().max(1))).take(1).collect());
    }
}
