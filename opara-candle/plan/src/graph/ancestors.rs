//! The ancestors of each op: the ops that have finished when it starts.

use crate::trace::OpId;

/// Maximum number of id ranges stored per op. Networks need a handful; if an op needs more, the middle ones are dropped.
const MAX_RUNS: usize = 256;

/// For each op, all ops on which it depends, directly or not, as runs of consecutive ids.
///
/// Modules launch branch after branch, so the ancestors of an op are few runs: everything up to the last join, and its
/// own branch since. That makes the table near-linear where bit sets would be quadratic. Forgotten ancestors count as
/// independent, which is safe: it can only add waits.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ancestors {
    /// First id and one past the last one, ascending and apart; those of one op after those of the op before.
    runs: Vec<(u32, u32)>,
    /// For each op one past its last run.
    ends: Vec<usize>,
    scratch: Vec<(u32, u32)>,
}

impl Ancestors {
    /// Adds the next op, which depends on these.
    pub fn push(&mut self, predecessors: &[OpId]) {
        self.scratch.clear();
        for &p in predecessors {
            let range = self.range(p);
            self.scratch.extend_from_slice(&self.runs[range]);
            self.scratch.push((p as u32, p as u32 + 1));
        }
        self.scratch.sort_unstable();
        let begin = self.runs.len();
        for &(from, to) in &self.scratch {
            match self.runs[begin..].last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => self.runs.push((from, to)),
            }
        }
        let surplus = (self.runs.len() - begin).saturating_sub(MAX_RUNS);
        if surplus > 0 {
            self.runs.drain(begin + 1..begin + 1 + surplus);
        }
        self.ends.push(self.runs.len());
    }

    /// Replaces the op that was added last.
    pub fn replace_last(&mut self, predecessors: &[OpId]) {
        if let Some(op) = self.ends.len().checked_sub(1) {
            let begin = self.range(op).start;
            self.runs.truncate(begin);
            self.ends.pop();
        }
        self.push(predecessors);
    }

    fn range(&self, op: OpId) -> std::ops::Range<usize> {
        op.checked_sub(1).map_or(0, |before| self.ends[before])..self.ends[op]
    }

    /// Does `second` depend on `first`?
    pub fn is_ordered(&self, first: OpId, second: OpId) -> bool {
        let runs = &self.runs[self.range(second)];
        let first = first as u32;
        let after = runs.partition_point(|&(from, _)| from <= first);
        after > 0 && first < runs[after - 1].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::reduce::tests::dags;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn agrees_with_sets(dag in dags()) {
            let mut ancestors = Ancestors::default();
            let mut sets: Vec<BTreeSet<usize>> = Vec::new();
            for predecessors in &dag {
                ancestors.push(predecessors);
                let mut set: BTreeSet<usize> = predecessors.iter().copied().collect();
                predecessors.iter().for_each(|&p| set.extend(&sets[p]));
                sets.push(set);
            }
            for (second, set) in sets.iter().enumerate() {
                for first in 0..second {
                    prop_assert_eq!(ancestors.is_ordered(first, second), set.contains(&first));
                }
            }
        }
    }

    #[test]
    fn too_many_runs_forget_the_middle_ones() {
        let mut ancestors = Ancestors::default();
        (0..2000).for_each(|_| ancestors.push(&[]));
        let every_other: Vec<usize> = (0..2000).step_by(2).collect();
        ancestors.push(&every_other);
        assert!(ancestors.is_ordered(0, 2000) && ancestors.is_ordered(1998, 2000));
        assert!(!ancestors.is_ordered(1000, 2000), "forgotten");
        assert!(!ancestors.is_ordered(1, 2000));
    }
}
