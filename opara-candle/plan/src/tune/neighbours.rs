//! Small random mutations of a schedule.

use crate::schedule::{Problem, Schedule};
use crate::trace::OpId;
use crate::Result;

/// A mutation makes 2^k changes, with k uniform below this.
const MAX_LOG2_CHANGES: u32 = 6;

/// A random mutation of a schedule.
pub(super) fn mutate(problem: &Problem, schedule: &Schedule, random: &mut fastrand::Rng) -> Result<Schedule> {
    let mut draft = Draft { problem, schedule: schedule.clone(), random };
    if !schedule.order.is_empty() {
        for _ in 0..1 << draft.random.u32(0..MAX_LOG2_CHANGES) {
            match draft.random.u32(0..6) {
                0 => draft.launch_earlier(),
                1 => draft.launch_later(),
                2 => draft.merge_streams(),
                3 => draft.split_stream(),
                4 => draft.follow_another(),
                _ => draft.toggle_urgency(),
            }
        }
    }
    let Schedule { stream, order, barriers, urgent, .. } = draft.schedule;
    Ok(Schedule { urgent, ..Schedule::with_barriers(problem.graph, stream, order, barriers)? })
}

struct Draft<'a> {
    problem: &'a Problem<'a>,
    schedule: Schedule,
    random: &'a mut fastrand::Rng,
}

impl Draft<'_> {
    fn position(&mut self) -> usize {
        self.random.usize(0..self.schedule.order.len())
    }

    /// The range of positions between the two barriers around a position.
    fn stage(&self, at: usize) -> std::ops::Range<usize> {
        let barriers = &self.schedule.barriers;
        let next = barriers.partition_point(|&barrier| barrier <= at);
        let start = next.checked_sub(1).map_or(0, |before| barriers[before]);
        start..barriers.get(next).copied().unwrap_or(self.schedule.order.len())
    }

    /// Moves an op forward in the launch order, but not before its predecessors.
    fn launch_earlier(&mut self) {
        let at = self.position();
        let (op, stage) = (self.schedule.order[at], self.stage(at));
        let needed = |p: OpId| self.problem.graph.predecessors(op).any(|q| q == p);
        let bound = (stage.start..at).rev().find(|&i| needed(self.schedule.order[i])).map_or(stage.start, |i| i + 1);
        if bound < at {
            let to = self.random.usize(bound..at);
            self.schedule.order[to..=at].rotate_right(1);
        }
    }

    /// Moves an op back in the launch order, but not after its successors.
    fn launch_later(&mut self) {
        let at = self.position();
        let (op, stage) = (self.schedule.order[at], self.stage(at));
        let needs = |s: OpId| self.problem.graph.successors(op).any(|q| q == s);
        let bound = (at + 1..stage.end).find(|&i| needs(self.schedule.order[i])).unwrap_or(stage.end);
        if at + 1 < bound {
            let to = self.random.usize(at + 1..bound);
            self.schedule.order[at..=to].rotate_left(1);
        }
    }

    /// Merges two streams.
    fn merge_streams(&mut self) {
        let streams = self.schedule.streams();
        let (from, to) = (self.random.usize(0..streams), self.random.usize(0..streams));
        self.schedule.stream.iter_mut().filter(|stream| **stream == from).for_each(|stream| *stream = to);
    }

    /// Moves the rest of a stream, from position `at` on, to stream `to`.
    fn move_rest(&mut self, at: usize, to: usize) {
        let from = self.schedule.stream[self.schedule.order[at]];
        for &op in &self.schedule.order[at..] {
            if self.schedule.stream[op] == from {
                self.schedule.stream[op] = to;
            }
        }
    }

    /// Splits a stream before some op.
    fn split_stream(&mut self) {
        let at = self.position();
        self.move_rest(at, self.schedule.streams());
    }

    /// Moves an op, and the rest of its stream, to the stream of one of its predecessors.
    fn follow_another(&mut self) {
        let at = self.position();
        let op = self.schedule.order[at];
        let before: Vec<OpId> = self.problem.graph.predecessors(op).collect();
        if let Some(&p) = self.random.choice(&before) {
            self.move_rest(at, self.schedule.stream[p]);
        }
    }

    /// Makes an op urgent, or no longer urgent.
    fn toggle_urgency(&mut self) {
        let at = self.position();
        let op = self.schedule.order[at];
        match self.schedule.urgent.binary_search(&op) {
            Ok(found) => drop(self.schedule.urgent.remove(found)),
            Err(place) => self.schedule.urgent.insert(place, op),
        }
    }
}
