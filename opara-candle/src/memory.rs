//! Where buffers live: offsets in one arena, safe under the schedule's concurrency.

use serde::{Deserialize, Serialize};

use crate::schedule::{Clocks, Schedule};
use crate::trace::{Buffer, BufferId, OpId, Role, Trace};

/// Bytes to which every buffer is aligned, as the driver's own allocations are: kernels were chosen for that.
pub const ALIGNMENT: u64 = 512;

/// Offsets of the intermediate buffers in one arena.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Size of the arena.
    pub bytes: u64,
    offsets: Vec<Option<u64>>,
}

impl Layout {
    /// A layout from offsets, one entry a buffer.
    pub fn new(bytes: u64, offsets: Vec<Option<u64>>) -> Self {
        Self { bytes, offsets }
    }

    /// Where a buffer begins, if the arena holds it.
    pub fn offset(&self, buffer: BufferId) -> Option<u64> {
        self.offsets.get(buffer).copied().flatten()
    }
}

/// Whether the planner places this buffer.
pub(crate) fn is_planned(buffer: &Buffer) -> bool {
    buffer.role == Role::Intermediate && buffer.bytes > 0
}

/// A buffer to place: which ops come first and last to it, in the schedule's partial order.
struct Lifetime {
    id: BufferId,
    bytes: u64,
    first: Vec<OpId>,
    last: Vec<OpId>,
}

impl Lifetime {
    fn new(id: BufferId, bytes: u64, users: &[OpId], clocks: &Clocks) -> Self {
        let extreme = |later: bool| {
            let follows = |a: OpId, b: OpId| if later { clocks.ordered(a, b) } else { clocks.ordered(b, a) };
            users.iter().copied().filter(|&a| !users.iter().any(|&b| follows(a, b))).collect()
        };
        Self { id, bytes, first: extreme(false), last: extreme(true) }
    }

    /// Whether it is surely dead before `other` is first touched.
    fn ends_before(&self, other: &Lifetime, clocks: &Clocks) -> bool {
        self.last.iter().all(|&a| other.first.iter().all(|&b| clocks.ordered(a, b)))
    }
}

/// Places every intermediate buffer: the largest first, each at the lowest offset at which it shares no byte with a
/// buffer that can be alive at the same time.
///
/// Two buffers may share bytes only if the schedule finishes every op that touches the one before any op that touches
/// the other starts. (Greedy by size: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference",
/// 2020, there for one stream.)
///
/// # Complexity
/// `O(B²)` in the buffers, each pair a look-up.
pub fn plan(trace: &Trace, schedule: &Schedule) -> Layout {
    let clocks = Clocks::new(schedule);
    let users = trace.users();
    let mut lifetimes: Vec<Lifetime> = trace
        .buffers
        .iter()
        .enumerate()
        .filter(|(id, buffer)| is_planned(buffer) && !users[*id].is_empty())
        .map(|(id, buffer)| Lifetime::new(id, buffer.bytes.next_multiple_of(ALIGNMENT), &users[id], &clocks))
        .collect();
    lifetimes.sort_by_key(|l| (std::cmp::Reverse(l.bytes), l.id));

    let mut offsets = vec![None; trace.buffers.len()];
    let mut arena = 0;
    for (rank, lifetime) in lifetimes.iter().enumerate() {
        let mut taken: Vec<(u64, u64)> = lifetimes[..rank]
            .iter()
            .filter(|other| !other.ends_before(lifetime, &clocks) && !lifetime.ends_before(other, &clocks))
            .filter_map(|other| offsets[other.id].map(|start| (start, start + other.bytes)))
            .collect();
        taken.sort_unstable();
        let mut offset = 0;
        for (start, end) in taken {
            if start >= offset + lifetime.bytes {
                break;
            }
            offset = offset.max(end);
        }
        offsets[lifetime.id] = Some(offset);
        arena = arena.max(offset + lifetime.bytes);
    }
    Layout::new(arena, offsets)
}
