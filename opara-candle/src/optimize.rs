//! What can go: ops that give the same result at every call run once.

use crate::trace::{Mode, OpId, Role, Trace};

/// A trace without the ops that depend on no input.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Optimized {
    /// The ops that every call runs. Buffers keep their ids; those that folded ops fill have [`Role::Constant`].
    pub trace: Trace,
    /// For each op of `trace` its id in the original trace.
    pub kept: Vec<OpId>,
    /// Ops of the original trace that run once, in recorded order.
    pub folded: Vec<OpId>,
}

impl Optimized {
    /// The trace as it is, nothing folded.
    pub fn unchanged(trace: &Trace) -> Self {
        Self { trace: trace.clone(), kept: (0..trace.ops.len()).collect(), folded: Vec::new() }
    }

    /// Folds constants: positions, masks of ones, casts and transpositions of weights.
    ///
    /// An op is folded if nothing that it reads depends on an input and all that it writes are intermediate buffers
    /// which no op that stays writes.
    ///
    /// # Complexity
    /// Linear in accesses for each round; a round follows only where a buffer turned out to be shared.
    pub fn fold_constants(trace: &Trace) -> Self {
        let mut variable: Vec<bool> = trace.buffers.iter().map(|b| matches!(b.role, Role::Input(_))).collect();
        let foldable = |op: OpId, variable: &[bool]| {
            trace.ops[op].accesses.iter().all(|a| {
                let own = trace.buffers[a.buffer].role == Role::Intermediate;
                !variable[a.buffer] && (a.mode == Mode::Read || own)
            })
        };
        let mut stays = vec![false; trace.ops.len()];
        loop {
            let mut changed = false;
            for (op, stays) in stays.iter_mut().enumerate() {
                if !*stays && !foldable(op, &variable) {
                    *stays = true;
                    changed = true;
                    for access in trace.ops[op].accesses.iter().filter(|a| a.mode.writes()) {
                        variable[access.buffer] = true;
                    }
                }
            }
            if !changed {
                break;
            }
        }
        let mut optimized = Self { trace: Trace { ops: Vec::new(), ..trace.clone() }, ..Default::default() };
        for (id, op) in trace.ops.iter().enumerate() {
            if stays[id] {
                optimized.kept.push(id);
                optimized.trace.ops.push(op.clone());
            } else {
                optimized.folded.push(id);
                for access in op.accesses.iter().filter(|a| a.mode.writes()) {
                    optimized.trace.buffers[access.buffer].role = Role::Constant;
                }
            }
        }
        optimized
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Access, Buffer, Op, Region, Work};

    const NONE: [OpId; 0] = [];

    /// Buffers: 0 input, 1 weight, 2 to 5 intermediate, 6 output. Each op reads the first list and writes the second.
    fn folded(ops: &[(&[usize], &[usize])]) -> Vec<OpId> {
        use Role::*;
        let roles = [Input(0), External, Intermediate, Intermediate, Intermediate, Intermediate, Output(0)];
        let buffers = roles.map(|role| Buffer { bytes: 8, role }).to_vec();
        let access = |mode| move |&buffer: &usize| Access { buffer, region: Region::contiguous(0, 8), mode };
        let op = |(reads, writes): &(&[usize], &[usize])| Op {
            name: "op".into(),
            label: String::new(),
            work: Work::Memset(0),
            accesses: reads.iter().map(access(Mode::Read)).chain(writes.iter().map(access(Mode::Write))).collect(),
        };
        let trace = Trace { ops: ops.iter().map(op).collect(), buffers, ..Default::default() };
        let optimized = Optimized::fold_constants(&trace);
        let mut all: Vec<OpId> = optimized.kept.iter().chain(&optimized.folded).copied().collect();
        all.sort();
        assert_eq!(all, (0..ops.len()).collect::<Vec<_>>(), "every op stays or is folded");
        optimized.folded
    }

    #[test]
    fn what_depends_on_weights_alone_is_folded() {
        assert_eq!(folded(&[(&[], &[2]), (&[1, 2], &[3]), (&[0, 3], &[6])]), [0, 1]);
    }

    #[test]
    fn what_an_input_reaches_stays() {
        assert_eq!(folded(&[(&[0], &[2]), (&[2], &[3]), (&[3], &[6])]), NONE);
    }

    #[test]
    fn a_buffer_that_is_written_again_at_every_call_is_no_constant() {
        // Zeros that a later op accumulates the input into, and what was read from them before.
        assert_eq!(folded(&[(&[], &[2]), (&[2], &[3]), (&[0, 2], &[2]), (&[2, 3], &[6])]), NONE);
    }

    #[test]
    fn weights_and_outputs_are_not_written_once_only() {
        assert_eq!(folded(&[(&[], &[1]), (&[1], &[6])]), NONE);
    }
}
