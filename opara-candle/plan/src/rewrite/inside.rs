//! Where errors are told apart inside of a run that gives few numbers.

use hashbrown::HashSet;

use super::graph::{Graph, Value};

/// The nodes of at least so many floats that are read by something that leads to no such node: whatever comes behind them gives few
/// numbers. Nodes that depend on constants alone do not count.
pub fn last_of_many(graph: &Graph, least: u64) -> Vec<usize> {
    let (live, constant) = (graph.live(), graph.constant());
    let has_many =
        |at: usize| live[at] && !constant[at] && graph.nodes[at].element.is_float() && graph.nodes[at].len >= least;
    let many: Vec<usize> = (0..graph.nodes.len()).filter(|&at| has_many(at)).collect();
    let leads = graph.needed_for(many.iter().copied().map(Value::Node));
    // The user behind all nodes is an output.
    let is_last = |user: &usize| leads.get(*user).is_none_or(|leads| !leads);
    let users = graph.users();
    many.into_iter().filter(|&at| users[at].iter().any(is_last)).collect()
}

/// Whether a changed graph computes these nodes, and computes everything behind them as the original does, from them and from unchanged
/// nodes. Then candle's own operators give the results, of operands as accurate as these nodes.
pub fn is_changed_before(nodes: &[usize], original: &Graph, changed: &Graph) -> bool {
    let (live, before) = (changed.live(), changed.needed_for(nodes.iter().copied().map(Value::Node)));
    if original.outputs != changed.outputs || !nodes.iter().all(|&at| live[at]) {
        return false;
    }
    let beside: HashSet<usize> = (0..changed.nodes.len())
        .filter(|&at| live[at])
        .flat_map(|at| changed.nodes[at].given_beside().iter().copied())
        .collect();
    let is_as_recorded = |at: usize| original.nodes.get(at) == Some(&changed.nodes[at]) && !beside.contains(&at);
    // Whether the node, and all that it depends on, is as it was.
    let mut unchanged: Vec<bool> = Vec::with_capacity(changed.nodes.len());
    for (at, node) in changed.nodes.iter().enumerate() {
        let are_unchanged = node.operands.iter().all(|operand| match operand.value {
            Value::Input(_) => true,
            Value::Node(of) => unchanged[of],
        });
        unchanged.push(are_unchanged && is_as_recorded(at));
    }
    let is_known = |value: Value| match value {
        Value::Input(_) => true,
        Value::Node(of) => !before[of] || nodes.contains(&of) || unchanged[of],
    };
    let is_candles =
        |at: usize| is_as_recorded(at) && changed.nodes[at].operands.iter().all(|operand| is_known(operand.value));
    let outputs = changed.outputs.iter().all(|output| is_known(output.value));
    outputs && (0..changed.nodes.len()).filter(|&at| live[at] && !before[at]).all(is_candles)
}
