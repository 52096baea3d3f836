//! Data hazards: the earlier ops that an op must wait for because both access the same bytes.

use crate::trace::{OpId, Region, Trace};

/// The last writers and readers of a buffer's bytes, as far as no later write has overwritten them.
#[derive(Default)]
struct History {
    writes: Vec<(Region, OpId)>,
    reads: Vec<(Region, OpId)>,
}

impl History {
    /// Read after write.
    fn read(&mut self, region: Region, op: OpId, found: &mut Vec<OpId>) {
        found.extend(self.writes.iter().filter(|(r, _)| r.overlaps(&region)).map(|&(_, op)| op));
        self.reads.push((region, op));
    }

    /// Write after write and write after read. Later accesses to the covered bytes are ordered through this write.
    fn write(&mut self, region: Region, op: OpId, found: &mut Vec<OpId>) {
        for entries in [&mut self.writes, &mut self.reads] {
            found.extend(entries.iter().filter(|(r, _)| r.overlaps(&region)).map(|&(_, op)| op));
            entries.retain(|(r, _)| !region.covers(r));
        }
        self.writes.push((region, op));
    }
}

/// For each op the earlier ops whose accesses conflict with its own, ascending: read after write, write after read
/// and write after write over byte regions of the same buffer.
///
/// Pairs that are ordered through an overwrite between them are left out, so the result is not every conflicting pair,
/// but its transitive closure contains all of them.
///
/// # Complexity
/// Per access linear in the uncovered entries of its buffer: a handful, unless many ops write the buffer in parts (a
/// concatenation of `k` parts costs `k²` comparisons).
pub fn hazards(trace: &Trace) -> Vec<Vec<OpId>> {
    let mut history: Vec<History> = Vec::new();
    history.resize_with(trace.buffers.len(), History::default);
    let mut predecessors = Vec::with_capacity(trace.ops.len());
    for (id, op) in trace.ops.iter().enumerate() {
        let mut found = Vec::new();
        for access in op.accesses.iter().filter(|a| a.mode.reads()) {
            history[access.buffer].read(access.region, id, &mut found);
        }
        for access in op.accesses.iter().filter(|a| a.mode.writes()) {
            history[access.buffer].write(access.region, id, &mut found);
        }
        found.retain(|&p| p != id);
        found.sort_unstable();
        found.dedup();
        predecessors.push(found);
    }
    predecessors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Access, AccessMode, Buffer, Op, Role, Work};

    /// Ops over one buffer of 100 bytes, each a list of (mode, start, end).
    fn predecessors(ops: &[&[(AccessMode, u64, u64)]]) -> Vec<Vec<OpId>> {
        let op = |accesses: &&[(AccessMode, u64, u64)]| Op {
            name: "op".into(),
            label: String::new(),
            work: Work::Memset(0),
            accesses: accesses
                .iter()
                .map(|&(mode, start, end)| Access { buffer: 0, region: Region::contiguous(start, end - start), mode })
                .collect(),
            nanos: None,
            meaning: None,
        };
        let buffers = vec![Buffer { bytes: 100, role: Role::Intermediate }];
        hazards(&Trace { ops: ops.iter().map(op).collect(), buffers, ..Default::default() })
    }

    const R: fn(u64, u64) -> (AccessMode, u64, u64) = |s, e| (AccessMode::Read, s, e);
    const W: fn(u64, u64) -> (AccessMode, u64, u64) = |s, e| (AccessMode::Write, s, e);

    #[test]
    fn read_after_write() {
        assert_eq!(predecessors(&[&[W(0, 100)], &[R(0, 10)]]), [vec![], vec![0]]);
    }

    #[test]
    fn write_after_read() {
        assert_eq!(predecessors(&[&[R(0, 10)], &[W(5, 6)]]), [vec![], vec![0]]);
    }

    #[test]
    fn write_after_write() {
        assert_eq!(predecessors(&[&[W(0, 10)], &[W(5, 20)]]), [vec![], vec![0]]);
    }

    #[test]
    fn readers_do_not_wait_for_readers() {
        assert_eq!(predecessors(&[&[W(0, 100)], &[R(0, 100)], &[R(0, 100)]]), [vec![], vec![0], vec![0]]);
    }

    #[test]
    fn disjoint_parts_are_independent() {
        assert_eq!(predecessors(&[&[W(0, 50)], &[W(50, 100)], &[R(0, 100)]]), [vec![], vec![], vec![0, 1]]);
    }

    #[test]
    fn a_partial_overwrite_keeps_the_older_writer_of_the_rest() {
        assert_eq!(predecessors(&[&[W(0, 100)], &[W(0, 50)], &[R(40, 60)]]), [vec![], vec![0], vec![0, 1]]);
    }

    #[test]
    fn a_full_overwrite_hides_older_accesses() {
        let found = predecessors(&[&[W(0, 100)], &[R(0, 100)], &[W(0, 100)], &[R(0, 100)]]);
        assert_eq!(found, [vec![], vec![0], vec![0, 1], vec![2]]);
    }

    #[test]
    fn an_op_in_place_reads_and_writes() {
        let found = predecessors(&[&[W(0, 100)], &[(AccessMode::ReadWrite, 0, 100)], &[R(0, 100)]]);
        assert_eq!(found, [vec![], vec![0], vec![1]]);
    }
}
