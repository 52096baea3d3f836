//! Computes graphs of values with tensors.

use candle::{Result, Tensor};
use hashbrown::HashMap;
use opara_plan::rewrite::{Graph, Value};

use super::evaluation::Evaluation;
pub(crate) use super::evaluation::{Arithmetic, Numbers};
use super::operators::compute;

/// A graph's outputs for these inputs. Inputs may have any shape: elements count in order.
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
    let live = graph.live();
    let live = || (0..graph.nodes.len()).filter(|&at| live[at]);
    let mut last_readers: HashMap<Value, usize> = HashMap::new();
    for at in live() {
        last_readers.extend(graph.nodes[at].operands.iter().map(|operand| (operand.value, at)));
    }
    // An output is read behind all nodes.
    last_readers.extend(graph.outputs.iter().map(|output| (output.value, graph.nodes.len())));
    for at in live() {
        evaluation.tensor(Value::Node(at))?;
        // What nobody reads any more goes.
        for operand in &graph.nodes[at].operands {
            if last_readers.get(&operand.value) == Some(&at) {
                evaluation.forget(operand.value);
            }
        }
    }
    graph.outputs.iter().map(|output| evaluation.tensor(output.value)).collect()
}

/// A graph's outputs for these inputs, given the values of some nodes.
///
/// # Errors
/// As for [`evaluate`].
pub(super) fn evaluate_downstream(
    known: &[(usize, Tensor)],
    graph: &Graph,
    inputs: &[Tensor],
    arithmetic: Arithmetic,
    numbers: Numbers,
) -> Result<Vec<Tensor>> {
    let evaluation = &mut Evaluation::new(graph, inputs, arithmetic, numbers, compute);
    for (at, value) in known {
        evaluation.assume(Value::Node(*at), value.to_dtype(arithmetic.dtype(graph.nodes[*at].element))?);
    }
    graph.outputs.iter().map(|output| evaluation.tensor(output.value)).collect()
}
