//! Scores of attention, whatever they are written like: a product of queries and keys, and what is done to it before the softmax.

use super::facts::Facts;
use super::views::behind;
use crate::rewrite::compute::Compute;
use crate::rewrite::graph::{strides_over, Node, Operand, Value};
use crate::rewrite::scores::{Mask, Scores};
use crate::trace::{Element, Function};

/// A product of queries, `(heads, tokens, size)`, and keys, `(heads, size, tokens)`, from which scores follow.
pub(super) struct Product<'a> {
    pub q: Operand,
    pub k: Operand,
    pub scores: Scores,
    /// The operands of the factors.
    pub factors: Vec<&'a Operand>,
    /// The operands of the masks.
    pub masks: Vec<&'a Operand>,
    /// The type of the product.
    pub element: Element,
    /// Whether something is done to scores in f32 that are a product of 16 bits.
    pub is_widened: bool,
}

impl<'a> Product<'a> {
    /// The product that all of a node's results are scores of, if nothing else reads what is in between.
    pub fn behind(facts: &'a Facts, at: usize) -> Option<Self> {
        let node = facts.node(at);
        let Compute::Recorded(function) = &node.compute else { return None };
        let product = match (function, &node.operands[..]) {
            (Function::Matmul, [q, k]) => Self::of(facts, node, [q, k]),
            (Function::Affine(factor, 0.), [x]) => Self::behind_only(facts, x)?.times(*factor),
            (Function::Unary(name), [x]) if name == "neg" => Self::behind_only(facts, x)?.times(-1.),
            (Function::Unary(name), [x]) if name == "tanh" => Self::behind_only(facts, x)?.capped(),
            // Only what loses nothing: the product, if it is of 16 bits, may have more.
            (Function::Copy, [x]) if is_wide_enough(facts, node, x) => {
                Self::behind_only(facts, x).or_else(|| Self::across(facts, x))
            }
            (Function::Binary(name), [x, by]) => match name.as_str() {
                "add" => Self::added(facts, x, by, 1.).or_else(|| Self::added(facts, by, x, 1.)),
                "sub" => Self::added(facts, x, by, -1.),
                "mul" => Self::scaled(facts, x, by, false)
                    .or_else(|| Self::scaled(facts, by, x, false))
                    .or_else(|| Self::left_out(facts, x, by))
                    .or_else(|| Self::left_out(facts, by, x)),
                "div" => Self::scaled(facts, x, by, true),
                _ => None,
            },
            (Function::MaskedFill(bits), [condition, x]) => {
                let number = node.element.number(*bits)? as f32;
                Some(Self::behind_only(facts, x)?.masked(Mask::Filled { number, where_zero: false }, vec![condition]))
            }
            (Function::Where, [condition, one, other]) => Self::chosen(facts, condition, other, one, false)
                .or_else(|| Self::chosen(facts, condition, one, other, true)),
            _ => None,
        }?;
        let is_widened = product.is_widened || !product.masks.is_empty() && node.element != product.element;
        Some(Self { is_widened, ..product })
    }

    /// The same of an operand that nothing else reads.
    fn behind_only(facts: &'a Facts, scores: &'a Operand) -> Option<Self> {
        Self::behind(facts, facts.only(scores)?)
    }

    /// Of queries and keys, which some models scale before.
    fn of(facts: &'a Facts, node: &Node, [q, k]: [&Operand; 2]) -> Option<Self> {
        let [(q, of_q), (k, of_k)] = [q, k].map(|operand| unscaled(facts, operand));
        let (scores, factors, masks) = (Scores::of(1.), Vec::new(), Vec::new());
        let product = Self { q, k, scores, factors, masks, element: node.element, is_widened: false };
        [of_q, of_k].into_iter().flatten().try_fold(product, Self::scaled_by)
    }

    /// Of keys and queries: an operand that is the transposed product of all heads.
    fn across(facts: &'a Facts, x: &Operand) -> Option<Self> {
        let Value::Node(at) = x.value else { return None };
        let node = facts.node(at);
        let (Function::Matmul, [k, q]) = (facts.recorded(at)?, &node.operands[..]) else { return None };
        let ([heads, keys, _], [_, _, queries]) = (&k.dims[..], &q.dims[..]) else { return None };
        let transposed = [(heads.len, keys.len * queries.len), (queries.len, 1), (keys.len, queries.len)];
        let [shape, strides] = [transposed.map(|of| of.0), transposed.map(|(len, of)| if len == 1 { 0 } else { of })];
        let is_transposed = x.first == 0 && strides_over(&x.dims, &shape)? == strides;
        let turned = |of: &Operand| Operand { dims: vec![of.dims[0], of.dims[2], of.dims[1]], ..of.clone() };
        let found = Self::of(facts, node, [&turned(q), &turned(k)])?;
        (is_transposed && facts.users[at].len() == 1).then_some(found)
    }

    fn scaled_by(self, factor: Factor<'a>) -> Option<Self> {
        match factor {
            Factor::Number(number) => self.times(number),
            Factor::Operand { of, is_divisor } => self.times_operand(of, is_divisor),
        }
    }

    /// Times a number that is known to the module alone, or divided by it.
    fn times_operand(mut self, of: &'a Operand, is_divisor: bool) -> Option<Self> {
        let is_plain = self.scores.cap.is_none() && self.masks.is_empty();
        self.scores.are_divisors.push(is_divisor);
        self.factors.push(of);
        is_plain.then_some(self)
    }

    fn times(self, factor: f32) -> Option<Self> {
        Some(Self { scores: self.scores.times(factor)?, ..self })
    }

    fn capped(mut self) -> Option<Self> {
        let is_plain = self.scores.cap.is_none() && self.masks.is_empty();
        self.scores.cap = Some(1.);
        is_plain.then_some(self)
    }

    fn added(facts: &'a Facts, x: &'a Operand, by: &'a Operand, factor: f32) -> Option<Self> {
        Some(Self::behind_only(facts, x)?.masked(Mask::Added(factor), vec![by]))
    }

    /// Times a number, or by one.
    fn scaled(facts: &'a Facts, x: &'a Operand, by: &'a Operand, is_divisor: bool) -> Option<Self> {
        let factor = Factor::of(facts, by, is_divisor)?;
        Self::behind_only(facts, x)?.scaled_by(factor)
    }

    /// Scores but for zeros where a factor of ones and zeros has those.
    fn left_out(facts: &'a Facts, x: &'a Operand, by: &'a Operand) -> Option<Self> {
        let zeros = Mask::Filled { number: 0., where_zero: true };
        facts.is_truth(by).then_some(Self::behind_only(facts, x)?.masked(zeros, vec![by]))
    }

    /// Scores but for places that a condition chooses, where others stand.
    fn chosen(
        facts: &'a Facts,
        condition: &'a Operand,
        x: &'a Operand,
        others: &'a Operand,
        where_zero: bool,
    ) -> Option<Self> {
        let product = Self::behind_only(facts, x)?;
        Some(match facts.fill(others) {
            Some(number) => product.masked(Mask::Filled { number: number as f32, where_zero }, vec![condition]),
            None => product.masked(Mask::Replaced { where_zero }, vec![condition, others]),
        })
    }

    /// The same, and behind it what a mask does.
    pub fn masked(mut self, mask: Mask, operands: Vec<&'a Operand>) -> Self {
        self.scores.masks.push(mask);
        self.masks.extend(operands);
        self
    }
}

/// Whether a copy of all elements in their order has a type for all of them.
fn is_wide_enough(facts: &Facts, copy: &Node, from: &Operand) -> bool {
    let before = facts.graph.element(from.value);
    before.is_float() && (copy.element == before || copy.element == Element::F32)
}

/// What is multiplied.
#[derive(Clone, Copy)]
enum Factor<'a> {
    Number(f32),
    /// A number that the module holds, which the product is divided by if `is_divisor`.
    Operand {
        of: &'a Operand,
        is_divisor: bool,
    },
}

impl<'a> Factor<'a> {
    /// An operand that is one number.
    fn of(facts: &Facts, of: &'a Operand, is_divisor: bool) -> Option<Self> {
        let number = facts.fill(of).map(|number| number as f32);
        match (number, is_divisor) {
            (Some(number), true) => Some(Self::Number(1. / number)),
            (Some(number), false) => Some(Self::Number(number)),
            (None, _) => {
                let is_number = of.dims.iter().all(|dim| dim.len == 1 || dim.stride == 0);
                (is_number && facts.is_constant(of)).then_some(Self::Operand { of, is_divisor })
            }
        }
    }
}

/// An operand without the factor that it is multiplied by, if nothing else reads that product; and the factor.
fn unscaled<'a>(facts: &'a Facts, operand: &Operand) -> (Operand, Option<Factor<'a>>) {
    let before = || {
        let (Value::Node(at), 0) = (operand.value, operand.first) else { return None };
        let node = facts.node(at);
        let (from, factor) = match (facts.recorded(at)?, &node.operands[..]) {
            (Function::Affine(factor, 0.), [from]) => (from, Factor::Number(*factor)),
            (Function::Binary(name), [from, by]) if name == "mul" => (from, Factor::of(facts, by, false)?),
            (Function::Binary(name), [from, by]) if name == "div" => (from, Factor::of(facts, by, true)?),
            _ => return None,
        };
        let fits = facts.users[at].len() == 1 && facts.have_type_of(node, [from]);
        behind(operand, from).filter(|_| fits).map(|before| (before, factor))
    };
    before().map_or_else(|| (operand.clone(), None), |(before, factor)| (before, Some(factor)))
}
