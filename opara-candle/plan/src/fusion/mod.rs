//! Which launches become one: what one of them writes, and the next one reads, need not go through memory.
//!
//! Launches go through elements, one after another, or through rows of them: a norm makes each element of all of a row, and
//! a sum makes one number of a row. What goes through the same elements can be one launch. What turns the result of a
//! chain, such as a contiguous copy of a transposed one, can be part of it: all before goes through its elements in that
//! order then. And if all who read a result take parts of it, such as queries, keys and values of one product and its bias,
//! each of them makes its part: the result itself is never in memory.

mod growing;
mod places;
#[cfg(test)]
mod tests;

use self::growing::Growing;
pub use self::places::Places;
use crate::trace::{BufferId, OpId, Trace};

/// A launch that can be one with others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fusible {
    /// How many elements it goes through.
    pub elements: u64,
    /// How many are a row, if it takes all of a row for what it makes.
    pub columns: Option<u64>,
    /// Whether it makes one number of each row, and not one of each element.
    pub folds: bool,
    /// What it reads.
    pub operands: Vec<Operand>,
    /// What it writes, all of it.
    pub result: BufferId,
    /// Whether it is better off in a chain even alone.
    pub gains_alone: bool,
}

/// What such a launch reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operand {
    /// The buffer that it reads.
    pub buffer: BufferId,
    /// The strided view of the buffer that it reads.
    pub places: Places,
    /// Which of the buffer's elements they count from, if that is one.
    pub first: Option<u64>,
}

/// What element `i` is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Element `i` of the operand, and, if the launch takes rows, the others of its row.
    Same,
    /// Number `i / columns`.
    OfRow(u64),
    Elsewhere,
}

impl Operand {
    fn place(&self) -> Place {
        match self.places.columns_of_one() {
            _ if self.first != Some(0) => Place::Elsewhere,
            Some(columns) => Place::OfRow(columns),
            None if self.places.are_in_a_row() => Place::Same,
            None => Place::Elsewhere,
        }
    }

    /// The order in which all of so many elements are taken, if it is another one.
    fn order(&self, elements: u64) -> Option<Places> {
        let turns = self.first == Some(0) && !self.places.are_in_a_row() && self.places.are_a_permutation(elements);
        turns.then_some(self.places)
    }
}

/// Launches that become one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Those, in recorded order.
    pub members: Vec<OpId>,
    /// Which of them the one launch takes the place of.
    pub at: OpId,
    /// For each whether others read its result, or the caller.
    pub kept: Vec<bool>,
    /// For each whether it goes through one number of each row.
    pub on_numbers: Vec<bool>,
    /// How many elements all others go through.
    pub elements: u64,
    /// How many of them are a row, if any member takes rows.
    pub columns: Option<u64>,
    /// The permutation that ends the chain, if one does.
    pub turn: Option<Turn>,
}

impl Chain {
    /// In which order a member goes through its elements, and from which one on.
    pub fn order(&self, member: usize) -> (Places, u64) {
        let turn = self.turn.filter(|turn| member < turn.before);
        turn.map(|turn| (turn.order, turn.first)).unwrap_or_default()
    }
}

/// Members before one that takes their elements in another order, or some of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// How many there are.
    pub before: usize,
    /// Which element is the first one, the second one, and so on, for those after: counted from `first`.
    pub order: Places,
    /// The element that the order counts from.
    pub first: u64,
}

/// Finds chains of up to `most` launches, and what `write` makes of each. `fusible` tells which ops can be in one. Only what
/// a chain makes before its turn can be in others, too.
///
/// A launch joins the chain of one whose elements, or numbers of rows, it reads one by one, if all else that it reads is
/// there where the chain runs; or else the chain runs where the launch did, if nobody has read its results by then. What
/// depends on an input and what does not stay apart: the latter runs once.
///
/// Where a chain runs depends on the others. So if `write` refuses one, its last launch is left alone, and all are found
/// anew; and so they are where it turns out that someone needs all of a result of which others have made their parts.
///
/// # Complexity
/// Linear in accesses, each time.
pub fn chains<T>(
    trace: &Trace,
    mut fusible: Vec<Option<&Fusible>>,
    most: usize,
    write: impl Fn(&Chain) -> Option<T>,
) -> Vec<(Chain, T)> {
    loop {
        let found = find(trace, &fusible, most);
        let written: Vec<Option<T>> = found.iter().map(&write).collect();
        let refused = found.iter().zip(&written).filter(|(_, written)| written.is_none());
        let last: Vec<OpId> = refused.filter_map(|(chain, _)| chain.members.last().copied()).collect();
        if last.is_empty() {
            return found.into_iter().zip(written).filter_map(|(chain, written)| Some((chain, written?))).collect();
        }
        last.into_iter().for_each(|op| fusible[op] = None);
    }
}

fn find(trace: &Trace, fusible: &[Option<&Fusible>], most: usize) -> Vec<Chain> {
    let mut whole = vec![false; trace.ops.len()];
    loop {
        let mut chains = Growing::new(trace, fusible, &whole, most);
        for (op, launch) in trace.ops.iter().enumerate() {
            if let Some(fusible) = fusible[op] {
                chains.place(op, fusible);
            }
            chains.pass(op, launch);
        }
        match chains.finish() {
            Ok(found) => return found,
            Err(ops) => ops.into_iter().for_each(|op| whole[op] = true),
        }
    }
}
