//! How chains grow, launch by launch.

use super::{Chain, Fusible, Operand, Place, Places, Turn};
use crate::optimize::{read, stays, written};
use crate::trace::{Op, OpId, Role, Trace};

/// A chain to which launches may still come.
struct Link {
    members: Vec<OpId>,
    at: OpId,
    elements: u64,
    columns: Option<u64>,
    /// Of each member whether it goes through numbers of rows.
    on_numbers: Vec<bool>,
    turn: Option<Turn>,
    /// Whether something else has read a member's result.
    is_read: bool,
    gains: bool,
    /// The chain whose members it makes once more, before its turn, for some of their elements.
    again: Option<usize>,
    /// Those that make its members once more, and how many elements they make together.
    others: Vec<usize>,
    made_again: u64,
}

impl Link {
    fn of(op: OpId, fusible: &Fusible) -> Self {
        let Fusible { elements, columns, gains_alone: gains, .. } = *fusible;
        let (members, on_numbers) = (vec![op], vec![false]);
        let (turn, is_read, again, others, made_again) = (None, false, None, Vec::new(), 0);
        Self { members, at: op, elements, columns, on_numbers, turn, is_read, gains, again, others, made_again }
    }

    /// Those that it makes once more.
    fn copied(&self) -> usize {
        self.turn.filter(|_| self.again.is_some()).map_or(0, |turn| turn.before)
    }

    /// The columns that its rows would have with another member, and whether that would go through numbers of rows. `None`
    /// if it goes through something else.
    fn with(&self, fusible: &Fusible) -> Option<(Option<u64>, bool)> {
        if self.elements == fusible.elements {
            let agree = self.columns.is_none_or(|own| fusible.columns.is_none_or(|columns| columns == own));
            return agree.then_some((self.columns.or(fusible.columns), false));
        }
        let rows = self.elements / self.columns?;
        (fusible.elements == rows && fusible.columns.is_none()).then_some((self.columns, true))
    }
}

/// How an op would join a chain.
struct Joined {
    link: usize,
    at: OpId,
    columns: Option<u64>,
    on_numbers: bool,
    turn: Option<Turn>,
}

pub(super) struct Growing<'a> {
    trace: &'a Trace,
    fusible: &'a [Option<&'a Fusible>],
    /// Of each op whether someone is known to need all that it makes.
    whole: &'a [bool],
    most: usize,
    /// How often each buffer is read.
    reads: Vec<usize>,
    /// Whether every call runs it.
    stays: Vec<bool>,
    /// How often each buffer is written in all, and how often so far.
    writes: Vec<usize>,
    written: Vec<usize>,
    /// Whether anything has read or written it so far.
    touched: Vec<bool>,
    /// The last of those that wrote it.
    writer: Vec<Option<OpId>>,
    links: Vec<Link>,
    link_of: Vec<Option<usize>>,
    /// Whether a member of a chain makes one number of each row.
    makes_numbers: Vec<bool>,
}

impl<'a> Growing<'a> {
    pub(super) fn new(trace: &'a Trace, fusible: &'a [Option<&'a Fusible>], whole: &'a [bool], most: usize) -> Self {
        let buffers = trace.buffers.len();
        let (mut reads, mut writes) = (vec![0; buffers], vec![0; buffers]);
        trace.ops.iter().flat_map(read).for_each(|buffer| reads[buffer] += 1);
        trace.ops.iter().flat_map(written).for_each(|buffer| writes[buffer] += 1);
        Self {
            trace,
            fusible,
            whole,
            most,
            reads,
            stays: stays(trace),
            writes,
            written: vec![0; buffers],
            touched: vec![false; buffers],
            writer: vec![None; buffers],
            links: Vec::new(),
            link_of: vec![None; trace.ops.len()],
            makes_numbers: vec![false; trace.ops.len()],
        }
    }

    /// Lets an op join a chain, or begin one.
    pub(super) fn place(&mut self, op: OpId, fusible: &Fusible) {
        let operands = &fusible.operands;
        // Nobody writes to these once they were read, so it does not matter when that happens.
        let settled = operands.iter().all(|operand| self.written[operand.buffer] == self.writes[operand.buffer]);
        let is_new = self.writes[fusible.result] == 1 && !self.touched[fusible.result];
        if !settled || !is_new {
            return;
        }
        let joined = operands.iter().filter_map(|operand| self.joined(op, fusible, *operand)).max_by_key(|j| j.at);
        let Some(Joined { link, at, columns, on_numbers, turn }) = joined else {
            self.link_of[op] = Some(self.links.len());
            self.makes_numbers[op] = fusible.folds;
            let again = operands.iter().find_map(|operand| self.making_again(op, fusible, *operand));
            if let Some(from) = again.as_ref().and_then(|link| link.again) {
                let link = self.links.len();
                self.links[from].others.push(link);
                self.links[from].made_again += fusible.elements;
            }
            self.links.push(again.unwrap_or_else(|| Link::of(op, fusible)));
            return;
        };
        let chain = &mut self.links[link];
        chain.at = at;
        (chain.columns, chain.turn) = (columns, turn);
        chain.members.push(op);
        chain.on_numbers.push(on_numbers);
        self.link_of[op] = Some(link);
        self.makes_numbers[op] = on_numbers || fusible.folds;
    }

    /// How `op` can join the chain that made this operand, if it can.
    fn joined(&self, op: OpId, fusible: &Fusible, operand: Operand) -> Option<Joined> {
        let maker = self.writer[operand.buffer]?;
        let link = self.link_of[maker]?;
        let chain = &self.links[link];
        let (columns, on_numbers) = chain.with(fusible)?;
        let member = |o: &Operand| self.writer[o.buffer].filter(|&writer| self.link_of[writer] == Some(link));
        let is_there = |o: &Operand| match (member(o), o.place()) {
            (None, _) => true,
            (Some(maker), Place::Same) => self.makes_numbers[maker] == on_numbers,
            (Some(maker), Place::OfRow(of)) => self.makes_numbers[maker] && !on_numbers && columns == Some(of),
            (Some(_), Place::Elsewhere) => false,
        };
        let turn = if fusible.operands.iter().all(is_there) {
            chain.turn
        } else {
            let order = operand.order(chain.elements)?;
            let is_alike = |o: &Operand| member(o).is_none() || (o.first == Some(0) && o.places == order);
            let turns = columns.is_none() && fusible.operands.iter().all(is_alike) && self.can_turn(chain, op, &order);
            Some(turns.then_some(Turn { before: chain.members.len(), order, first: 0 })?)
        };
        let fits = self.stays[maker] == self.stays[op] && chain.members.len() < self.most;
        let outer = fusible.operands.iter().filter(|o| member(o).is_none());
        let ready = outer.filter_map(|o| Some(self.runs_at(self.writer[o.buffer]?))).max();
        let at =
            if ready.is_none_or(|ready| ready < chain.at) { Some(chain.at) } else { (!chain.is_read).then_some(op) };
        at.filter(|_| fits).map(|at| Joined { link, at, columns, on_numbers, turn })
    }

    /// A chain of `op` that makes once more, element by element, what it takes of what another chain made: such as the part of
    /// a sum that a copy takes. It is worth it if all who read that chain's results do so, each another part.
    fn making_again(&self, op: OpId, fusible: &Fusible, operand: Operand) -> Option<Link> {
        let maker = self.writer[operand.buffer]?;
        let from = self.link_of[maker]?;
        let chain = &self.links[from];
        let is_made = |o: &Operand| self.writer[o.buffer].is_some_and(|writer| self.link_of[writer] == Some(from));
        let is_alike = |o: &Operand| !is_made(o) || *o == operand;
        let (order, first) = (operand.places, operand.first?);
        let fits = chain.columns.is_none()
            && fusible.columns.is_none()
            && chain.turn.is_none()
            && !chain.members.iter().any(|&member| self.whole[member])
            && chain.made_again + fusible.elements <= chain.elements
            && chain.members.len() < self.most
            && self.stays[maker] == self.stays[op];
        if !fits || !fusible.operands.iter().all(is_alike) || !self.is_told(chain, &order, first) {
            return None;
        }
        let turn = Some(Turn { before: chain.members.len(), order, first });
        let on_numbers = vec![false; chain.members.len() + 1];
        let members = chain.members.iter().copied().chain([op]).collect();
        Some(Link { members, on_numbers, turn, again: Some(from), ..Link::of(op, fusible) })
    }

    /// Whether a chain can go through its elements in another order for an op: nobody else reads what it makes, and where its
    /// operands are in that order can be told.
    fn can_turn(&self, chain: &Link, op: OpId, order: &Places) -> bool {
        let readers: Vec<OpId> = chain.members.iter().copied().chain([op]).collect();
        chain.turn.is_none() && self.are_read_by(chain, &readers) && self.is_told(chain, order, 0)
    }

    /// Whether it can be told where a chain's operands are for someone who takes its elements in an order, from `first` on.
    fn is_told(&self, chain: &Link, order: &Places, first: u64) -> bool {
        let all = || chain.members.iter().filter_map(|&member| self.fusible[member]);
        let is_made = |buffer| all().any(|member| member.result == buffer);
        let mut operands = all().flat_map(|member| &member.operands);
        operands.all(|operand| is_made(operand.buffer) || operand.places.taken(order, first).is_some())
    }

    /// Whether nobody else reads what a chain's members make, the caller included.
    fn are_read_by(&self, chain: &Link, readers: &[OpId]) -> bool {
        chain.members.iter().filter_map(|&member| self.fusible[member]).all(|Fusible { result, .. }| {
            let is_output = matches!(self.trace.buffers[*result].role, Role::Output(_));
            let reads = readers.iter().flat_map(|&op| read(&self.trace.ops[op])).filter(|buffer| buffer == result);
            !is_output && reads.count() == self.reads[*result]
        })
    }

    fn runs_at(&self, op: OpId) -> OpId {
        self.link_of[op].map_or(op, |link| self.links[link].at)
    }

    /// Notes what an op reads and writes.
    pub(super) fn pass(&mut self, op: OpId, launch: &Op) {
        for access in &launch.accesses {
            self.touched[access.buffer] = true;
            let maker = self.writer[access.buffer].and_then(|writer| self.link_of[writer]);
            if let Some(link) = maker.filter(|_| access.mode.reads() && maker != self.link_of[op]) {
                self.links[link].is_read = true;
            }
        }
        for buffer in written(launch) {
            self.written[buffer] += 1;
            self.writer[buffer] = Some(op);
        }
    }

    /// Whether nobody needs a chain: all who read what its members make do that once more.
    fn is_made_by_others(&self, link: usize) -> bool {
        let chain = &self.links[link];
        let others = || chain.others.iter().map(|&other| &self.links[other]);
        let readers = others().map(|other| other.members[other.copied()]);
        let readers: Vec<OpId> = chain.members.iter().copied().chain(readers).collect();
        others().any(|other| other.copied() == chain.members.len()) && self.are_read_by(chain, &readers)
    }

    /// All chains.
    ///
    /// # Errors
    /// Launches that were made once more, though someone needs all that they make.
    pub(super) fn finish(self) -> Result<Vec<Chain>, Vec<OpId>> {
        let is_gone: Vec<bool> = (0..self.links.len()).map(|link| self.is_made_by_others(link)).collect();
        let is_whole = |(link, is_gone): &(&Link, &bool)| !link.others.is_empty() && !**is_gone;
        let whole = self.links.iter().zip(&is_gone).filter(is_whole);
        let whole: Vec<OpId> = whole.flat_map(|(link, _)| link.members.iter().copied()).collect();
        if !whole.is_empty() {
            return Err(whole);
        }
        let mut is_kept: Vec<bool> = self.trace.buffers.iter().map(|b| matches!(b.role, Role::Output(_))).collect();
        for (op, launch) in self.trace.ops.iter().enumerate() {
            for buffer in read(launch) {
                let maker = self.writer[buffer].and_then(|writer| self.link_of[writer]);
                is_kept[buffer] |= maker.is_none() || maker != self.link_of[op];
            }
        }
        let chain = |link: Link| {
            let results = link.members.iter().map(|&op| written(&self.trace.ops[op]).any(|buffer| is_kept[buffer]));
            let kept = results.enumerate().map(|(at, is_kept)| is_kept && at >= link.copied()).collect();
            let Link { members, at, elements, columns, on_numbers, turn, .. } = link;
            Chain { members, at, kept, on_numbers, elements, columns, turn }
        };
        // What runs once has nothing to gain alone.
        let gains = |link: &Link| link.members.len() > 1 || (link.gains && self.stays[link.at]);
        let stay = self.links.into_iter().zip(is_gone).filter(|(_, is_gone)| !is_gone).map(|(link, _)| link);
        Ok(stay.filter(gains).map(chain).collect())
    }
}
