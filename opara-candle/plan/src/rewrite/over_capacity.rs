//! What is computed of values that grow with the text, over all places that there is room for.

use super::compute::{ByPosition, Compute};
use super::graph::Node;
use super::scores::{Mask, Scores};
use super::stretch::{Extent, Stretched};
use crate::trace::Function;

/// A node over all places.
pub(super) struct Over {
    pub compute: Compute,
    pub len: u64,
    /// Operands whose places behind the new token count as a number.
    pub ends: Vec<(usize, ByPosition)>,
    /// How the result grows, if it does.
    pub extent: Option<Extent>,
}

/// The node that stands for both, of these operands, if it is known what places behind the new token do to its result: they give elements
/// behind it, or count as numbers that change nothing.
pub(super) fn over_capacity(node: &Node, other: &Node, operands: &[Stretched]) -> Result<Over, String> {
    let of = Pair { node, other, operands };
    match (&node.compute, &other.compute) {
        (Compute::Recorded(a), Compute::Recorded(b)) => of.recorded(a, b),
        (Compute::Concat { rows, widths }, Compute::Concat { rows: other_rows, widths: others }) => {
            of.concat([*rows, *other_rows], [widths, others])
        }
        (Compute::RowNorm { columns, .. }, same) | (Compute::NormOfSum { columns, .. }, same)
            if *same == node.compute =>
        {
            of.rows(*columns)
        }
        (Compute::Linear { .. }, same) if *same == node.compute => of.linear(),
        (Compute::Attention(scores), same) if *same == node.compute => of.attention(scores.clone()),
        _ => Err(of.unknown()),
    }
}

/// Can places behind the new token be hidden by the only mask, which is added?
pub(super) fn can_hide(scores: &Scores, masks: &[Stretched]) -> bool {
    matches!((&scores.masks[..], masks), ([Mask::Added(factor)], [mask]) if *factor > 0. && mask.grows_last())
}

struct Pair<'a> {
    node: &'a Node,
    other: &'a Node,
    operands: &'a [Stretched],
}

impl Pair<'_> {
    fn recorded(&self, a: &Function, b: &Function) -> Result<Over, String> {
        let fixed = |columns: u64| if a == b { self.rows(columns) } else { Err(self.unknown()) };
        let is_last = self.operands.first().is_some_and(Stretched::grows_last);
        match (a, b) {
            (Function::Copy | Function::Unary(_) | Function::Binary(_) | Function::Affine(..), same) if a == same => {
                self.by_elements(matches!(a, Function::Copy | Function::Affine(_, 0.)))
            }
            (Function::Where | Function::MaskedFill(_), same) if a == same => self.by_elements(false),
            (Function::Softmax(x), Function::Softmax(y)) if is_last && x != y => {
                let extent = self.extent(1, true)?;
                let compute = |room| Function::Softmax(room);
                Ok(Over {
                    extent: Some(extent),
                    len: extent.len(),
                    ..self.reduced([*x, *y], compute, f32::NEG_INFINITY)?
                })
            }
            (Function::RowSum(x), Function::RowSum(y)) if is_last && x != y => {
                self.reduced([*x, *y], Function::RowSum, 0.)
            }
            (Function::RowMax(x), Function::RowMax(y)) if is_last && x != y => {
                self.reduced([*x, *y], Function::RowMax, f32::NEG_INFINITY)
            }
            (Function::RowMin(x), Function::RowMin(y)) if is_last && x != y => {
                self.reduced([*x, *y], Function::RowMin, f32::INFINITY)
            }
            (Function::Softmax(columns) | Function::LayerNorm(columns, _) | Function::RmsNorm(columns, _), _) => {
                fixed(*columns)
            }
            (Function::Matmul, Function::Matmul) => self.matmul(),
            (&Function::IndexSelect { left: 1, right, .. }, same) if a == same => self.chosen(right),
            _ => Err(self.unknown()),
        }
    }

    fn unknown(&self) -> String {
        let (a, b) = (&self.node.compute, &self.other.compute);
        format!("what it computes, {a:?} and {b:?}, which is not known over the places of a cache")
    }

    /// The result of as many elements as the first operand that grows, each `by` of them one.
    fn extent(&self, by: u64, ends_as_zeros: bool) -> Result<Extent, String> {
        let grown = self.operands.iter().find(|operand| operand.grows.is_some()).ok_or("what it reads")?;
        let [rows, step] = grown.around().ok_or("what it reads")?;
        let room = grown.operand.dims[grown.grows.unwrap_or(0)].len;
        let step = if step.is_multiple_of(by) { step / by } else { return Err(self.unknown()) };
        Ok(Extent { rows, step, places: grown.tokens, tokens: grown.tokens, room, ends_as_zeros })
    }

    fn over(&self, compute: Compute, extent: Extent, ends: Vec<(usize, ByPosition)>) -> Result<Over, String> {
        let lens = [0, 1].map(|text| extent.rows * extent.places[text] * extent.step);
        if lens != [self.node.len, self.other.len] {
            return Err(self.unknown());
        }
        Ok(Over { compute, len: extent.len(), ends, extent: Some(extent) })
    }

    /// Each element of the result of one of each operand.
    fn by_elements(&self, keeps_zeros: bool) -> Result<Over, String> {
        let zeros = keeps_zeros && self.operands.iter().all(|operand| operand.ends_as_zeros);
        let extent = self.extent(1, zeros)?;
        let around = Some([extent.rows, extent.step]);
        let is_alike = |of: &Stretched| of.around() == around || of.repeats || of.operand.len() == 1;
        if !self.operands.iter().all(is_alike) {
            return Err("how operands lie".into());
        }
        self.over(self.node.compute.clone(), extent, Vec::new())
    }

    /// Each row of the result of one of the first operand, and of weights.
    fn rows(&self, columns: u64) -> Result<Over, String> {
        let grow = |operand: &&Stretched| operand.grows.is_some();
        let extent = self.extent(1, false)?;
        // Both summands of a norm of a sum grow.
        let around = Some([extent.rows, extent.step]);
        if !extent.step.is_multiple_of(columns) || self.operands.iter().filter(grow).any(|of| of.around() != around) {
            return Err(self.unknown());
        }
        self.over(self.node.compute.clone(), extent, Vec::new())
    }

    /// One element of the result of each row of places.
    fn reduced(&self, columns: [u64; 2], function: fn(u64) -> Function, number: f32) -> Result<Over, String> {
        let [operand] = self.operands else { return Err(self.unknown()) };
        if columns != operand.tokens {
            return Err(self.unknown());
        }
        let extent = self.extent(1, false)?;
        let compute = Compute::Recorded(function(extent.room));
        let is_summed = number == 0. && operand.ends_as_zeros;
        let ends = if is_summed { Vec::new() } else { vec![self.ends(0, number)] };
        Ok(Over { compute, len: extent.rows, ends, extent: None })
    }

    fn ends(&self, operand: usize, number: f32) -> (usize, ByPosition) {
        (operand, ByPosition::EndsAs { dim: self.operands[operand].grows.unwrap_or(0), number })
    }

    /// Those of these operands that are no zeros behind the new token, as if they were.
    fn zeros(&self, operands: impl IntoIterator<Item = usize>) -> Vec<(usize, ByPosition)> {
        let ends =
            operands.into_iter().filter(|&at| self.operands[at].grows.is_some() && !self.operands[at].ends_as_zeros);
        ends.map(|at| self.ends(at, 0.)).collect()
    }

    fn matmul(&self) -> Result<Over, String> {
        let [a, b] = self.operands else { return Err(self.unknown()) };
        if [a, b].iter().any(|operand| operand.operand.dims.len() != 3) {
            return Err("how the tokens of an operand lie".into());
        }
        let dims = |of: &Stretched| [0, 1, 2].map(|at| of.operand.dims[at].len);
        let ([batch, rows, _], [.., columns]) = (dims(a), dims(b));
        let extent = |rows, step, of: &Stretched, room| Extent {
            rows,
            step,
            places: of.tokens,
            tokens: of.tokens,
            room,
            ends_as_zeros: false,
        };
        let compute = self.node.compute.clone();
        match (a.grows, b.grows) {
            (None, Some(2)) => self.over(compute, extent(batch * rows, 1, b, columns), Vec::new()),
            (Some(1), None) => self.over(compute, extent(batch, columns, a, rows), Vec::new()),
            (Some(2), Some(1)) if a.tokens == b.tokens => {
                Ok(Over { compute, len: batch * rows * columns, ends: self.zeros([0, 1]), extent: None })
            }
            _ => Err(self.unknown()),
        }
    }

    /// Rows of a table, of which each place names one.
    fn chosen(&self, step: u64) -> Result<Over, String> {
        let [table, ids] = self.operands else { return Err(self.unknown()) };
        if table.grows.is_some() || ids.around() != Some([1, 1]) {
            return Err(self.unknown());
        }
        self.over(self.node.compute.clone(), Extent { step, ..self.extent(1, false)? }, Vec::new())
    }

    fn linear(&self) -> Result<Over, String> {
        let [x, weight, ..] = self.operands else { return Err(self.unknown()) };
        let (Some(0), [rows, _]) = (x.grows, &x.operand.dims[..]) else { return Err(self.unknown()) };
        let columns = weight.operand.dims[0].len;
        let extent =
            Extent { rows: 1, step: columns, places: x.tokens, tokens: x.tokens, room: rows.len, ends_as_zeros: false };
        self.over(self.node.compute.clone(), extent, Vec::new())
    }

    /// Attention to all places: what lies behind the new token is masked, by its own mask or by one more.
    fn attention(&self, mut scores: Scores) -> Result<Over, String> {
        let [q, k, v, masks @ ..] = self.operands else { return Err(self.unknown()) };
        let of_tokens = |of: &Stretched| of.grows == Some(of.operand.dims.len() - 2);
        let fits = |mask: &Stretched| mask.repeats || mask.grows_last() && mask.tokens == k.tokens;
        let is_known = q.grows.is_none() && of_tokens(k) && of_tokens(v) && k.tokens == v.tokens;
        if !is_known || self.node.len != self.other.len || !scores.are_divisors.is_empty() || !masks.iter().all(fits) {
            return Err(self.unknown());
        }
        let mut ends = self.zeros([1, 2]);
        match masks.len() - scores.masks.iter().map(|mask| mask.operands()).sum::<usize>().min(masks.len()) {
            0 if can_hide(&scores, masks) => ends.push(self.ends(3, f32::NEG_INFINITY)),
            1 => scores.masks.push(Mask::Added(1.)),
            _ => return Err(self.unknown()),
        }
        Ok(Over { compute: Compute::Attention(scores), len: self.node.len, ends, extent: None })
    }

    /// Several beside each other: rows of whole tokens, or tokens of whole rows.
    fn concat(&self, rows: [u64; 2], widths: [&[u64]; 2]) -> Result<Over, String> {
        let grown = self.operands.iter().find(|operand| operand.grows.is_some()).ok_or("what it reads")?;
        let ([before, _], Some(at)) = (grown.around().ok_or("what it reads")?, grown.grows) else {
            return Err(self.unknown());
        };
        let (tokens, room) = (grown.tokens, grown.operand.dims[at].len);
        let zeros = self.operands.iter().all(|operand| operand.ends_as_zeros);
        let times = |[a, b]: [u64; 2]| {
            let [x, y] = [(a, tokens[0]), (b, tokens[1])].map(|(n, of)| (n % of == 0).then_some(n / of));
            x.filter(|_| x == y)
        };
        let extent = |rows, step| Extent { rows, step, places: tokens, tokens, room, ends_as_zeros: zeros };
        let around = |operand: &Stretched| operand.around();
        if widths[0] == widths[1] {
            // Each token has a row, or several.
            let inner = times(rows).filter(|_| before > 0 && rows[0].is_multiple_of(before * tokens[0]));
            let inner = inner.ok_or_else(|| self.unknown())? / before;
            let fits = |(operand, width): (&Stretched, &u64)| around(operand) == Some([before, inner * width]);
            if !self.operands.iter().zip(widths[0]).all(fits) {
                return Err(self.unknown());
            }
            let compute = Compute::Concat { rows: before * room * inner, widths: widths[0].to_vec() };
            return self.over(compute, extent(before, inner * widths[0].iter().sum::<u64>()), Vec::new());
        }
        // In each row there are all tokens of each operand, with the same elements of each.
        let step = grown.around().ok_or("what it reads")?[1];
        let mut longer = Vec::with_capacity(widths[0].len());
        for (operand, pair) in self.operands.iter().zip(widths[0].iter().zip(widths[1])) {
            let width = times([*pair.0, *pair.1]).ok_or_else(|| self.unknown())?;
            let fits = around(operand).is_some_and(|[of, inner]| inner == step && of * step == rows[0] * width);
            if rows[0] != rows[1] || !fits {
                return Err(self.unknown());
            }
            longer.push(width * room);
        }
        let of_row = longer.iter().sum::<u64>() / room / step.max(1);
        let compute = Compute::Concat { rows: rows[0], widths: longer };
        self.over(compute, extent(rows[0] * of_row, step), Vec::new())
    }
}
