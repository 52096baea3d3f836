//! Computes graphs of values with tensors.

use candle::{Result, Tensor};
use hashbrown::HashMap;
use opara_plan::rewrite::{Graph, Value};
use opara_plan::trace::Element;

use super::evaluation::Evaluation;
pub(crate) use super::evaluation::{Arithmetic, Numbers};
use super::joined::Joined;
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
    outputs(Evaluation::new(graph, inputs, arithmetic, numbers, compute), graph)
}

/// The same as the graph says, with weights that were made before.
pub(crate) fn evaluate_joined(graph: &Graph, inputs: &[Tensor], joined: &Joined) -> Result<Vec<Tensor>> {
    let mut evaluation = Evaluation::new(graph, inputs, Arithmetic::Typed, Numbers::All, compute);
    evaluation.joined = Some(joined);
    outputs(evaluation, graph)
}

fn outputs(mut evaluation: Evaluation, graph: &Graph) -> Result<Vec<Tensor>> {
    let live = graph.live();
    let last_readers = last_readers(graph);
    for at in (0..graph.nodes.len()).filter(|&at| live[at]) {
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

/// Bytes of a weight in the order that operators need, at most: of GGUF's smallest blocks, 84 bytes for 256 elements,
/// ten bits an element.
pub(crate) fn arranged_bytes(element: Element, bytes: u64) -> u64 {
    if element == Element::U8 {
        bytes * 4
    } else {
        bytes
    }
}

/// The last node that reads each value. An output is read behind all nodes.
pub(super) fn last_readers(graph: &Graph) -> HashMap<Value, usize> {
    let live = graph.live();
    let mut last_readers: HashMap<Value, usize> = HashMap::new();
    for at in (0..graph.nodes.len()).filter(|&at| live[at]) {
        last_readers.extend(graph.nodes[at].operands.iter().map(|operand| (operand.value, at)));
    }
    last_readers.extend(graph.outputs.iter().map(|output| (output.value, graph.nodes.len())));
    last_readers
}
