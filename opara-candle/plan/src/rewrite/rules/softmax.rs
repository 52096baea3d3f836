//! Softmax written as maximum, difference, exponential, sum and quotient.

use super::super::graph::{strides_over, Compute, Graph, Node, Operand, Value};
use super::Applied;
use crate::trace::{Dim, Function};

/// Rejoins the five.
pub(super) fn apply(graph: &mut Graph) -> Applied {
    let (users, mut applied) = (graph.users(), Applied::default());
    for at in 0..graph.nodes.len() {
        let Some((operand, columns, launches)) = joined(graph, &users, at) else { continue };
        let node = &mut graph.nodes[at];
        node.compute = Compute::Recorded(Function::Softmax(columns));
        node.operands = vec![operand];
        applied.times += 1;
        applied.saved += launches - node.launches;
        node.launches = launches;
    }
    applied
}

/// The operand of the softmax that this quotient is, its columns, and the launches that it stands for.
fn joined(graph: &Graph, users: &[Vec<usize>], at: usize) -> Option<(Operand, u64, usize)> {
    let is = |node: &Node, binary: &str| matches!(&node.compute, Compute::Recorded(Function::Binary(name)) if name == binary);
    let whole = |operand: &Operand, len: u64| match operand.value {
        Value::Node(of) if operand.is_whole(len) && graph.nodes[of].len == len => Some(of),
        _ => None,
    };
    let quotient = &graph.nodes[at];
    let [e, sum] = &quotient.operands[..] else { return None };
    let (of_e, Value::Node(of_sum)) = (whole(e, quotient.len)?, sum.value) else { return None };
    let (exponential, sums) = (&graph.nodes[of_e], &graph.nodes[of_sum]);
    let (Compute::Recorded(Function::RowSum(columns)), [summed]) = (&sums.compute, &sums.operands[..]) else {
        return None;
    };
    let of_difference = match (&exponential.compute, &exponential.operands[..]) {
        (Compute::Recorded(Function::Unary(name)), [x]) if name == "exp" => whole(x, quotient.len)?,
        _ => return None,
    };
    let difference = &graph.nodes[of_difference];
    let [x, max] = &difference.operands[..] else { return None };
    let Value::Node(of_max) = max.value else { return None };
    let maxima = &graph.nodes[of_max];
    let (Compute::Recorded(Function::RowMax(of_columns)), [compared]) = (&maxima.compute, &maxima.operands[..]) else {
        return None;
    };
    let rows = quotient.len.checked_div(*columns)?;
    let by_rows = |operand: &Operand| operand.first == 0 && is_scalar_of_rows(&operand.dims, rows, *columns);
    let fits = is(quotient, "div")
        && is(difference, "sub")
        && columns == of_columns
        && summed == e
        && compared == x
        && x.is_run_of(quotient.len)
        && by_rows(sum)
        && by_rows(max)
        && (users[of_e].len(), users[of_sum].len(), users[of_difference].len(), users[of_max].len()) == (2, 1, 1, 1)
        && [exponential, sums, difference, maxima].iter().all(|node| node.element == quotient.element);
    let launches = [quotient, exponential, sums, difference, maxima].iter().map(|node| node.launches).sum();
    fits.then(|| (x.clone(), *columns, launches))
}

/// Whether a view repeats one element for each row.
fn is_scalar_of_rows(dims: &[Dim], rows: u64, columns: u64) -> bool {
    strides_over(dims, &[rows, columns]).is_some_and(|strides| {
        let [row, column] = strides[..] else { return false };
        (row == 1 || rows == 1) && (column == 0 || columns == 1)
    })
}
