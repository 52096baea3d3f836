//! Computes graphs of values with tensors.

use candle::{Result, Tensor};
use opara_plan::rewrite::{Graph, Value};

use super::evaluation::Evaluation;
pub(crate) use super::evaluation::{Arithmetic, Numbers};
use super::operators::compute;

/// What a graph's outputs are for these inputs, of any shape: elements count in order.
///
/// # Errors
/// A graph that cannot be computed so, or an operator that failed.
pub(crate) fn evaluate(
    graph: &Graph,
    inputs: &[Tensor],
    arithmetic: Arithmetic,
    numbers: Numbers,
) -> Result<Vec<Tensor>> {
    let evaluation = &mut Evaluation::new(graph, inputs, arithmetic, numbers, compute);
    let users = graph.users();
    let live = graph.live();
    let mut last_reader = vec![None; graph.inputs.len()];
    for (at, node) in graph.nodes.iter().enumerate().filter(|(at, _)| live[*at]) {
        for operand in &node.operands {
            if let Value::Input(of) = operand.value {
                last_reader[of] = Some(at);
            }
        }
    }
    for at in (0..graph.nodes.len()).filter(|&at| live[at]) {
        evaluation.tensor(Value::Node(at))?;
        // What nobody reads any more goes.
        for operand in &graph.nodes[at].operands {
            let last = match operand.value {
                Value::Node(of) => users[of].last().copied(),
                Value::Input(of) => last_reader[of],
            };
            if last == Some(at) {
                evaluation.forget(operand.value);
            }
        }
    }
    graph.outputs.iter().map(|output| evaluation.tensor(output.value)).collect()
}
