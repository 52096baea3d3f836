//! Rows without their mean, over the root of their mean square, as candle's norms without a kernel of their own compute them.

use super::softmax::is_scalar_of_rows;
use super::Facts;
use crate::rewrite::graph::{Operand, Value};
use crate::trace::{Element, Function};

/// A norm before its weight and bias.
pub(super) struct Normalised {
    /// The operand.
    pub x: Operand,
    /// Elements of a row.
    pub columns: u64,
    /// Epsilon, added to the mean square.
    pub epsilon: f32,
    /// Whether the mean stays.
    pub is_rms: bool,
    /// The nodes that it takes and that nothing else reads.
    pub parts: Vec<usize>,
}

impl Normalised {
    /// The one that an operand is, in the type of its elements; the launches in between may be of another one.
    pub fn of(facts: &Facts, operand: &Operand) -> Option<Self> {
        let element = facts.graph.element(operand.value);
        let at = facts.only(operand)?;
        let [from, ..] = &facts.node(at).operands[..] else { return None };
        if *facts.recorded(at)? != Function::Copy {
            return Self::quotient(facts, at, element);
        }
        // A cast behind, and one before, which others may read.
        let mut found = Self::quotient(facts, facts.only(from)?, facts.graph.element(from.value))?;
        let cast = facts.whole(&found.x)?;
        let (Function::Copy, [x]) = (facts.recorded(cast)?, &facts.node(cast).operands[..]) else { return None };
        found.parts.push(at);
        // The sum and the distance of a layer norm read it, the square and the quotient of an RMS norm.
        found.parts.extend((facts.users[cast].len() == 2).then_some(cast));
        found.x = x.clone();
        (facts.graph.element(x.value) == element).then_some(found)
    }

    /// The one that a quotient is, whose launches are all of one type.
    fn quotient(facts: &Facts, at: usize, element: Element) -> Option<Self> {
        let [distance, root] = facts.binary(at, "div")?;
        let len = facts.node(at).len;
        let (squares, mut parts) = root_of_mean(facts, root, distance, len)?;
        parts.push(at);
        let Squares { columns, epsilon } = squares;
        let mut found = Self { x: distance.clone(), columns, epsilon, is_rms: true, parts };
        if let Some((x, of_mean)) = centred(facts, distance, columns) {
            found.parts.extend(of_mean);
            (found.x, found.is_rms) = (x.clone(), false);
        }
        let are_typed = found.parts.iter().all(|&part| facts.node(part).element == element);
        (are_typed && found.x.len() == len && facts.graph.element(found.x.value) == element).then_some(found)
    }
}

/// Of mean squares: elements of a row, and what is added.
struct Squares {
    columns: u64,
    epsilon: f32,
}

/// The root of the mean square of rows, repeated for each element of them, and the nodes that it is made of.
fn root_of_mean(facts: &Facts, root: &Operand, of: &Operand, len: u64) -> Option<(Squares, Vec<usize>)> {
    let Value::Node(of_root) = root.value else { return None };
    let with_epsilon = facts.only(facts.unary(of_root, "sqrt")?)?;
    let Function::Affine(1., epsilon) = *facts.recorded(with_epsilon)? else { return None };
    let (mean, sum, columns) = mean(facts, facts.only(&facts.node(with_epsilon).operands[0])?)?;
    let of_squares = facts.only(&facts.node(sum).operands[0])?;
    let fits = facts.unary(of_squares, "sqr")? == of
        && facts.users[of_root].len() == 1
        && facts.users[mean].len() == 1
        && len.is_multiple_of(columns)
        && root.first == 0
        && is_scalar_of_rows(&root.dims, len / columns, columns);
    fits.then(|| (Squares { columns, epsilon }, vec![of_root, with_epsilon, mean, sum, of_squares]))
}

/// The mean of rows that a node is: it, the sum, and the elements of a row.
fn mean(facts: &Facts, at: usize) -> Option<(usize, usize, u64)> {
    let (Function::Affine(factor, 0.), [sum]) = (facts.recorded(at)?, &facts.node(at).operands[..]) else {
        return None;
    };
    let sum = facts.only(sum)?;
    let Function::RowSum(columns) = *facts.recorded(sum)? else { return None };
    let is_mean = columns > 0 && (f64::from(*factor) * columns as f64 - 1.).abs() < 1e-6;
    is_mean.then_some((at, sum, columns))
}

/// The operand `x` of `x - mean(x)`, and the nodes of that expression.
fn centred<'a>(facts: &'a Facts, distance: &Operand, columns: u64) -> Option<(&'a Operand, [usize; 3])> {
    let at = facts.whole(distance)?;
    let [x, of_mean] = facts.binary(at, "sub")?;
    let Value::Node(of) = of_mean.value else { return None };
    let (_, sum, of_columns) = mean(facts, of)?;
    let len = facts.node(at).len;
    let fits = of_columns == columns
        && of_mean.first == 0
        && is_scalar_of_rows(&of_mean.dims, len / columns, columns)
        && facts.node(sum).operands[..] == [x.clone()]
        && facts.users[of].len() == 1
        // It is squared and divided.
        && facts.users[at].len() == 2;
    fits.then_some((x, [at, of, sum]))
}
