//! Constant folding: ops that give the same result at every call run once, while the executor is built.

use std::collections::BinaryHeap;

use crate::memory;
use crate::trace::{AccessMode, BufferId, Op, OpId, Role, Trace, Work};

/// A trace in two parts: the ops that run once, and the ops that every call runs.
///
/// Buffers keep their ids in both. Buffers that the first part fills for the second have [`Role::Constant`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Optimized {
    /// The ops that every call runs.
    pub trace: Trace,
    /// For each op of `trace`, its id in the original trace.
    pub per_call: Vec<OpId>,
    /// The ops that run once, in recorded order.
    pub once: Trace,
    /// For each op of `once`, its id in the original trace.
    pub folded: Vec<OpId>,
}

impl Optimized {
    /// The unchanged trace, with nothing folded.
    pub fn unchanged(trace: &Trace) -> Self {
        let once = Trace { ops: Vec::new(), ..trace.clone() };
        Self { trace: trace.clone(), per_call: (0..trace.ops.len()).collect(), once, folded: Vec::new() }
    }

    /// Folds constants: position ids, masks of ones, casts and transpositions of weights. Leaves out ops whose results nobody reads, such as
    /// gradients that no optimizer asks for.
    ///
    /// An op can be folded if nothing that it reads depends on an input or is state, and if it writes only intermediate buffers that no
    /// unfolded op writes. Results that unfolded ops read are stored permanently, in at most `room` bytes. If that is not
    /// enough, every call recomputes the largest of them from smaller ones.
    ///
    /// # Complexity
    /// Linear in accesses for each round; there is a second round only if an unfolded op writes to a buffer, too.
    pub fn fold_constants(trace: &Trace, room: u64) -> Self {
        let mut runs = runs_at_every_call(trace);
        let foldable: Vec<bool> = runs.iter().map(|&stays| !stays).collect();
        runs.iter_mut().zip(read_behind(trace)).for_each(|(runs, is_read)| *runs &= is_read);
        let constants = Constants::new(trace, &foldable).choose(&mut runs, room);

        let mut optimized = Self::unchanged(trace);
        for part in [&mut optimized.trace, &mut optimized.once] {
            part.buffers.iter_mut().zip(&constants).filter(|(_, &is)| is).for_each(|(b, _)| b.role = Role::Constant);
        }
        // Ops that run once share no workspaces with other executors.
        let workspaces = optimized.once.buffers.iter_mut().filter(|b| b.role == Role::Workspace);
        workspaces.for_each(|b| b.role = Role::Intermediate);
        optimized.per_call = (0..trace.ops.len()).filter(|&op| runs[op]).collect();
        optimized.folded = needed(trace, &foldable, constants);
        let ops = |ids: &[OpId]| ids.iter().map(|&op| trace.ops[op].clone()).collect();
        optimized.trace.ops = ops(&optimized.per_call);
        optimized.once.ops = ops(&optimized.folded);
        optimized
    }

    /// Folds as much as fits into `limit` bytes, together with the arena that the other ops need.
    pub fn fold_within(trace: &Trace, limit: u64) -> Self {
        /// Each attempt uses the arena size of the attempt before.
        const ATTEMPTS: usize = 3;
        // Tables of shapes are always folded: they take few bytes.
        let least = limit / 16;
        let mut folded = Self::fold_constants(trace, limit);
        for _ in 0..ATTEMPTS {
            // A sixteenth more, for gaps between buffers.
            let arena = memory::most_alive(&folded.trace) / 16 * 17;
            if folded.constant_bytes() <= limit.saturating_sub(arena).max(least) {
                break;
            }
            folded = Self::fold_constants(trace, limit.saturating_sub(arena).max(least));
        }
        folded
    }

    /// Bytes that constants take permanently.
    pub fn constant_bytes(&self) -> u64 {
        self.trace.buffers.iter().filter(|b| b.role == Role::Constant).map(|b| memory::constant_bytes(b.bytes)).sum()
    }
}

pub(crate) fn read(op: &Op) -> impl Iterator<Item = BufferId> + '_ {
    op.accesses.iter().filter(|a| a.mode.reads()).map(|a| a.buffer)
}

pub(crate) fn written(op: &Op) -> impl Iterator<Item = BufferId> + '_ {
    op.accesses.iter().filter(|a| a.mode.writes()).map(|a| a.buffer)
}

/// For each op: must every call run it?
pub(crate) fn runs_at_every_call(trace: &Trace) -> Vec<bool> {
    // A length that a pass only reads is other state at the next call all the same.
    let mut variable: Vec<bool> =
        trace.buffers.iter().map(|b| matches!(b.role, Role::Input(_) | Role::State(_))).collect();
    let foldable = |op: &Op, variable: &[bool]| {
        op.accesses.iter().all(|a| {
            let own = matches!(trace.buffers[a.buffer].role, Role::Intermediate | Role::Workspace);
            !variable[a.buffer] && (a.mode == AccessMode::Read || own)
        })
    };
    let mut stays = vec![false; trace.ops.len()];
    loop {
        let mut changed = false;
        for (op, stays) in trace.ops.iter().zip(&mut stays) {
            if !*stays && !foldable(op, &variable) {
                *stays = true;
                changed = true;
                written(op).for_each(|buffer| variable[buffer] = true);
            }
        }
        if !changed {
            return stays;
        }
    }
}

/// For each op: does a call leave anything behind that depends on it? Of an operator on the host that may be the shape of its result, which
/// the module's host code has looked at.
fn read_behind(trace: &Trace) -> Vec<bool> {
    let stays = |role: Role| !matches!(role, Role::Intermediate | Role::Workspace);
    let mut wanted: Vec<bool> = trace.buffers.iter().map(|buffer| stays(buffer.role)).collect();
    let mut is_read = vec![false; trace.ops.len()];
    for (op, is_read) in trace.ops.iter().zip(&mut is_read).rev() {
        let is_on_host = matches!(op.work, Work::Host { .. });
        *is_read = is_on_host || written(op).next().is_none() || written(op).any(|buffer| wanted[buffer]);
        if *is_read {
            read(op).for_each(|buffer| wanted[buffer] = true);
        }
    }
    is_read
}

/// Chooses the buffers that are stored as constants.
struct Constants<'a> {
    trace: &'a Trace,
    /// For each buffer, the foldable ops that write it.
    writers: Vec<Vec<OpId>>,
    constant: Vec<bool>,
    largest: BinaryHeap<(u64, BufferId)>,
    bytes: u64,
}

impl<'a> Constants<'a> {
    fn new(trace: &'a Trace, foldable: &[bool]) -> Self {
        let mut writers: Vec<Vec<OpId>> = vec![Vec::new(); trace.buffers.len()];
        for (id, op) in trace.ops.iter().enumerate().filter(|(id, _)| foldable[*id]) {
            written(op).for_each(|buffer| writers[buffer].push(id));
        }
        Self { trace, writers, constant: vec![false; trace.buffers.len()], largest: BinaryHeap::new(), bytes: 0 }
    }

    /// Chooses the results of folded ops that the ops in `runs` read, as far as they fit into `room` bytes. Adds to `runs` the
    /// ops that every call then has to recompute.
    fn choose(mut self, runs: &mut [bool], room: u64) -> Vec<bool> {
        for op in (0..runs.len()).filter(|&op| runs[op]) {
            self.keep(op, runs);
        }
        while self.bytes > room {
            let Some((_, buffer)) = self.largest.pop() else { break };
            self.recompute(buffer, runs);
        }
        self.constant
    }

    /// Chooses the results of folded ops that this op reads.
    fn keep(&mut self, op: OpId, runs: &[bool]) {
        for buffer in read(&self.trace.ops[op]) {
            let made_once = self.writers[buffer].first().is_some_and(|&writer| !runs[writer]);
            if made_once && !std::mem::replace(&mut self.constant[buffer], true) {
                let bytes = self.trace.buffers[buffer].bytes;
                self.bytes += memory::constant_bytes(bytes);
                self.largest.push((bytes, buffer));
            }
        }
    }

    /// Recomputes a buffer at every call. All of its writers then run at every call, so their other results are recomputed, too.
    fn recompute(&mut self, buffer: BufferId, runs: &mut [bool]) {
        let (mut buffers, mut ops) = (vec![buffer], Vec::new());
        while let Some(buffer) = buffers.pop() {
            if std::mem::take(&mut self.constant[buffer]) {
                self.bytes -= memory::constant_bytes(self.trace.buffers[buffer].bytes);
            }
            for &op in &self.writers[buffer] {
                if !std::mem::replace(&mut runs[op], true) {
                    buffers.extend(written(&self.trace.ops[op]));
                    ops.push(op);
                }
            }
        }
        ops.into_iter().for_each(|op| self.keep(op, runs));
    }
}

/// The foldable ops that the constants depend on, in recorded order.
fn needed(trace: &Trace, foldable: &[bool], mut wanted: Vec<bool>) -> Vec<OpId> {
    let mut needed: Vec<OpId> = Vec::new();
    for (id, op) in trace.ops.iter().enumerate().rev().filter(|(id, _)| foldable[*id]) {
        if written(op).any(|buffer| wanted[buffer]) {
            read(op).for_each(|buffer| wanted[buffer] = true);
            needed.push(id);
        }
    }
    needed.reverse();
    needed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Access, Buffer, Op, Region};

    const NONE: [OpId; 0] = [];

    /// Buffers: 0 input, 1 weight, 2 to 5 intermediate, 6 output. Each op reads the first list and writes the second.
    fn trace(ops: &[(&[usize], &[usize])]) -> Trace {
        use Role::*;
        let roles = [Input(0), External, Intermediate, Intermediate, Intermediate, Intermediate, Output(0)];
        let buffers = roles.map(|role| Buffer { bytes: 8, role }).to_vec();
        let access = |mode| move |&buffer: &usize| Access { buffer, region: Region::contiguous(0, 8), mode };
        let op = |(reads, writes): &(&[usize], &[usize])| Op {
            name: "op".into(),
            label: String::new(),
            work: Work::Memset(0),
            accesses: reads
                .iter()
                .map(access(AccessMode::Read))
                .chain(writes.iter().map(access(AccessMode::Write)))
                .collect(),
            nanos: None,
            meaning: None,
        };
        Trace { ops: ops.iter().map(op).collect(), buffers, ..Default::default() }
    }

    fn folded(ops: &[(&[usize], &[usize])]) -> Vec<OpId> {
        folded_of(&trace(ops))
    }

    fn folded_of(trace: &Trace) -> Vec<OpId> {
        let optimized = Optimized::fold_constants(trace, u64::MAX);
        let mut all: Vec<OpId> = optimized.per_call.iter().chain(&optimized.folded).copied().collect();
        all.sort();
        assert_eq!(
            all,
            (0..trace.ops.len()).collect::<Vec<_>>(),
            "every op that is needed runs at each call or is folded"
        );
        optimized.folded
    }

    #[test]
    fn ops_that_depend_on_weights_only_are_folded() {
        assert_eq!(folded(&[(&[], &[2]), (&[1, 2], &[3]), (&[0, 3], &[6])]), [0, 1]);
    }

    #[test]
    fn ops_that_depend_on_an_input_are_not_folded() {
        assert_eq!(folded(&[(&[0], &[2]), (&[2], &[3]), (&[3], &[6])]), NONE);
    }

    #[test]
    fn ops_that_only_read_state_are_not_folded() {
        let mut reads_a_length = trace(&[(&[1], &[2]), (&[2], &[3]), (&[0, 3], &[6])]);
        assert_eq!(folded_of(&reads_a_length), [0, 1], "of a weight");
        reads_a_length.buffers[1].role = Role::State(0);
        assert_eq!(folded_of(&reads_a_length), NONE);
    }

    #[test]
    fn a_buffer_that_is_written_again_at_every_call_is_no_constant() {
        // Zeros into which a later op accumulates the input, and earlier reads of these zeros.
        assert_eq!(folded(&[(&[], &[2]), (&[2], &[3]), (&[0, 2], &[2]), (&[2, 3], &[6])]), NONE);
    }

    #[test]
    fn weights_and_outputs_are_not_written_once_only() {
        assert_eq!(folded(&[(&[], &[1]), (&[1], &[6])]), NONE);
    }

    fn constants(optimized: &Optimized) -> Vec<BufferId> {
        let buffers = optimized.trace.buffers.iter().enumerate();
        buffers.filter(|(_, b)| b.role == Role::Constant).map(|(id, _)| id).collect()
    }

    #[test]
    fn only_results_that_calls_read_are_stored() {
        let optimized = Optimized::fold_constants(&trace(&[(&[1], &[2]), (&[2], &[3]), (&[0, 3], &[6])]), u64::MAX);
        assert_eq!((constants(&optimized), optimized.folded, optimized.per_call), (vec![3], vec![0, 1], vec![2]));
    }

    #[test]
    fn a_constant_that_no_op_reads_is_not_computed() {
        let optimized = Optimized::fold_constants(&trace(&[(&[1], &[2]), (&[0], &[6])]), u64::MAX);
        assert_eq!((optimized.folded, optimized.per_call), (vec![], vec![1]));
    }

    #[test]
    fn an_op_that_nothing_depends_on_is_left_out() {
        // Op 1 begins a chain that ends in op 2, and op 3 adds to what op 4 reads.
        let ops: [(&[usize], &[usize]); 5] = [(&[0], &[2]), (&[0], &[3]), (&[3], &[4]), (&[0, 2], &[2]), (&[2], &[6])];
        let mut trace = trace(&ops);
        let optimized = Optimized::fold_constants(&trace, u64::MAX);
        assert_eq!((optimized.per_call, optimized.folded), (vec![0, 3, 4], vec![]));
        trace.buffers[4].role = Role::Workspace;
        assert_eq!(Optimized::fold_constants(&trace, u64::MAX).per_call, [0, 3, 4], "of a workspace");
        trace.ops[2].work = Work::Host { bytes: 8, flops: 1 };
        assert_eq!(Optimized::fold_constants(&trace, u64::MAX).per_call, [0, 1, 2, 3, 4], "of a shape");
        trace.ops[2].work = Work::Memset(0);
        trace.buffers[4].role = Role::External;
        assert_eq!(Optimized::fold_constants(&trace, u64::MAX).per_call, [0, 1, 2, 3, 4], "which outlives the call");
    }

    #[test]
    fn without_room_calls_recompute_the_largest_constants_from_smaller_ones() {
        let mut trace = trace(&[(&[1], &[2]), (&[2], &[3]), (&[1], &[4]), (&[0, 3, 4], &[6])]);
        trace.buffers[3].bytes = 4096;
        let optimized = Optimized::fold_constants(&trace, 64);
        assert_eq!((constants(&optimized), &optimized.per_call), (vec![2, 4], &vec![1, 3]));
        assert_eq!(optimized.folded, [0, 2]);
        let nothing = Optimized::fold_constants(&trace, 0);
        assert_eq!((constants(&nothing), &nothing.per_call), (vec![], &vec![0, 1, 2, 3]));
        assert_eq!(nothing.folded, NONE);
    }

    #[test]
    fn a_buffer_is_made_once_or_at_every_call_by_all_of_its_writers() {
        // Op 0 writes 2 and 3 together, op 1 changes 3: recomputing 2 recomputes both.
        let mut trace = trace(&[(&[1], &[2, 3]), (&[3], &[3]), (&[0, 2], &[6]), (&[0, 3], &[6])]);
        trace.buffers[2].bytes = 4096;
        let optimized = Optimized::fold_constants(&trace, 64);
        assert_eq!((constants(&optimized), optimized.per_call), (vec![], vec![0, 1, 2, 3]));
    }
}
