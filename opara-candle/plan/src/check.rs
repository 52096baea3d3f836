//! Proves a schedule and a layout against the trace. Shares no code with the planners.
//!
//! Debug builds check every executor that they build; tests check every scheduler on every trace.

use crate::memory::Layout;
use crate::schedule::Schedule;
use crate::trace::{OpId, Trace};
use crate::{Error, Result};

/// For each op, the set of ops that have finished before it starts, as a bit set.
struct Finished {
    words: usize,
    bits: Vec<u64>,
}

impl Finished {
    fn new(schedule: &Schedule) -> Self {
        let n = schedule.order.len();
        let words = n.div_ceil(64);
        let mut finished = Self { words, bits: vec![0; n * words] };
        let mut joined = vec![0; words];
        let mut stage = 0;
        for (at, &op) in schedule.order.iter().enumerate() {
            if schedule.barriers.binary_search(&at).is_ok() {
                schedule.order[stage..at].iter().for_each(|p| joined[p / 64] |= 1 << (p % 64));
                stage = at;
            }
            finished.bits[op * words..(op + 1) * words].copy_from_slice(&joined);
            schedule.predecessors[op].iter().for_each(|&p| finished.inherit(op, p));
        }
        finished
    }

    fn inherit(&mut self, op: OpId, from: OpId) {
        for w in 0..self.words {
            let known = self.bits[from * self.words + w];
            self.bits[op * self.words + w] |= known;
        }
        self.bits[op * self.words + from / 64] |= 1 << (from % 64);
    }

    fn is_before(&self, first: OpId, second: OpId) -> bool {
        self.bits[second * self.words + first / 64] >> (first % 64) & 1 == 1
    }

    /// The ops that have finished before at least one of these ops starts.
    fn before_any(&self, ops: impl Iterator<Item = OpId>) -> Vec<u64> {
        let mut any = vec![0; self.words];
        for op in ops {
            let finished = &self.bits[op * self.words..(op + 1) * self.words];
            any.iter_mut().zip(finished).for_each(|(any, finished)| *any |= finished);
        }
        any
    }

    /// The ops that have finished before every one of these ops starts.
    fn before_all(&self, ops: &[OpId]) -> Vec<u64> {
        let mut common = vec![u64::MAX; self.words];
        for &op in ops {
            let finished = &self.bits[op * self.words..(op + 1) * self.words];
            common.iter_mut().zip(finished).for_each(|(common, finished)| *common &= finished);
        }
        common
    }
}

/// A placed buffer.
struct Placed {
    id: usize,
    start: u64,
    end: u64,
    /// Its users as the non-zero words of a bit set.
    users: Vec<(usize, u64)>,
}

impl Placed {
    fn new(id: usize, start: u64, end: u64, users: &[OpId]) -> Self {
        let mut words: Vec<(usize, u64)> = Vec::new();
        for &user in users {
            match words.last_mut() {
                Some((word, bits)) if *word == user / 64 => *bits |= 1 << (user % 64),
                _ => words.push((user / 64, 1 << (user % 64))),
            }
        }
        Self { id, start, end, users: words }
    }

    /// Are all its users in this bit set?
    fn is_within(&self, set: &[u64]) -> bool {
        self.users.iter().all(|&(word, bits)| set[word] & bits == bits)
    }
}

/// Checks that a schedule launches every op once, keeps the recorded order of any two conflicting accesses, launches no op
/// before its predecessors, and contains no redundant wait.
///
/// # Errors
/// [`Error::InvalidSchedule`] naming the ops.
///
/// # Complexity
/// Quadratic in the ops, with a small factor: for tests and debug builds.
pub fn schedule(trace: &Trace, schedule: &Schedule) -> Result<()> {
    let invalid = |what: String| Err(Error::InvalidSchedule(what));
    let n = trace.ops.len();
    if [schedule.order.len(), schedule.stream.len(), schedule.predecessors.len()] != [n; 3] {
        return invalid(format!("{} ops are scheduled of {n}", schedule.order.len()));
    }
    // A schedule may come from outside, and the code below allocates a list per stream.
    if let Some(op) = (0..n).find(|&op| schedule.stream[op] >= n) {
        return invalid(format!("op {op} is on stream {} of a schedule of {n} ops", schedule.stream[op]));
    }
    if !schedule.barriers.is_sorted_by(|a, b| a < b) || schedule.barriers.iter().any(|&b| b == 0 || b >= n) {
        return invalid("barriers have to be ascending positions inside the order".into());
    }
    let mut position = vec![usize::MAX; n];
    for (at, &op) in schedule.order.iter().enumerate() {
        if op >= n || position[op] != usize::MAX {
            return invalid(format!("op {op} is launched twice or does not exist"));
        }
        position[op] = at;
    }
    if let Some(op) = schedule.urgent.iter().find(|&&op| op >= n) {
        return invalid(format!("op {op} is urgent and does not exist"));
    }
    for (op, predecessors) in schedule.predecessors.iter().enumerate() {
        if let Some(p) = predecessors.iter().find(|&&p| p >= n || position[p] >= position[op]) {
            return invalid(format!("op {op} waits for op {p}, which is launched after it"));
        }
        if !predecessors.is_sorted_by(|&a, &b| position[a] < position[b]) {
            return invalid(format!("the predecessors of op {op} are not in launch order"));
        }
    }
    let finished = Finished::new(schedule);
    for (first, second) in conflicts(trace) {
        if !finished.is_before(first, second) {
            let name = |op: OpId| &trace.ops[op].name;
            return invalid(format!("op {second} `{}` may overtake op {first} `{}`", name(second), name(first)));
        }
    }
    for (op, before) in schedule.stream_predecessors().into_iter().enumerate() {
        if let Some(before) = before.filter(|&before| !finished.is_before(before, op)) {
            return invalid(format!("op {op} does not wait for op {before}, its predecessor on the same stream"));
        }
        let waits: Vec<OpId> = schedule.waits(op).collect();
        if waits.is_empty() {
            continue;
        }
        let barrier = schedule.barriers.iter().rev().find(|&&barrier| barrier <= position[op]);
        if let Some(wait) = waits.iter().find(|&&wait| barrier.is_some_and(|&barrier| position[wait] < barrier)) {
            return invalid(format!("op {op} waits for op {wait}, which a barrier already waits for"));
        }
        let implied = finished.before_any(waits.iter().copied().chain(before));
        if let Some(&wait) = waits.iter().find(|&&wait| implied[wait / 64] >> (wait % 64) & 1 == 1) {
            let other = waits.iter().copied().chain(before).find(|&other| finished.is_before(wait, other));
            let other = other.unwrap_or(op);
            return invalid(format!("op {op} waits for op {wait}, which op {other} already waits for"));
        }
    }
    Ok(())
}

/// Checks that every buffer of the layout's role has a place inside the arena, and that no two buffers that share bytes
/// can be in use at the same time under the schedule.
///
/// # Errors
/// [`Error::InvalidLayout`] naming the buffers.
///
/// # Complexity
/// Quadratic in the ops, with a small factor, and linear in the pairs of buffers that share bytes: for tests and debug
/// builds.
pub fn layout(trace: &Trace, schedule: &Schedule, layout: &Layout) -> Result<()> {
    let invalid = |what: String| Err(Error::InvalidLayout(what));
    let users = trace.users();
    let finished = Finished::new(schedule);
    let mut placed: Vec<Placed> = Vec::new();
    for (id, buffer) in trace.buffers.iter().enumerate() {
        match layout.offset(id) {
            Some(offset) if offset + buffer.bytes > layout.bytes => {
                return invalid(format!("buffer {id} ends outside the arena of {} bytes", layout.bytes));
            }
            Some(offset) => placed.push(Placed::new(id, offset, offset + buffer.bytes, &users[id])),
            None if crate::memory::is_planned(buffer, layout.role) && !users[id].is_empty() => {
                return invalid(format!("buffer {id} has no place"));
            }
            None => {}
        }
    }
    placed.retain(|buffer| buffer.start < buffer.end);
    placed.sort_by_key(|buffer| buffer.start);
    let mut shared: Vec<Vec<usize>> = vec![Vec::new(); placed.len()];
    for (at, buffer) in placed.iter().enumerate() {
        for other in (at + 1..placed.len()).take_while(|&other| placed[other].start < buffer.end) {
            shared[at].push(other);
            shared[other].push(at);
        }
    }
    // If two buffers share bytes, the last user of one must finish before the first user of the other starts.
    let pair = |a: usize, b: usize| (a.min(b), a.max(b));
    let mut in_order = hashbrown::HashSet::new();
    for (at, others) in shared.iter().enumerate() {
        let before = finished.before_all(&users[placed[at].id]);
        in_order.extend(others.iter().filter(|&&other| placed[other].is_within(&before)).map(|&other| pair(at, other)));
    }
    for (at, others) in shared.iter().enumerate() {
        if let Some(&other) = others.iter().find(|&&other| !in_order.contains(&pair(at, other))) {
            let (a, b) = pair(placed[at].id, placed[other].id);
            return invalid(format!("buffers {a} and {b} share bytes and may be in use at the same time"));
        }
    }
    Ok(())
}

/// Every pair of ops that access the same bytes, at least one of them writing; the earlier op comes first.
fn conflicts(trace: &Trace) -> impl Iterator<Item = (OpId, OpId)> + '_ {
    trace.users().into_iter().enumerate().flat_map(move |(buffer, users)| {
        let accesses = |op: OpId| trace.ops[op].accesses.iter().filter(move |a| a.buffer == buffer);
        let conflict = move |a: OpId, b: OpId| {
            accesses(a)
                .any(|x| accesses(b).any(|y| (x.mode.writes() || y.mode.writes()) && x.region.overlaps(&y.region)))
        };
        let mut pairs = Vec::new();
        let writes = |op: OpId| accesses(op).any(|a| a.mode.writes());
        for (i, &b) in users.iter().enumerate() {
            let b_writes = writes(b);
            pairs.extend(users[..i].iter().filter(|&&a| (b_writes || writes(a)) && conflict(a, b)).map(|&a| (a, b)));
        }
        pairs
    })
}
