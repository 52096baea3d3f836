//! Proves a schedule and a layout against the trace, sharing nothing with the code that made them.
//!
//! Debug builds check every executor that they build; tests check every policy on every trace.

use crate::memory::Layout;
use crate::schedule::Schedule;
use crate::trace::{OpId, Trace};
use crate::{Error, Result};

/// Which ops are finished before which start, as one bit set an op.
struct Finished {
    words: usize,
    bits: Vec<u64>,
}

impl Finished {
    fn new(schedule: &Schedule) -> Self {
        let n = schedule.order.len();
        let words = n.div_ceil(64);
        let mut finished = Self { words, bits: vec![0; n * words] };
        let mut last = vec![None; schedule.streams()];
        for &op in &schedule.order {
            let before = last[schedule.stream[op]].replace(op);
            for p in before.into_iter().chain(schedule.predecessors[op].iter().copied()) {
                finished.inherit(op, p);
            }
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

    fn before(&self, first: OpId, second: OpId) -> bool {
        self.bits[second * self.words + first / 64] >> (first % 64) & 1 == 1
    }
}

/// Checks that a schedule launches every op once, orders every two conflicting accesses as they were recorded, launches
/// nothing before what it waits for, and holds no wait that is already implied.
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
    let mut position = vec![usize::MAX; n];
    for (at, &op) in schedule.order.iter().enumerate() {
        if op >= n || position[op] != usize::MAX {
            return invalid(format!("op {op} is launched twice or does not exist"));
        }
        position[op] = at;
    }
    for (op, predecessors) in schedule.predecessors.iter().enumerate() {
        if let Some(p) = predecessors.iter().find(|&&p| p >= n || position[p] >= position[op]) {
            return invalid(format!("op {op} waits for op {p}, which is launched after it"));
        }
    }
    let finished = Finished::new(schedule);
    for (first, second) in conflicts(trace) {
        if !finished.before(first, second) {
            let name = |op: OpId| &trace.ops[op].name;
            return invalid(format!("op {second} `{}` may overtake op {first} `{}`", name(second), name(first)));
        }
    }
    let before = schedule.stream_predecessors();
    for (op, &before) in before.iter().enumerate() {
        for wait in schedule.waits(op) {
            let mut others = schedule.waits(op).filter(|&o| o != wait).chain(before);
            if let Some(other) = others.find(|&o| finished.before(wait, o)) {
                return invalid(format!("op {op} waits for op {wait}, which op {other} already waits for"));
            }
        }
    }
    Ok(())
}

/// Checks that every buffer of the layout's role has a place inside the arena, and that no two which share bytes can be alive
/// at the same time under the schedule.
///
/// # Errors
/// [`Error::InvalidLayout`] naming the buffers.
///
/// # Complexity
/// Quadratic in ops and buffers: for tests and debug builds.
pub fn layout(trace: &Trace, schedule: &Schedule, layout: &Layout) -> Result<()> {
    let invalid = |what: String| Err(Error::InvalidLayout(what));
    let users = trace.users();
    let finished = Finished::new(schedule);
    let mut placed: Vec<(usize, u64, u64)> = Vec::new();
    for (id, buffer) in trace.buffers.iter().enumerate() {
        match layout.offset(id) {
            Some(offset) if offset + buffer.bytes > layout.bytes => {
                return invalid(format!("buffer {id} ends outside the arena of {} bytes", layout.bytes));
            }
            Some(offset) => placed.push((id, offset, offset + buffer.bytes)),
            None if crate::memory::is_planned(buffer, layout.role) && !users[id].is_empty() => {
                return invalid(format!("buffer {id} has no place"));
            }
            None => {}
        }
    }
    let all_before = |a: usize, b: usize| users[a].iter().all(|&u| users[b].iter().all(|&v| finished.before(u, v)));
    for (i, &(a, a_start, a_end)) in placed.iter().enumerate() {
        for &(b, b_start, b_end) in &placed[..i] {
            if a_start < b_end && b_start < a_end && !all_before(a, b) && !all_before(b, a) {
                return invalid(format!("buffers {b} and {a} share bytes and may be alive at the same time"));
            }
        }
    }
    Ok(())
}

/// Every pair of ops that touch the same bytes, at least one of them writing; the earlier first.
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
