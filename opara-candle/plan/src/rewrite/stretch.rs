//! Values that grow with the text, over the places that there is room for.

use super::compute::ByPosition;
use super::graph::Operand;
use crate::trace::Dim;

/// How the tokens of a value lie: in each of some rows, some elements of each place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub rows: u64,
    pub step: u64,
    /// How many places there are in a row, of both passes.
    pub places: [u64; 2],
    /// How many of these have tokens.
    pub tokens: [u64; 2],
    /// How many places there are in the common graph.
    pub room: u64,
    /// Are elements of places without a token zeros?
    pub ends_as_zeros: bool,
}

impl Extent {
    /// Elements in the common graph.
    pub fn len(&self) -> u64 {
        self.rows * self.room * self.step
    }

    /// An offset of both passes as one of the common graph; and how far it moves with each token, if it does.
    fn offset(&self, pair: [u64; 2], lengths: [u64; 2]) -> Option<(i64, i64)> {
        let rows = [0, 1].map(|text| self.places[text] * self.step);
        let row = pair[0].checked_div(rows[0])?;
        let rest = [0, 1].map(|text| pair[text].checked_sub(row.checked_mul(rows[text])?));
        let [a, b] = [i64::try_from(rest[0]?).ok()?, i64::try_from(rest[1]?).ok()?];
        let start = i64::try_from(row.checked_mul(self.room * self.step)?).ok()?;
        if a == b {
            return Some((start + a, 0));
        }
        let (moved, apart) = (b - a, i64::try_from(lengths[1] - lengths[0]).ok()?);
        let step = (moved % apart == 0).then_some(moved / apart)?;
        Some((start + a - step * i64::try_from(lengths[0]).ok()?, step))
    }
}

/// An operand of both passes as one of the common graph, whose value it is to have.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Stretched {
    pub operand: Operand,
    /// The dimension of places, if it has one.
    pub grows: Option<usize>,
    /// Is it one element for all places, in a dimension with others?
    pub repeats: bool,
    /// How many of these have tokens, in both passes.
    pub tokens: [u64; 2],
    /// How its first element moves.
    pub moves: Option<ByPosition>,
    /// Are elements of places without a token zeros?
    pub ends_as_zeros: bool,
}

/// The operand that stands for both. Their value grows so, or not at all. `tokens` are those of both passes, the new one included,
/// and `capacity` is the most of them.
pub(super) fn stretch(
    [a, b]: [&Operand; 2],
    extent: Option<&Extent>,
    tokens: [u64; 2],
    capacity: u64,
) -> Result<Stretched, String> {
    if a.dims.len() != b.dims.len() {
        return Err("the number of dimensions of an operand".into());
    }
    let lengths = tokens.map(|tokens| tokens - 1);
    // A table has no rows of places: its offsets are the same in both passes.
    let of_table =
        Extent { rows: 1, step: 1, places: [u64::MAX >> 32; 2], tokens, room: u64::MAX >> 32, ends_as_zeros: false };
    let of = extent.unwrap_or(&of_table);
    let room = if extent.is_some() { of.room } else { capacity };
    let (mut dims, mut grows, mut repeats) = (Vec::with_capacity(a.dims.len()), None, false);
    for (x, y) in a.dims.iter().zip(&b.dims) {
        let (stride, 0) = of.offset([x.stride, y.stride], lengths).ok_or("how an operand lies")? else {
            return Err("how an operand lies".into());
        };
        let stride = stride as u64;
        if x.len == y.len {
            dims.push(Dim { len: x.len, stride });
            continue;
        }
        let [times, other] = [(x.len, of.tokens[0]), (y.len, of.tokens[1])]
            .map(|(len, tokens)| (len % tokens == 0).then_some(len / tokens));
        let times = times.filter(|_| times == other && grows.is_none());
        let times = times.ok_or_else(|| format!("the size of an operand: {} and {}", x.len, y.len))?;
        if times > 1 && stride == 0 {
            dims.push(Dim { len: times * room, stride });
            repeats = true;
            continue;
        }
        // Tokens of several rows, of each some elements: the dimension is three.
        let (inner, outer) = match times {
            1 => (1, 1),
            _ => {
                let inner = of.step.checked_div(x.stride).filter(|inner| inner * x.stride == of.step && *inner > 0);
                let inner = inner.filter(|inner| extent.is_some() && times % inner == 0);
                let inner = inner.ok_or("how the tokens of an operand lie")?;
                (inner, times / inner)
            }
        };
        if outer > 1 {
            if of.tokens != of.places {
                return Err("how the tokens of an operand lie".into());
            }
            dims.push(Dim { len: outer, stride: of.room * of.step });
        }
        grows = Some(dims.len());
        dims.push(Dim { len: room, stride: stride * inner });
        if inner > 1 {
            dims.push(Dim { len: inner, stride });
        }
    }
    let (first, step) = of.offset([a.first, b.first], lengths).ok_or("where an operand begins")?;
    let moves = (step != 0).then_some(ByPosition::Moves { first, step });
    let first = if moves.is_some() { 0 } else { first as u64 };
    let operand = Operand { value: a.value, first, dims };
    let reach = operand.dims.iter().map(|dim| dim.len.saturating_sub(1) * dim.stride).sum::<u64>() + first;
    if extent.is_some_and(|of| reach >= of.len()) {
        return Err("an operand reads more places than a text may have tokens".into());
    }
    let ends_as_zeros = extent.is_some_and(|of| of.ends_as_zeros);
    Ok(Stretched { operand, grows, repeats, tokens: of.tokens, moves, ends_as_zeros })
}

impl Stretched {
    /// How many elements lie before and behind the dimension of places.
    pub fn around(&self) -> Option<[u64; 2]> {
        let at = self.grows?;
        let product = |dims: &[Dim]| dims.iter().map(|dim| dim.len).product::<u64>();
        Some([product(&self.operand.dims[..at]), product(&self.operand.dims[at + 1..])])
    }

    /// Is the dimension of places the last one?
    pub fn grows_last(&self) -> bool {
        self.grows.is_some_and(|at| at + 1 == self.operand.dims.len())
    }
}
