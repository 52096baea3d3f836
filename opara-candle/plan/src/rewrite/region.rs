//! Runs of consecutive ops whose meaning is known, as long as they can be.

use std::ops::Range;

use super::graph::{Graph, Output, Value};
use super::parts::concat;
use super::run::{Run, State};
use crate::trace::{BufferId, Function, Op, OpId, Role, Trace};

/// Consecutive ops, and what they compute together.
#[derive(Debug, Clone, PartialEq)]
pub struct Region {
    /// The ops.
    pub ops: Range<OpId>,
    /// Ops of the run that are not replaced, since later ops read their results: uploads and zeros.
    pub kept: Vec<OpId>,
    /// The graph of the other ops.
    pub graph: Graph,
}

/// The longest runs of consecutive ops whose meaning is known, in their order. Ops that compute nothing alone make no run.
///
/// Since the ops of a run follow one another, whatever takes their place may read what was there before and fill what is read
/// afterwards, and nothing else.
pub fn regions(trace: &Trace) -> Vec<Region> {
    let last_users: Vec<Option<OpId>> = trace.users().iter().map(|users| users.last().copied()).collect();
    let is_written = trace.written();
    let mut regions = Vec::new();
    let mut start = 0;
    while start < trace.ops.len() {
        let mut limit = trace.ops.len();
        let end = loop {
            let mut run = Run::new(trace, &last_users, &is_written);
            let end = start + (start..limit).take_while(|&op| run.take(op).is_some()).count();
            // What a part of a call leaves is for the call's last launch, which is not taken.
            let whole = start + trace.ops[start..end].iter().rposition(|op| !is_part(op)).map_or(0, |last| last + 1);
            if whole < end {
                limit = whole;
                continue;
            }
            // Where later ops read what the run has filled in part, it has to end before that.
            match run.finish(start..end) {
                Ok(region) => {
                    regions.extend(region);
                    break end;
                }
                Err(before) => limit = before.max(start),
            }
        };
        start = end.max(start + 1);
    }
    regions
}

fn is_part(op: &Op) -> bool {
    op.meaning.as_ref().is_some_and(|meaning| meaning.function == Function::Part)
}

impl Run<'_> {
    /// The region of these ops, if they compute anything.
    ///
    /// # Errors
    /// The op before which the run has to end.
    fn finish(mut self, ops: Range<OpId>) -> Result<Option<Region>, OpId> {
        let is_needed = |buffer: BufferId| {
            let role = self.trace.buffers[buffer].role;
            matches!(role, Role::Output(_))
                || self.last_users[buffer].is_some_and(|last| last >= ops.end)
                || self.inputs.contains_key(&buffer) && role != Role::External
        };
        let mut needed: Vec<BufferId> = self.states.keys().copied().filter(|&buffer| is_needed(buffer)).collect();
        needed.sort_unstable();
        let (mut kept, mut too_early) = (Vec::new(), None);
        for buffer in needed {
            let bytes = self.trace.buffers[buffer].bytes;
            let value = match &self.states[&buffer] {
                State::Whole(value) => Ok(*value),
                State::Zeros(op) | State::Upload(op) => {
                    kept.push(*op);
                    continue;
                }
                State::Scratch(op) => Err(*op),
                State::Parts(op, parts) => concat(parts, bytes).ok_or(*op).map(|node| {
                    self.graph.nodes.push(node);
                    Value::Node(self.graph.nodes.len() - 1)
                }),
            };
            match value {
                Ok(value) => self.graph.outputs.push(Output { value, buffer }),
                Err(op) => too_early = Some(too_early.map_or(op, |earlier: OpId| earlier.min(op))),
            }
        }
        kept.sort_unstable();
        match too_early {
            Some(op) => Err(op),
            // What reads nothing is the same in every pass.
            None => {
                self.graph.constants_first();
                let is_any = !self.graph.outputs.is_empty() && !self.graph.inputs.is_empty();
                Ok(is_any.then_some(Region { ops, kept, graph: self.graph }))
            }
        }
    }
}
