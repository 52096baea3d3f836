//! Finds the fusion groups of a trace: walks the ops in recorded order, and adds each to an open group if possible.

use super::fusible::{Fusible, Operand, ReadPattern};
use super::group::{FusionGroup, Permutation};
use super::strided_view::StridedView;
use crate::optimize::{read, runs_at_every_call, written};
use crate::trace::{Op, OpId, Role, Trace};

/// A group that ops may still join.
struct OpenGroup {
    members: Vec<OpId>,
    /// The member whose position in the trace the kernel takes.
    at: OpId,
    /// The first op behind the members that overwrites what one of them reads: the kernel runs before it.
    overwritten: Option<OpId>,
    elements: u64,
    columns: Option<u64>,
    /// For each member: does it run on one scalar per row instead of on every element?
    is_row_scalar: Vec<bool>,
    permutation: Option<Permutation>,
    /// Has an op outside the group read a member's result?
    is_read: bool,
    /// Is a generated kernel faster even for one member alone?
    gains: bool,
    /// The group whose ops this group recomputes, before its permutation, for the slice that it reads.
    recomputes: Option<usize>,
    /// Groups that recompute this group's ops, and the number of elements that they recompute in total.
    recomputed_by: Vec<usize>,
    recomputed_elements: u64,
}

impl OpenGroup {
    fn of(op: OpId, fusible: &Fusible, overwritten: Option<OpId>) -> Self {
        let Fusible { elements, columns, gains_alone: gains, .. } = *fusible;
        Self {
            members: vec![op],
            at: op,
            overwritten,
            elements,
            columns,
            is_row_scalar: vec![false],
            permutation: None,
            is_read: false,
            gains,
            recomputes: None,
            recomputed_by: Vec::new(),
            recomputed_elements: 0,
        }
    }

    /// The number of leading members that are recomputed from another group.
    fn recomputed(&self) -> usize {
        self.permutation.filter(|_| self.recomputes.is_some()).map_or(0, |permutation| permutation.before)
    }

    /// The row length of the group with another member, and whether that member would run on row scalars. `None` if the
    /// number of elements or the row lengths do not match.
    fn with(&self, fusible: &Fusible) -> Option<(Option<u64>, bool)> {
        if self.elements == fusible.elements {
            let agree = self.columns.is_none_or(|own| fusible.columns.is_none_or(|columns| columns == own));
            return agree.then_some((self.columns.or(fusible.columns), false));
        }
        let rows = self.elements / self.columns?;
        (fusible.elements == rows && fusible.columns.is_none()).then_some((self.columns, true))
    }
}

/// The way an op would join a group.
struct Joined {
    group: usize,
    at: OpId,
    columns: Option<u64>,
    is_row_scalar: bool,
    permutation: Option<Permutation>,
    /// The first op behind it that overwrites an operand.
    overwritten: Option<OpId>,
}

pub(super) struct Grouping<'a> {
    trace: &'a Trace,
    fusible: &'a [Option<&'a Fusible>],
    /// For each op: does some reader need its full result?
    is_needed_whole: &'a [bool],
    max_members: usize,
    /// Number of reads of each buffer.
    reads: Vec<usize>,
    /// For each op: does it run at every call?
    runs_at_every_call: Vec<bool>,
    /// For each buffer: all ops that write it, in order.
    writers: Vec<Vec<OpId>>,
    /// For each buffer: was it read or written so far?
    touched: Vec<bool>,
    /// For each buffer: the last op that wrote it.
    writer: Vec<Option<OpId>>,
    groups: Vec<OpenGroup>,
    group_of: Vec<Option<usize>>,
    /// For each op: does it, as a member of a group, give one scalar per row?
    gives_row_scalars: Vec<bool>,
}

impl<'a> Grouping<'a> {
    pub(super) fn new(
        trace: &'a Trace,
        fusible: &'a [Option<&'a Fusible>],
        is_needed_whole: &'a [bool],
        max_members: usize,
    ) -> Self {
        let buffers = trace.buffers.len();
        let (mut reads, mut writers) = (vec![0; buffers], vec![Vec::new(); buffers]);
        trace.ops.iter().flat_map(read).for_each(|buffer| reads[buffer] += 1);
        for (id, op) in trace.ops.iter().enumerate() {
            written(op).for_each(|buffer| writers[buffer].push(id));
        }
        Self {
            trace,
            fusible,
            is_needed_whole,
            max_members,
            reads,
            runs_at_every_call: runs_at_every_call(trace),
            writers,
            touched: vec![false; buffers],
            writer: vec![None; buffers],
            groups: Vec::new(),
            group_of: vec![None; trace.ops.len()],
            gives_row_scalars: vec![false; trace.ops.len()],
        }
    }

    /// Adds an op to a group, or starts a group with it.
    pub(super) fn add(&mut self, op: OpId, fusible: &Fusible) {
        let operands = &fusible.operands;
        let is_in_place = operands.iter().any(|operand| operand.buffer == fusible.result);
        if self.writers[fusible.result].len() != 1 || self.touched[fusible.result] || is_in_place {
            return;
        }
        let overwritten = self.overwritten(op, fusible);
        let joined = operands.iter().filter_map(|operand| self.joined(op, fusible, *operand, overwritten));
        let joined = joined.max_by_key(|j| j.at);
        let Some(Joined { group, at, columns, is_row_scalar, permutation, overwritten }) = joined else {
            self.group_of[op] = Some(self.groups.len());
            self.gives_row_scalars[op] = fusible.reduces;
            let recomputing = operands.iter().find_map(|operand| self.recomputing(op, fusible, *operand, overwritten));
            if let Some(source) = recomputing.as_ref().and_then(|group| group.recomputes) {
                let group = self.groups.len();
                self.groups[source].recomputed_by.push(group);
                self.groups[source].recomputed_elements += fusible.elements;
            }
            self.groups.push(recomputing.unwrap_or_else(|| OpenGroup::of(op, fusible, overwritten)));
            return;
        };
        self.group_of[op] = Some(group);
        self.gives_row_scalars[op] = is_row_scalar || fusible.reduces;
        let group = &mut self.groups[group];
        (group.at, group.overwritten) = (at, overwritten);
        (group.columns, group.permutation) = (columns, permutation);
        group.members.push(op);
        group.is_row_scalar.push(is_row_scalar);
    }

    /// The first op behind `op` that overwrites one of its operands. The fused kernel may read them until then.
    fn overwritten(&self, op: OpId, fusible: &Fusible) -> Option<OpId> {
        let next = |operand: &Operand| {
            let writers = &self.writers[operand.buffer];
            writers.get(writers.partition_point(|&writer| writer <= op)).copied()
        };
        fusible.operands.iter().filter_map(next).min()
    }

    /// The way `op` can join the group that computes this operand; `None` if it cannot. Its operands are there until the op `overwritten`.
    fn joined(&self, op: OpId, fusible: &Fusible, operand: Operand, overwritten: Option<OpId>) -> Option<Joined> {
        let maker = self.writer[operand.buffer]?;
        let id = self.group_of[maker]?;
        let group = &self.groups[id];
        let (columns, is_row_scalar) = group.with(fusible)?;
        let member = |o: &Operand| self.writer[o.buffer].filter(|&writer| self.group_of[writer] == Some(id));
        let is_available = |o: &Operand| match (member(o), o.pattern()) {
            (None, _) => true,
            (Some(maker), ReadPattern::Element) => self.gives_row_scalars[maker] == is_row_scalar,
            (Some(maker), ReadPattern::RowScalar(of)) => {
                self.gives_row_scalars[maker] && !is_row_scalar && columns == Some(of)
            }
            (Some(_), ReadPattern::Other) => false,
        };
        let permutation = if fusible.operands.iter().all(is_available) {
            group.permutation
        } else {
            let order = operand.order(group.elements)?;
            let is_alike = |o: &Operand| member(o).is_none() || (o.first == Some(0) && o.view == order);
            let permutes =
                columns.is_none() && fusible.operands.iter().all(is_alike) && self.can_permute(group, op, &order);
            Some(permutes.then_some(Permutation { before: group.members.len(), order, first: 0 })?)
        };
        let fits =
            self.runs_at_every_call[maker] == self.runs_at_every_call[op] && group.members.len() < self.max_members;
        let outer = fusible.operands.iter().filter(|o| member(o).is_none());
        let ready = outer.filter_map(|o| Some(self.runs_at(self.writer[o.buffer]?))).max();
        let at =
            if ready.is_none_or(|ready| ready < group.at) { Some(group.at) } else { (!group.is_read).then_some(op) };
        let overwritten = earlier(group.overwritten, overwritten);
        let at = at.filter(|&at| fits && overwritten.is_none_or(|overwritten| at < overwritten))?;
        Some(Joined { group: id, at, columns, is_row_scalar, permutation, overwritten })
    }

    /// A new group of `op` that recomputes the slice of another group's result that `op` reads, such as the keys in the
    /// biased output of a QKV matmul. This is a gain only if every reader of that group recomputes its own slice.
    fn recomputing(
        &self,
        op: OpId,
        fusible: &Fusible,
        operand: Operand,
        overwritten: Option<OpId>,
    ) -> Option<OpenGroup> {
        let maker = self.writer[operand.buffer]?;
        let source = self.group_of[maker]?;
        let group = &self.groups[source];
        let is_of_group =
            |o: &Operand| self.writer[o.buffer].is_some_and(|writer| self.group_of[writer] == Some(source));
        let is_alike = |o: &Operand| !is_of_group(o) || *o == operand;
        let (order, first) = (operand.view, operand.first?);
        let fits = group.columns.is_none()
            && fusible.columns.is_none()
            && group.permutation.is_none()
            && !group.members.iter().any(|&member| self.is_needed_whole[member])
            && group.recomputed_elements + fusible.elements <= group.elements
            && group.members.len() < self.max_members
            && self.runs_at_every_call[maker] == self.runs_at_every_call[op]
            && group.overwritten.is_none_or(|overwritten| op < overwritten);
        if !fits || !fusible.operands.iter().all(is_alike) || !self.stay_strided(group, &order, first) {
            return None;
        }
        let permutation = Some(Permutation { before: group.members.len(), order, first });
        let is_row_scalar = vec![false; group.members.len() + 1];
        let members = group.members.iter().copied().chain([op]).collect();
        let overwritten = earlier(group.overwritten, overwritten);
        let own = OpenGroup::of(op, fusible, overwritten);
        Some(OpenGroup { members, is_row_scalar, permutation, recomputes: Some(source), ..own })
    }

    /// Can a group run over its elements in the order in which `op` reads them? Yes, if no other op reads its results,
    /// and its operands are strided views in that order, too.
    fn can_permute(&self, group: &OpenGroup, op: OpId, order: &StridedView) -> bool {
        let readers: Vec<OpId> = group.members.iter().copied().chain([op]).collect();
        group.permutation.is_none() && self.are_only_readers(group, &readers) && self.stay_strided(group, order, 0)
    }

    /// Are a group's operands still strided views if it runs over its elements in this order, from `first` on?
    fn stay_strided(&self, group: &OpenGroup, order: &StridedView, first: u64) -> bool {
        let all = || group.members.iter().filter_map(|&member| self.fusible[member]);
        let is_inner = |buffer| all().any(|member| member.result == buffer);
        let mut operands = all().flat_map(|member| &member.operands);
        operands.all(|operand| is_inner(operand.buffer) || operand.view.compose(order, first).is_some())
    }

    /// Is it true that only these ops read the results of a group's members, and that none of the results is an output?
    fn are_only_readers(&self, group: &OpenGroup, readers: &[OpId]) -> bool {
        group.members.iter().filter_map(|&member| self.fusible[member]).all(|Fusible { result, .. }| {
            let is_output = matches!(self.trace.buffers[*result].role, Role::Output(_));
            let reads = readers.iter().flat_map(|&op| read(&self.trace.ops[op])).filter(|buffer| buffer == result);
            !is_output && reads.count() == self.reads[*result]
        })
    }

    fn runs_at(&self, op: OpId) -> OpId {
        self.group_of[op].map_or(op, |group| self.groups[group].at)
    }

    /// Notes the accesses of an op.
    pub(super) fn note_accesses(&mut self, op: OpId, launch: &Op) {
        for access in &launch.accesses {
            self.touched[access.buffer] = true;
            let maker = self.writer[access.buffer].and_then(|writer| self.group_of[writer]);
            if let Some(group) = maker.filter(|_| access.mode.reads() && maker != self.group_of[op]) {
                self.groups[group].is_read = true;
            }
        }
        for buffer in written(launch) {
            self.writer[buffer] = Some(op);
        }
    }

    /// Does every reader of a group's results recompute its own slice? Then the group itself need not run.
    fn is_recomputed_by_all_readers(&self, group: usize) -> bool {
        let group = &self.groups[group];
        let recomputing = || group.recomputed_by.iter().map(|&other| &self.groups[other]);
        let readers = recomputing().map(|other| other.members[other.recomputed()]);
        let readers: Vec<OpId> = group.members.iter().copied().chain(readers).collect();
        recomputing().any(|other| other.recomputed() == group.members.len()) && self.are_only_readers(group, &readers)
    }

    /// All groups.
    ///
    /// # Errors
    /// Ops that were recomputed in slices, although some reader needs their full result.
    pub(super) fn finish(self) -> Result<Vec<FusionGroup>, Vec<OpId>> {
        let is_gone: Vec<bool> = (0..self.groups.len()).map(|group| self.is_recomputed_by_all_readers(group)).collect();
        let is_needed = |(group, is_gone): &(&OpenGroup, &bool)| !group.recomputed_by.is_empty() && !**is_gone;
        let needed = self.groups.iter().zip(&is_gone).filter(is_needed);
        let needed: Vec<OpId> = needed.flat_map(|(group, _)| group.members.iter().copied()).collect();
        if !needed.is_empty() {
            return Err(needed);
        }
        let mut is_stored: Vec<bool> = self.trace.buffers.iter().map(|b| matches!(b.role, Role::Output(_))).collect();
        for (op, launch) in self.trace.ops.iter().enumerate() {
            for buffer in read(launch) {
                let maker = self.writer[buffer].and_then(|writer| self.group_of[writer]);
                is_stored[buffer] |= maker.is_none() || maker != self.group_of[op];
            }
        }
        let fusion_group = |group: OpenGroup| {
            let results = group.members.iter().map(|&op| written(&self.trace.ops[op]).any(|buffer| is_stored[buffer]));
            let is_stored = results.enumerate().map(|(at, is_stored)| is_stored && at >= group.recomputed()).collect();
            let OpenGroup { members, at, elements, columns, is_row_scalar, permutation, .. } = group;
            FusionGroup { members, at, is_stored, is_row_scalar, elements, columns, permutation }
        };
        // An op that runs once, while the executor is built, need not be fast.
        let gains = |group: &OpenGroup| group.members.len() > 1 || (group.gains && self.runs_at_every_call[group.at]);
        let stay = self.groups.into_iter().zip(is_gone).filter(|(_, is_gone)| !is_gone).map(|(group, _)| group);
        Ok(stay.filter(gains).map(fusion_group).collect())
    }
}

/// The first of two ops, of which there may be none.
fn earlier(a: Option<OpId>, b: Option<OpId>) -> Option<OpId> {
    a.into_iter().chain(b).min()
}
