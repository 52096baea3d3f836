//! Computations of one token as those of several.

use super::compute::{Compute, ProductEnd};
use super::graph::Operand;
use crate::trace::{Dim, Function, Indexed, Rotary};

/// An operand of one token, in a graph of several.
pub(super) struct Part {
    pub operand: Operand,
    /// Does it differ from token to token?
    pub differs: bool,
    /// Elements from one token to the next.
    pub apart: u64,
}

/// The computation of all tokens.
pub(super) struct Made {
    pub compute: Compute,
    pub operands: Vec<Operand>,
    /// If tokens do not come to lie outside of all: how many elements of each lie together.
    pub behind: Option<u64>,
}

impl Part {
    fn same(&self) -> Operand {
        self.operand.clone()
    }

    /// All tokens, in one dimension more.
    pub fn beside(&self, tokens: u64) -> Operand {
        let mut made = self.operand.clone();
        made.dims.insert(0, Dim { len: tokens, stride: self.apart });
        made
    }

    /// All tokens, whose rows, along a dimension, lie below each other.
    fn below(&self, tokens: u64, along: usize) -> Result<Operand, String> {
        let mut made = self.operand.clone();
        let dim = made.dims.get_mut(along).ok_or("rows of no dimension")?;
        *dim = match *dim {
            Dim { len: 1, .. } => Dim { len: tokens, stride: self.apart },
            Dim { len, stride } if len * stride == self.apart => Dim { len: tokens * len, stride },
            _ => return Err("several rows of a token that do not follow one another".into()),
        };
        Ok(made)
    }
}

/// A computation of several tokens.
///
/// # Errors
/// What is not known of several tokens.
pub(super) fn of_tokens(compute: &Compute, parts: &[Part], tokens: u64) -> Result<Made, String> {
    let unknown = || format!("{compute:?}, which is not known of several tokens");
    let made = |compute, operands| Ok(Made { compute, operands, behind: None });
    let all = || parts.iter().map(|part| part.beside(tokens)).collect::<Vec<_>>();
    // Rows are the first operand's alone, and those of the last ones.
    let rows = |last: usize| -> Result<Vec<Operand>, String> {
        let behind = parts.len() - last;
        if parts[1..behind].iter().any(|part| part.differs) {
            return Err(unknown());
        }
        let mut operands = vec![parts[0].below(tokens, 0)?];
        operands.extend(parts[1..behind].iter().map(Part::same));
        operands.extend(parts[behind..].iter().map(|part| part.beside(tokens)));
        Ok(operands)
    };
    match compute {
        Compute::Recorded(function) => recorded(function, parts, tokens)?.ok_or_else(unknown),
        Compute::Concat { rows, widths } => {
            made(Compute::Concat { rows: rows * tokens, widths: widths.clone() }, all())
        }
        Compute::RowMean { .. } => made(compute.clone(), all()),
        Compute::RowNorm { .. } => made(compute.clone(), beside_vectors(parts, 1, tokens).ok_or_else(unknown)?),
        Compute::NormOfSum { .. } | Compute::SumBesideNorm { .. } => {
            made(compute.clone(), beside_vectors(parts, 2, tokens).ok_or_else(unknown)?)
        }
        Compute::Linear { .. }
        | Compute::ProductConcat { .. }
        | Compute::ProductsOfOne { .. }
        | Compute::Gated { .. } => made(compute.clone(), rows(0)?),
        Compute::QuantizedProduct { end, .. } => {
            made(compute.clone(), rows(usize::from(matches!(end, ProductEnd::Sum)))?)
        }
        Compute::CachedAttention { .. } => {
            let new = parts[..3].iter().map(|part| part.beside(tokens));
            made(compute.clone(), new.chain(parts[3..].iter().map(Part::same)).collect())
        }
        // Tokens are queries of the same keys.
        Compute::Attention(scores) => {
            let (of_heads, others) = parts.split_at(3);
            let (factors, masks) = others.split_at(scores.are_divisors.len());
            let [q, k, v] = of_heads else { return Err(unknown()) };
            let queries = q.operand.dims.len().checked_sub(2).ok_or_else(unknown)?;
            if k.differs || v.differs || !q.differs || factors.iter().any(|part| part.differs) {
                return Err(unknown());
            }
            let mut operands = vec![query(q, queries, tokens)?, k.same(), v.same()];
            operands.extend(factors.iter().map(Part::same));
            let places = k.operand.dims.iter().rev().nth(1).ok_or_else(unknown)?.len;
            for part in masks {
                operands.push(mask(part, places, tokens)?);
            }
            let behind = v.operand.dims.last().map(|dim| dim.len);
            Ok(Made { compute: compute.clone(), operands, behind })
        }
        _ => Err(unknown()),
    }
}

/// The first operands of all tokens; the others are vectors that tokens have in common.
fn beside_vectors(parts: &[Part], first: usize, tokens: u64) -> Option<Vec<Operand>> {
    let (rows, vectors) = parts.split_at_checked(first)?;
    let operands = rows.iter().map(|part| part.beside(tokens)).chain(vectors.iter().map(Part::same));
    (!vectors.iter().any(|part| part.differs)).then(|| operands.collect())
}

/// An operand of attention, with the tokens in the place of its one query.
fn query(part: &Part, along: usize, tokens: u64) -> Result<Operand, String> {
    match part.operand.dims.get(along) {
        Some(Dim { len: 1, .. }) => part.below(tokens, along),
        _ => Err("attention of several queries".into()),
    }
}

/// A mask of attention to so many places, for all tokens. The dimension of its one query may have been left out.
fn mask(part: &Part, places: u64, tokens: u64) -> Result<Operand, String> {
    match part.operand.dims[..] {
        [.., Dim { len: 1, .. }, _] => part.below(tokens, part.operand.dims.len() - 2),
        [.., Dim { len, .. }] if len == places => {
            let mut made = part.operand.clone();
            made.dims.insert(made.dims.len() - 1, Dim { len: tokens, stride: part.apart });
            Ok(made)
        }
        _ => Err("a mask of several queries".into()),
    }
}

/// A recorded function of several tokens, if it is known.
fn recorded(function: &Function, parts: &[Part], tokens: u64) -> Result<Option<Made>, String> {
    let all = || parts.iter().map(|part| part.beside(tokens)).collect::<Vec<_>>();
    let indexed = |of: &Indexed| Indexed { left: of.left * tokens, ..*of };
    let differ: Vec<bool> = parts.iter().map(|part| part.differs).collect();
    let mut behind = None;
    let (function, operands) = match function {
        Function::Copy
        | Function::Unary(_)
        | Function::Binary(_)
        | Function::Affine(..)
        | Function::Where
        | Function::MaskedFill(_)
        | Function::RowSum(_)
        | Function::RowMax(_)
        | Function::RowMin(_)
        | Function::Softmax(_)
        | Function::ArgSort(..)
        | Function::ArgMax(_)
        | Function::ArgMin(_) => (function.clone(), all()),
        Function::LayerNorm(..) | Function::RmsNorm(..) => match beside_vectors(parts, 1, tokens) {
            Some(operands) => (function.clone(), operands),
            None => return Ok(None),
        },
        Function::Matmul if differ == [true, false] && parts[0].operand.dims.len() == 3 => {
            let [batch, rows, _] = parts[0].operand.dims[..] else { return Ok(None) };
            let a = match (batch.len, rows.len) {
                // Rows of the tokens below each other.
                (1, _) => parts[0].below(tokens, 1)?,
                // Those of each matrix.
                (_, 1) => {
                    behind = parts[1].operand.dims.last().map(|dim| dim.len);
                    parts[0].below(tokens, 1)?
                }
                _ => return Ok(None),
            };
            (Function::Matmul, vec![a, parts[1].same()])
        }
        Function::Matmul if differ == [true, true] => (Function::Matmul, all()),
        Function::QuantizedProduct(_) if differ == [true, false] => {
            (function.clone(), vec![parts[0].below(tokens, 0)?, parts[1].same()])
        }
        Function::IndexSelect { left: 1, .. } if differ == [false, true] => {
            (function.clone(), vec![parts[0].same(), parts[1].beside(tokens)])
        }
        &Function::IndexSelect { left, from, right } if differ == [true, false] => {
            let select = Function::IndexSelect { left: left * tokens, from, right };
            (select, vec![parts[0].beside(tokens), parts[1].same()])
        }
        Function::Gather(of) if differ == [true, true] => (Function::Gather(indexed(of)), all()),
        Function::ScatterAdd(of) => (Function::ScatterAdd(indexed(of)), all()),
        Function::Scatter(of) => (Function::Scatter(indexed(of)), all()),
        Function::Rotary(of) if differ == [true; 3] => {
            let rotary = Rotary { outer: of.outer * tokens, angles: of.angles.max(1) * tokens, ..*of };
            if of.heads != 1 && rotary.outer != rotary.angles {
                return Ok(None);
            }
            (Function::Rotary(rotary), all())
        }
        _ => return Ok(None),
    };
    Ok(Some(Made { compute: Compute::Recorded(function), operands, behind }))
}
