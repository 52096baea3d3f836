//! Which element-wise launches become one: what one of them writes, and the next one reads, need not go through memory.

use crate::optimize::{read, stays, written};
use crate::trace::{BufferId, Op, OpId, Role, Trace};

/// A launch that makes each element of its result from one element of each operand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pointwise {
    /// How many.
    pub elements: u64,
    /// What it reads.
    pub operands: Vec<Operand>,
    /// What it writes, all of it.
    pub result: BufferId,
}

/// What an element-wise launch reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Operand {
    /// Where it is.
    pub buffer: BufferId,
    /// Whether element `i` of the result is made of element `i` of the buffer.
    pub in_a_row: bool,
}

/// Launches that become one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chain {
    /// Those, in recorded order.
    pub members: Vec<OpId>,
    /// Which of them the one launch takes the place of.
    pub at: OpId,
    /// For each whether others read its result, or the caller.
    pub kept: Vec<bool>,
}

/// Finds chains of two to `most` launches, none of which holds a launch of another. `pointwise` tells which ops are
/// element-wise.
///
/// A launch joins the chain of one that it reads element by element, if all else that it reads is there where the chain
/// runs; or else the chain runs where the launch did, if nobody has read its results by then. What depends on an input
/// and what does not stay apart: the latter runs once.
///
/// # Complexity
/// Linear in accesses.
pub(crate) fn chains(trace: &Trace, pointwise: &[Option<&Pointwise>], most: usize) -> Vec<Chain> {
    let mut chains = Growing::new(trace, most);
    for (op, launch) in trace.ops.iter().enumerate() {
        if let Some(pointwise) = pointwise[op] {
            chains.place(op, pointwise);
        }
        chains.pass(op, launch);
    }
    chains.finish()
}

/// A chain to which launches may still come.
struct Link {
    members: Vec<OpId>,
    at: OpId,
    elements: u64,
    /// Whether something else has read a member's result.
    is_read: bool,
}

struct Growing<'a> {
    trace: &'a Trace,
    most: usize,
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
}

impl<'a> Growing<'a> {
    fn new(trace: &'a Trace, most: usize) -> Self {
        let buffers = trace.buffers.len();
        let mut writes = vec![0; buffers];
        trace.ops.iter().flat_map(written).for_each(|buffer| writes[buffer] += 1);
        Self {
            trace,
            most,
            stays: stays(trace),
            writes,
            written: vec![0; buffers],
            touched: vec![false; buffers],
            writer: vec![None; buffers],
            links: Vec::new(),
            link_of: vec![None; trace.ops.len()],
        }
    }

    /// Lets an element-wise op join a chain, or begin one.
    fn place(&mut self, op: OpId, pointwise: &Pointwise) {
        let Pointwise { elements, ref operands, result } = *pointwise;
        // Nobody writes to these once they were read, so it does not matter when that happens.
        let settled = operands.iter().all(|operand| self.written[operand.buffer] == self.writes[operand.buffer]);
        let is_new = self.writes[result] == 1 && !self.touched[result];
        if !settled || !is_new {
            return;
        }
        let joined = operands.iter().filter_map(|operand| self.joined(op, pointwise, *operand)).max_by_key(|j| j.1);
        let Some((link, at)) = joined else {
            self.link_of[op] = Some(self.links.len());
            self.links.push(Link { members: vec![op], at: op, elements, is_read: false });
            return;
        };
        let chain = &mut self.links[link];
        chain.at = at;
        chain.members.push(op);
        self.link_of[op] = Some(link);
    }

    /// The chain that made this operand, and where it would run, if `op` can join it.
    fn joined(&self, op: OpId, pointwise: &Pointwise, operand: Operand) -> Option<(usize, OpId)> {
        let maker = self.writer[operand.buffer].filter(|_| operand.in_a_row)?;
        let link = self.link_of[maker]?;
        let chain = &self.links[link];
        let of_chain = |o: &Operand| self.writer[o.buffer].is_some_and(|writer| self.link_of[writer] == Some(link));
        let (inner, outer): (Vec<&Operand>, Vec<&Operand>) = pointwise.operands.iter().partition(|o| of_chain(o));
        let fits = chain.elements == pointwise.elements
            && self.stays[maker] == self.stays[op]
            && inner.iter().all(|o| o.in_a_row)
            && chain.members.len() < self.most;
        let ready = outer.iter().filter_map(|o| Some(self.runs_at(self.writer[o.buffer]?))).max();
        let at =
            if ready.is_none_or(|ready| ready < chain.at) { Some(chain.at) } else { (!chain.is_read).then_some(op) };
        at.filter(|_| fits).map(|at| (link, at))
    }

    fn runs_at(&self, op: OpId) -> OpId {
        self.link_of[op].map_or(op, |link| self.links[link].at)
    }

    /// Notes what an op reads and writes.
    fn pass(&mut self, op: OpId, launch: &Op) {
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

    fn finish(self) -> Vec<Chain> {
        let mut is_kept: Vec<bool> = self.trace.buffers.iter().map(|b| matches!(b.role, Role::Output(_))).collect();
        for (op, launch) in self.trace.ops.iter().enumerate() {
            for buffer in read(launch) {
                let maker = self.writer[buffer].and_then(|writer| self.link_of[writer]);
                is_kept[buffer] |= maker.is_none() || maker != self.link_of[op];
            }
        }
        let chain = |link: Link| {
            let results = link.members.iter().map(|&op| written(&self.trace.ops[op]).any(|buffer| is_kept[buffer]));
            let kept = results.collect();
            Chain { members: link.members, at: link.at, kept }
        };
        self.links.into_iter().filter(|link| link.members.len() > 1).map(chain).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{DefaultHasher, Hash, Hasher};

    use proptest::prelude::*;

    use super::*;
    use crate::trace::{Access, Buffer, Mode, Region, Work};

    const MOST: usize = 4;

    /// A launch: whether it is element-wise, what it reads (`true`: element by element), and what it writes.
    type Launch = (bool, Vec<(BufferId, bool)>, BufferId);

    /// Buffer 0 is the input, 1 a weight, the last the output; launches of [`Launch`].
    fn trace(buffers: usize, launches: &[Launch]) -> (Trace, Vec<Option<Pointwise>>) {
        let role = |id| match id {
            0 => Role::Input(0),
            1 => Role::External,
            _ if id + 1 == buffers => Role::Output(0),
            _ => Role::Intermediate,
        };
        let buffers = (0..buffers).map(|id| Buffer { bytes: 8, role: role(id) }).collect();
        let access = |buffer, mode| Access { buffer, region: Region::contiguous(0, 8), mode };
        let op = |(_, reads, result): &Launch| Op {
            name: "op".into(),
            label: String::new(),
            work: Work::Memset(0),
            accesses: reads
                .iter()
                .map(|&(buffer, _)| access(buffer, Mode::Read))
                .chain([access(*result, Mode::Write)])
                .collect(),
            nanos: None,
        };
        let pointwise = |(is, reads, result): &Launch| {
            let operands = reads.iter().map(|&(buffer, in_a_row)| Operand { buffer, in_a_row }).collect();
            is.then_some(Pointwise { elements: 8, operands, result: *result })
        };
        let ops = launches.iter().map(op).collect();
        (Trace { ops, buffers, ..Default::default() }, launches.iter().map(pointwise).collect())
    }

    fn of(pointwise: &[Option<Pointwise>]) -> Vec<Option<&Pointwise>> {
        pointwise.iter().map(Option::as_ref).collect()
    }

    fn members(buffers: usize, launches: &[Launch]) -> Vec<(Vec<OpId>, OpId, Vec<bool>)> {
        let (trace, pointwise) = trace(buffers, launches);
        chains(&trace, &of(&pointwise), MOST).into_iter().map(|chain| (chain.members, chain.at, chain.kept)).collect()
    }

    fn row(buffer: BufferId) -> (BufferId, bool) {
        (buffer, true)
    }

    #[test]
    fn a_chain_keeps_what_others_read() {
        // A norm: a cast and its square, of which a sum is made; a quotient of the cast and the sum, cast back.
        let launches = [
            (true, vec![row(0)], 2),
            (true, vec![row(2)], 3),
            (false, vec![row(3)], 4),
            (true, vec![row(2), (4, false)], 5),
            (true, vec![row(5), (1, false)], 6),
        ];
        assert_eq!(members(7, &launches), [(vec![0, 1], 0, vec![true, true]), (vec![3, 4], 3, vec![false, true])]);
    }

    #[test]
    fn a_chain_waits_for_an_operand_unless_it_has_been_read() {
        // The sum of a square and of something made after it.
        let sum =
            |between| [(true, vec![row(0)], 2), between, (false, vec![row(0)], 3), (true, vec![row(2), row(3)], 5)];
        let unread = (false, vec![row(0)], 4);
        assert_eq!(members(6, &sum(unread)), [(vec![0, 3], 3, vec![false, true])]);
        let read = (false, vec![row(2)], 4);
        assert_eq!(members(6, &sum(read)), []);
    }

    #[test]
    fn what_is_not_read_element_by_element_must_be_there() {
        assert_eq!(members(4, &[(true, vec![row(0)], 2), (true, vec![(2, false)], 3)]), []);
        assert_eq!(members(4, &[(true, vec![row(0)], 2), (true, vec![row(2), (2, false)], 3)]), []);
    }

    #[test]
    fn what_runs_once_stays_apart() {
        assert_eq!(members(4, &[(true, vec![row(1)], 2), (true, vec![row(2), row(0)], 3)]), []);
    }

    #[test]
    fn what_is_written_again_is_left_alone() {
        // The square is added to in place.
        let launches =
            [(true, vec![row(0)], 2), (false, vec![row(2)], 2), (true, vec![row(2)], 3), (true, vec![row(3)], 4)];
        assert_eq!(members(5, &launches), [(vec![2, 3], 2, vec![false, true])]);
        // The weight is changed after it was read.
        let launches = [(true, vec![row(1), row(0)], 2), (false, vec![row(0)], 1), (true, vec![row(2)], 3)];
        assert_eq!(members(4, &launches), []);
    }

    /// What every op reads where launches run in this order, each of which is several ops and tells of each whether it
    /// stores its result. What an op writes depends on what it reads and on itself alone.
    fn run(trace: &Trace, launches: &[Vec<(OpId, bool)>]) -> Vec<(OpId, Vec<u64>)> {
        let mut memory: Vec<u64> = (0..trace.buffers.len() as u64).collect();
        let mut seen = Vec::new();
        for launch in launches {
            let mut own = memory.clone();
            for &(op, is_kept) in launch {
                let values: Vec<u64> = read(&trace.ops[op]).map(|buffer| own[buffer]).collect();
                let mut hasher = DefaultHasher::new();
                (op, &values).hash(&mut hasher);
                for buffer in written(&trace.ops[op]) {
                    own[buffer] = hasher.finish();
                    if is_kept {
                        memory[buffer] = own[buffer];
                    }
                }
                seen.push((op, values));
            }
        }
        seen.sort();
        seen
    }

    /// Launches of which each writes a buffer of its own, or some of them one that was there before.
    fn launches() -> impl Strategy<Value = Vec<Launch>> {
        let read = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), prop::bool::weighted(0.8));
        let again = prop::option::weighted(0.1, any::<prop::sample::Index>());
        let launch = (prop::bool::weighted(0.8), prop::collection::vec(read, 1..3), again);
        prop::collection::vec(launch, 1..24).prop_map(|launches| {
            let launches = launches.into_iter().enumerate().map(|(at, (is_pointwise, reads, again))| {
                // Buffers close by are likelier.
                let reads = reads.into_iter().map(|(any, near, in_a_row)| {
                    let back = any.index(at + 2).min(near.index(6));
                    (at + 1 - back, in_a_row)
                });
                let result = again.filter(|_| at > 0).map_or(at + 2, |again| 1 + again.index(at));
                (is_pointwise, reads.collect(), result)
            });
            launches.collect()
        })
    }

    proptest! {
        #[test]
        fn every_op_reads_what_it_read_before(launches in launches()) {
            let (trace, pointwise) = trace(launches.len() + 2, &launches);
            let chains = chains(&trace, &of(&pointwise), MOST);
            let mut instead: Vec<Option<Vec<(OpId, bool)>>> = (0..launches.len()).map(|op| Some(vec![(op, true)])).collect();
            let apart: Vec<_> = instead.iter().flatten().cloned().collect();
            for chain in &chains {
                prop_assert!((2..=MOST).contains(&chain.members.len()));
                prop_assert!(chain.members.contains(&chain.at));
                chain.members.iter().for_each(|&op| instead[op] = None);
                instead[chain.at] = Some(chain.members.iter().copied().zip(chain.kept.iter().copied()).collect());
            }
            let fused: Vec<_> = instead.into_iter().flatten().collect();
            prop_assert_eq!(run(&trace, &apart), run(&trace, &fused));
        }
    }
}
