//! How a pass adds a token to the keys or values that it has of earlier ones.

use super::compute::Compute;
use super::graph::{strides_over, Graph, Node, Operand, Value};

/// A node that gives earlier tokens, runs of them, with a new one: behind them in memory of its own, or in place, where there is room.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Append<'a> {
    /// The input of earlier tokens.
    pub input: usize,
    /// How many runs.
    pub rows: u64,
    /// Elements of a run with the new token, and with the room that there is.
    pub row: u64,
    /// Elements of a token in each run.
    pub step: u64,
    /// The new token.
    pub new: &'a Operand,
    /// How many tokens of a run lie before it.
    pub place: u64,
    /// How many tokens there is room for where it is written in place.
    room: Option<u64>,
}

impl<'a> Append<'a> {
    /// The operand that a node appends, if it appends one.
    pub fn of(node: &'a Node, graph: &Graph) -> Option<Self> {
        let Compute::Concat { rows, widths } = &node.compute else { return None };
        let of_input = |operand: &Operand| match operand.value {
            Value::Input(at) if graph.inputs[at].is_constant => Some(at),
            _ => None,
        };
        let input = node.operands.iter().find_map(of_input)?;
        let new = node.operands.iter().position(|operand| of_input(operand) != Some(input))?;
        let (step, row) = (widths[new], widths.iter().sum::<u64>());
        let before: u64 = widths[..new].iter().sum();
        // A concatenation makes other rows; what is written in place has the room in its own.
        let len = graph.inputs[input].len;
        let is_in_place = rows.checked_mul(row) == Some(len);
        let old = if is_in_place { row } else { row - step };
        let is_all = rows.checked_mul(old) == Some(len) && step > 0 && before.is_multiple_of(step);
        if !is_all || !is_in_place && before != old || is_in_place && !row.is_multiple_of(step) {
            return None;
        }
        let mut first = 0;
        for (at, (operand, &width)) in node.operands.iter().zip(widths).enumerate() {
            let strides = strides_over(&operand.dims, &[*rows, width]);
            let lies = strides
                .is_some_and(|strides| (*rows == 1 || strides[0] == old) && (width == 1 || strides[1] == 1))
                && (of_input(operand), operand.first) == (Some(input), first);
            if at != new && !lies {
                return None;
            }
            first += width;
        }
        let (place, room) = (before / step, is_in_place.then_some(row / step));
        Some(Self { input, rows: *rows, row, step, new: &node.operands[new], place, room })
    }

    /// How many of the latest tokens it gives, if not all: those that a buffer has room for in which the new token takes the place of the
    /// oldest one. The outer `None` says that it adds no token to a text of this length.
    #[expect(clippy::option_option, reason = "what is not an append, and what gives all tokens, are different answers")]
    pub fn window(&self, length: u64) -> Option<Option<u64>> {
        match self.room {
            Some(room) if room <= length => Some(Some(room)),
            _ => (self.place == length).then_some(None),
        }
    }
}
