//! The tightest packing for sequential execution. It ignores parallelism.

use std::cmp::Reverse;

use super::sizes::{aligned, is_planned};
use crate::trace::{BufferId, OpId, Role, Trace};

/// Ops per entry of the index below.
const STRIDE: usize = 64;

/// Placed buffers that are in use during a range of ops.
#[derive(Default)]
struct Stretch {
    /// Buffers whose first user is in the range.
    begun: Vec<BufferId>,
    /// Buffers whose first user is before the range.
    crossing: Vec<BufferId>,
}

/// Places the buffers of a role, the largest first, each at the lowest offset at which it shares no byte with a buffer that is
/// in use at the same time. Returns the offset of each buffer, and the size of the packing.
///
/// (Greedy by size: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020.)
///
/// # Complexity
/// For each buffer linear in the buffers that are in use within its lifetime.
pub(super) fn pack(trace: &Trace, users: &[Vec<OpId>], role: Role) -> (Vec<Option<u64>>, u64) {
    let bytes = |id: BufferId| aligned(trace.buffers[id].bytes);
    let mut order: Vec<BufferId> =
        (0..users.len()).filter(|&id| is_planned(&trace.buffers[id], role) && !users[id].is_empty()).collect();
    order.sort_by_key(|&id| (Reverse(bytes(id)), users[id][0]));

    let lifetime = |id: BufferId| users[id][0]..=users[id][users[id].len() - 1];
    let mut index: Vec<Stretch> = Vec::new();
    index.resize_with(trace.ops.len() / STRIDE + 1, Stretch::default);
    let mut offsets: Vec<Option<u64>> = vec![None; users.len()];
    let mut total = 0;
    let mut taken: Vec<(u64, u64)> = Vec::new();
    for id in order {
        let (first, last) = lifetime(id).into_inner();
        let stretches = first / STRIDE..=last / STRIDE;
        taken.clear();
        let begun = index[stretches.clone()].iter().flat_map(|stretch| &stretch.begun);
        for &other in index[first / STRIDE].crossing.iter().chain(begun) {
            let (from, to) = lifetime(other).into_inner();
            if let Some(start) = offsets[other].filter(|_| from <= last && first <= to) {
                taken.push((start, start + bytes(other)));
            }
        }
        taken.sort_unstable();
        let mut offset = 0;
        for &(start, end) in &taken {
            if start >= offset + bytes(id) {
                break;
            }
            offset = offset.max(end);
        }
        offsets[id] = Some(offset);
        total = total.max(offset + bytes(id));
        index[first / STRIDE].begun.push(id);
        index[stretches].iter_mut().skip(1).for_each(|stretch| stretch.crossing.push(id));
    }
    (offsets, total)
}
