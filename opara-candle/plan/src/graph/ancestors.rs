//! The ancestors of each op: the ops that have finished when it starts.

use crate::trace::OpId;

/// Maximum runs of ids per op. Networks need a handful; beyond the maximum, the middle runs are forgotten.
const MAX_RUNS: usize = 256;

/// For each op, all ops that it depends on, directly or indirectly, as runs of consecutive ids.
///
/// Modules launch branch after branch, so the ancestors of an op form few runs: everything up to the last join, and its
/// own branch since. That makes the table nearly linear in size, where bit sets would be quadratic. A forgotten
/// ancestor counts as independent, which is safe: it can only add waits.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ancestors {
    /// (first id, last id + 1), ascending and disjoint, for all ops one after the other.
    runs: Vec<(u32, u32)>,
    /// For each op the end of its runs.
    ends: Vec<usize>,
    scratch: Vec<(u32, u32)>,
}

impl Ancestors {
    /// Adds the next op, which depends on `predecessors`.
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
    fn beyond_the_maximum_the_middle_runs_are_forgotten() {
        let mut ancestors = Ancestors::default();
        (0..2000).for_each(|_| ancestors.push(&[]));
        let every_other: Vec<usize> = (0..2000).step_by(2).collect();
        ancestors.push(&every_other);
        assert!(ancestors.is_ordered(0, 2000) && ancestors.is_ordered(1998, 2000));
        assert!(!ancestors.is_ordered(1000, 2000), "forgotten");
        assert!(!ancestors.is_ordered(1, 2000));
    }
}
