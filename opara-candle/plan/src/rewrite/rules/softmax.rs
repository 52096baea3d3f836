//! Softmax written as maximum, difference, exponential, sum and quotient.

use super::{Facts, Replacement};
use crate::rewrite::graph::{strides_over, Compute, Node, Operand, Value};
use crate::trace::{Dim, Function};

/// Rejoins the five.
pub(super) fn at(facts: &Facts, at: usize) -> Option<Replacement> {
    let [e, sum] = facts.binary(at, "div")?;
    let (quotient, of_e, Value::Node(of_sum)) = (facts.node(at), facts.whole(e)?, sum.value) else { return None };
    let (Function::RowSum(columns), [summed]) = (facts.recorded(of_sum)?, &facts.node(of_sum).operands[..]) else {
        return None;
    };
    let of_difference = facts.whole(facts.unary(of_e, "exp")?)?;
    let [x, max] = facts.binary(of_difference, "sub")?;
    let Value::Node(of_max) = max.value else { return None };
    let (Function::RowMax(of_columns), [compared]) = (facts.recorded(of_max)?, &facts.node(of_max).operands[..]) else {
        return None;
    };
    let rows = quotient.len.checked_div(*columns)?;
    let by_rows = |operand: &Operand| operand.first == 0 && is_scalar_of_rows(&operand.dims, rows, *columns);
    let parts = [of_e, of_sum, of_difference, of_max];
    let fits = columns == of_columns
        && summed == e
        && compared == x
        && x.is_run_of(quotient.len)
        && by_rows(sum)
        && by_rows(max)
        && parts.map(|part| facts.users[part].len()) == [2, 1, 1, 1]
        && parts.iter().all(|&part| facts.node(part).element == quotient.element);
    let saved = parts.iter().map(|&part| facts.node(part).launches).sum();
    let (compute, launches) = (Compute::Recorded(Function::Softmax(*columns)), quotient.launches + saved);
    let node = || Node { compute, operands: vec![x.clone()], launches, ..quotient.clone() };
    fits.then(|| Replacement { node: node(), saved })
}

/// Whether a view repeats one element for each row.
pub(super) fn is_scalar_of_rows(dims: &[Dim], rows: u64, columns: u64) -> bool {
    strides_over(dims, &[rows, columns]).is_some_and(|strides| {
        let [row, column] = strides[..] else { return false };
        (row == 1 || rows == 1) && (column == 0 || columns == 1)
    })
}
