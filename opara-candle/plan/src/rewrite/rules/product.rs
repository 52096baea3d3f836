//! Products with a weight, and what follows them.

use super::super::graph::{strides_over, Compute, Graph, Operand, Value};
use super::Applied;
use crate::trace::{Dim, Function};

/// Activations that can be part of a product.
const ACTIVATIONS: [&str; 4] = ["relu", "gelu", "gelu_erf", "silu"];

/// Lets a sum with one number a column be part of a product with a weight.
pub(super) fn bias(graph: &mut Graph) -> Applied {
    let (users, constant, mut applied) = (graph.users(), graph.constant(), Applied::default());
    let is_constant = |graph: &Graph, operand: &Operand| match operand.value {
        Value::Input(input) => graph.inputs[input].is_weight,
        Value::Node(of) => constant[of],
    };
    for at in 0..graph.nodes.len() {
        let node = &graph.nodes[at];
        let [y, bias] = &node.operands[..] else { continue };
        let Value::Node(of) = y.value else { continue };
        let product = &graph.nodes[of];
        let is_sum = matches!(&node.compute, Compute::Recorded(Function::Binary(name)) if name == "add");
        let is_only = y.is_whole(node.len) && product.len == node.len && users[of].len() == 1;
        let (Compute::Recorded(Function::Matmul), [x, weight]) = (&product.compute, &product.operands[..]) else {
            continue;
        };
        let (Some([1, rows, inner]), Some([_, _, columns])) = (lens(x), lens(weight)) else { continue };
        let by_rows = weight.dims[1].stride == 1 && (weight.dims[2].stride == inner || columns == 1);
        let Some(strides) = strides_over(&bias.dims, &[rows, columns]) else { continue };
        let [0, stride] = strides[..] else { continue };
        let is_typed = [x, weight, bias].iter().all(|operand| graph.element(operand.value) == node.element);
        if !(is_sum && is_only && by_rows && is_typed && is_constant(graph, weight) && is_constant(graph, bias)) {
            continue;
        }
        let bias = Operand { dims: vec![Dim { len: columns, stride }], ..bias.clone() };
        let x = Operand { dims: x.dims[1..].to_vec(), ..x.clone() };
        let weight = Operand { dims: vec![weight.dims[2], weight.dims[1]], ..weight.clone() };
        let launches = product.launches + node.launches;
        let node = &mut graph.nodes[at];
        node.compute = Compute::Linear { activation: None };
        node.operands = vec![x, weight, bias];
        node.launches = launches;
        applied.times += 1;
        applied.saved += 1;
    }
    applied
}

/// Lets an activation be part of a product.
pub(super) fn activation(graph: &mut Graph) -> Applied {
    let (users, mut applied) = (graph.users(), Applied::default());
    for at in 0..graph.nodes.len() {
        let node = &graph.nodes[at];
        let (Compute::Recorded(Function::Unary(name)), [y]) = (&node.compute, &node.operands[..]) else { continue };
        let Value::Node(of) = y.value else { continue };
        let product = &graph.nodes[of];
        let is_only = y.is_whole(node.len) && product.len == node.len && users[of].len() == 1;
        let fits =
            is_only && product.compute == Compute::Linear { activation: None } && product.element == node.element;
        if !fits || !ACTIVATIONS.contains(&name.as_str()) {
            continue;
        }
        let (activation, operands) = (Some(name.clone()), product.operands.clone());
        let launches = product.launches + node.launches;
        let node = &mut graph.nodes[at];
        node.compute = Compute::Linear { activation };
        node.operands = operands;
        node.launches = launches;
        applied.times += 1;
        applied.saved += 1;
    }
    applied
}

/// The lengths of three dimensions.
fn lens(operand: &Operand) -> Option<[u64; 3]> {
    let lens: Vec<u64> = operand.dims.iter().map(|dim| dim.len).collect();
    lens.try_into().ok()
}
