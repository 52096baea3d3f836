//! Intermediate values at which a run with small outputs is judged, and what a changed graph computes downstream of them.

use hashbrown::HashSet;

use super::graph::{Graph, Value};

/// The last node on each path that has at least `least` float elements. Nodes that depend on constants alone do not count.
pub fn last_of_many(graph: &Graph, least: u64) -> Vec<usize> {
    let (live, constant) = (graph.live(), graph.constant());
    let has_many =
        |at: usize| live[at] && !constant[at] && graph.nodes[at].element.is_float() && graph.nodes[at].len >= least;
    let many: Vec<usize> = (0..graph.nodes.len()).filter(|&at| has_many(at)).collect();
    let leads = graph.needed_for(many.iter().copied().map(Value::Node));
    // A user beyond the last node is an output.
    let is_last = |user: &usize| leads.get(*user).is_none_or(|leads| !leads);
    let users = graph.users();
    many.into_iter().filter(|&at| users[at].iter().any(is_last)).collect()
}

/// How a changed graph computes the nodes downstream of some nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Downstream {
    /// As the original does, from these nodes and from unchanged ones: candle's operators compute the results, from operands as accurate
    /// as these nodes.
    AsRecorded,
    /// With other operators, from these nodes and constants alone.
    Changed,
}

/// How a changed graph computes the nodes downstream of `nodes`. `None` if it does not compute `nodes`, or if downstream nodes read other
/// changed values, or are changed and read any other value but constants.
pub fn downstream(nodes: &[usize], original: &Graph, changed: &Graph) -> Option<Downstream> {
    let (live, before) = (changed.live(), changed.needed_for(nodes.iter().copied().map(Value::Node)));
    if original.outputs != changed.outputs || !nodes.iter().all(|&at| live[at]) {
        return None;
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
    let is_behind_or_told = |value: Value| match value {
        Value::Input(at) => changed.inputs[at].is_constant,
        Value::Node(of) => !before[of] || nodes.contains(&of),
    };
    let is_unchanged = |value: Value| match value {
        Value::Input(_) => true,
        Value::Node(of) => unchanged[of],
    };
    let is_known = |value: Value| is_behind_or_told(value) || is_unchanged(value);
    let nodes_behind = (0..changed.nodes.len()).filter(|&at| live[at] && !before[at]);
    let read_behind: Vec<Value> = nodes_behind
        .clone()
        .flat_map(|at| changed.nodes[at].operands.iter().map(|operand| operand.value))
        .chain(changed.outputs.iter().map(|output| output.value))
        .collect();
    let is_changed = nodes_behind.clone().any(|at| !is_as_recorded(at));
    let is_beside = nodes_behind.clone().any(|at| beside.contains(&at));
    match is_changed {
        false if read_behind.iter().copied().all(is_known) => Some(Downstream::AsRecorded),
        true if read_behind.iter().copied().all(is_behind_or_told) && !is_beside => Some(Downstream::Changed),
        _ => None,
    }
}
