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
    for at in (0..graph.nodes.len()).filter(|&at| live[at]) {
        evaluation.tensor(Value::Node(at))?;
        // What nobody reads any more goes.
        for operand in &graph.nodes[at].operands {
            if let Value::Node(of) = operand.value {
                if users[of].last() == Some(&at) {
                    evaluation.forget(operand.value);
                }
            }
        }
    }
    graph.outputs.iter().map(|output| evaluation.tensor(output.value)).collect()
}
