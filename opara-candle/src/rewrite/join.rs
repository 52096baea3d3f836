//! Joins the weights of a graph's nodes.

use candle::{Result, Tensor};
use opara_plan::rewrite::{Compute, Graph, Node, Operand, Value};

use super::evaluation::{Arithmetic, Evaluation, Numbers};
use super::joined::{weights, Joined};
use super::quantized::of_blocks;

/// The weights of a graph that are joined, or lie in another order, if they are inputs. No other inputs are read.
pub(crate) fn join(graph: &Graph, inputs: &[Tensor]) -> Result<Joined> {
    let no_node = |_: &mut Evaluation, node: &Node| candle::bail!("{:?} is no weight", node.compute);
    let mut evaluation = Evaluation::new(graph, inputs, Arithmetic::Typed, Numbers::All, no_node);
    let (mut joined, live) = (Joined::default(), graph.live());
    for (_, node) in graph.nodes.iter().enumerate().filter(|(at, _)| live[*at]) {
        let operands = weights(node);
        let is_input = |operand: &Operand| matches!(operand.value, Value::Input(at) if graph.inputs[at].is_constant);
        if operands.is_empty() || !operands.iter().all(is_input) {
            continue;
        }
        match node.compute {
            Compute::QuantizedProduct { blocks, .. } if joined.of_blocks(&operands).is_none() => {
                let weight = of_blocks(&mut evaluation, blocks, &operands)?;
                joined.keep_of_blocks(operands, weight);
            }
            Compute::QuantizedProduct { .. } => {}
            _ if joined.dense(&operands).is_none() => {
                let weight = below(&mut evaluation, &operands)?;
                joined.keep(operands, weight);
            }
            _ => {}
        }
        // They are views of inputs, of which nothing is to be kept.
        node.operands.iter().for_each(|operand| evaluation.forget(operand.value));
    }
    Ok(joined)
}

/// The weights of a node, below each other.
pub(super) fn joined(of: &mut Evaluation, node: &Node) -> Result<Tensor> {
    let operands = weights(node);
    match of.joined.and_then(|known| known.dense(&operands)) {
        Some(known) => Ok(known.clone()),
        None => below(of, &operands),
    }
}

/// Tensors below each other.
pub(super) fn below<'a>(of: &mut Evaluation, operands: impl IntoIterator<Item = &'a Operand>) -> Result<Tensor> {
    let parts = operands.into_iter().map(|operand| of.own(operand)?.contiguous()).collect::<Result<Vec<_>>>()?;
    Tensor::cat(&parts, 0)
}
