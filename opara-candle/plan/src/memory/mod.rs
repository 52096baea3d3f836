//! Memory planning: offsets of buffers in one arena, and the waits that let buffers share bytes.

mod arena;
mod packing;
mod sizes;

use serde::{Deserialize, Serialize};

use self::arena::{Arena, State};
use self::packing::pack;
pub use self::sizes::{aligned, constant_bytes, is_planned, ALIGNMENT};
use crate::graph::{Ancestors, OpGraph};
use crate::trace::{BufferId, OpId, Role, Trace};

/// The peak of tensor bytes in use if the ops run one after the other.
pub(crate) fn most_alive(trace: &Trace) -> u64 {
    let mut change = vec![(0, 0); trace.ops.len() + 1];
    for (buffer, users) in trace.buffers.iter().zip(trace.users()) {
        if let (true, Some(&first), Some(&last)) = (is_planned(buffer, Role::Intermediate), users.first(), users.last())
        {
            change[first].0 += aligned(buffer.bytes);
            change[last + 1].1 += aligned(buffer.bytes);
        }
    }
    let mut alive = 0;
    let alive = change.into_iter().map(|(more, less)| {
        alive = alive + more - less;
        alive
    });
    alive.max().unwrap_or(0)
}

/// The bytes of the tightest layout of tensors if the ops run one after the other.
pub(crate) fn least(trace: &Trace) -> u64 {
    pack(trace, &trace.users(), Role::Intermediate).1
}

/// Offsets of the buffers of one role in one arena.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// The role of the buffers that it places.
    pub role: Role,
    /// Size of the arena.
    pub bytes: u64,
    offsets: Vec<Option<u64>>,
    waits: Vec<(OpId, OpId)>,
}

impl Layout {
    /// A layout of intermediate buffers from one offset per buffer, for a schedule that needs no additional waits.
    pub fn new(bytes: u64, offsets: Vec<Option<u64>>) -> Self {
        Self { role: Role::Intermediate, bytes, offsets, waits: Vec::new() }
    }

    /// The offset of a buffer, if the arena holds it.
    pub fn offset(&self, buffer: BufferId) -> Option<u64> {
        self.offsets.get(buffer).copied().flatten()
    }

    /// Pairs of ops. The second must wait for the first, because a buffer of the second reuses memory of the first.
    /// Some of these pairs depend on each other anyway.
    pub fn waits(&self) -> &[(OpId, OpId)] {
        &self.waits
    }
}

/// Bytes of the arena for library workspaces, unless one launch needs more: the size of cuBLAS's own workspace on a
/// Hopper GPU outside a capture.
pub const WORKSPACE_LIMIT: u64 = 32 << 20;

/// Places every buffer of a role in an arena of at most `limit` bytes, if it can.
///
/// Walks the ops in recorded order. A buffer takes a range at its first user and frees it after its last. Of the free ranges
/// the planner takes
/// 1. one on whose last users the op depends anyway,
/// 2. else one that was never used,
/// 3. else the one of the least delay: the op has to wait for the last users of the range ([`Layout::waits`]), which costs
///    nothing as long as the op is not on the longest path.
///
/// Without a limit, this loses no parallelism; under a limit, as little as possible. If fragmentation exceeds the limit, the
/// tightest packing of the recorded order takes the low addresses, and only the rest of the limit is used as above. If even
/// that packing exceeds the limit, the layout has the size of the packing.
///
/// # Arguments
/// `graph`, the dependencies of the trace's ops.
///
/// # Complexity
/// For each buffer linear in the segments of the arena, which are about as many as buffers in use at a time.
pub fn plan(trace: &Trace, graph: &OpGraph, role: Role, limit: Option<u64>) -> Layout {
    /// More than any device has.
    const ENDLESS: u64 = 1 << 60;
    let bytes = limit.unwrap_or(ENDLESS) / ALIGNMENT * ALIGNMENT;
    let users = trace.users();
    let order = Order::new(graph);
    let planner = |arena, packing| Planner::new(trace, role, &users, &order, arena, packing);
    let free = planner(Arena::new(bytes), Packing::none()).run(trace, graph);
    if free.bytes <= bytes {
        return free;
    }
    let packing = Packing::of(trace, &users, role);
    planner(Arena::new(bytes.saturating_sub(packing.bytes)), packing).run(trace, graph)
}

/// The number of users of a buffer that another user is compared with, to find the first and the last users. A user
/// that is wrongly taken for a first or last one costs only planning time.
const COMPARED: usize = 4;

/// Maximum waits per op if the first users of one buffer reuse the memory of the last users of another. Beyond that,
/// only the first user waits for all of them, and the other users wait for that one.
const PAIRS: usize = 16;

/// The tightest packing for the recorded order.
struct Packing {
    arena: Arena,
    bytes: u64,
    offsets: Vec<Option<u64>>,
}

impl Packing {
    fn none() -> Self {
        Self { arena: Arena::new(0), bytes: 0, offsets: Vec::new() }
    }

    fn of(trace: &Trace, users: &[Vec<OpId>], role: Role) -> Self {
        let (offsets, bytes) = pack(trace, users, role);
        Self { arena: Arena::new(bytes), bytes, offsets }
    }
}

/// The dependencies of the ops, without waits for memory.
struct Order {
    given: Ancestors,
    /// For each op, the latest level at which it does not lengthen the longest path.
    latest: Vec<u32>,
}

impl Order {
    fn new(graph: &OpGraph) -> Self {
        let mut height = vec![0u32; graph.len()];
        for op in (0..graph.len()).rev() {
            height[op] = graph.successors(op).map(|s| height[s] + 1).max().unwrap_or(0);
        }
        let depth = graph.depth() as u32;
        let mut given = Ancestors::default();
        (0..graph.len()).for_each(|op| given.push(&graph.predecessors(op).collect::<Vec<_>>()));
        Self { given, latest: height.into_iter().map(|h| depth - h).collect() }
    }
}

struct Planner<'a> {
    role: Role,
    users: &'a [Vec<OpId>],
    order: &'a Order,
    /// The part of the arena where any range may be used.
    arena: Arena,
    /// The packed part, at lower addresses.
    packing: Packing,
    offsets: Vec<Option<u64>>,
    ancestors: Ancestors,
    /// For each op, the length of the longest path that ends with it, waits included.
    level: Vec<u32>,
    /// For each buffer in use, the ops that each of its users must wait for.
    inherited: Vec<Vec<OpId>>,
    waits: Vec<(OpId, OpId)>,
}

impl<'a> Planner<'a> {
    fn new(
        trace: &Trace,
        role: Role,
        users: &'a [Vec<OpId>],
        order: &'a Order,
        arena: Arena,
        packing: Packing,
    ) -> Self {
        Self {
            role,
            users,
            order,
            arena,
            packing,
            offsets: vec![None; trace.buffers.len()],
            ancestors: Ancestors::default(),
            level: Vec::with_capacity(trace.ops.len()),
            inherited: vec![Vec::new(); trace.buffers.len()],
            waits: Vec::new(),
        }
    }

    fn run(mut self, trace: &Trace, graph: &OpGraph) -> Layout {
        for op in 0..graph.len() {
            let mut touched: Vec<BufferId> = trace.ops[op].accesses.iter().map(|a| a.buffer).collect();
            touched.sort_unstable();
            touched.dedup();
            touched.retain(|&id| is_planned(&trace.buffers[id], self.role));

            let own: Vec<OpId> = graph.predecessors(op).collect();
            self.ancestors.push(&own);
            let mut waits = Vec::new();
            for &id in &touched {
                if self.users[id][0] == op {
                    waits.extend(self.place(id, aligned(trace.buffers[id].bytes), op));
                } else if !self.ancestors.is_ordered(self.users[id][0], op) {
                    waits.extend_from_slice(&self.inherited[id]);
                }
            }
            waits.sort_unstable();
            waits.dedup();
            waits.retain(|&before| !self.ancestors.is_ordered(before, op));
            if !waits.is_empty() {
                self.waits.extend(waits.iter().map(|&before| (before, op)));
                self.ancestors.replace_last(&[own.as_slice(), &waits].concat());
            }
            self.level.push(own.iter().chain(&waits).map(|&p| self.level[p]).max().unwrap_or(0) + 1);
            for &id in &touched {
                if self.users[id].last() == Some(&op) {
                    self.release(id);
                }
            }
        }
        let bytes = self.packing.bytes + self.arena.used();
        Layout { role: self.role, bytes, offsets: self.offsets, waits: self.waits }
    }

    /// Places a buffer whose first user is `op`. Returns the ops that `op` must wait for.
    fn place(&mut self, id: BufferId, bytes: u64, op: OpId) -> Vec<OpId> {
        let others = self.other_openers(id);
        let (ancestors, level, order) = (&self.ancestors, &self.level, self.order);
        let ordered = |u: OpId| ancestors.is_ordered(u, op) && others.iter().all(|&o| order.given.is_ordered(u, o));
        let cost = |state: &State| match state {
            State::Dead(last) if last.iter().rev().all(|&u| ordered(u)) => 0,
            State::Dead(last) => {
                let finished = last.iter().map(|&u| level[u]).max().unwrap_or(0);
                2 + (finished + 1).saturating_sub(order.latest[op])
            }
            State::Fresh | State::Live => 1,
        };
        let anywhere = self.arena.best(bytes, cost);
        let packing = &mut self.packing;
        let packed = packing.offsets.get(id).copied().flatten().and_then(|start| packing.arena.at(start, bytes, cost));
        let packed = packed.filter(|packed| anywhere.is_none_or(|place| packed.cost <= place.cost));
        let (offset, waits) = match packed {
            Some(place) => (place.start, packing.arena.take(place.start, bytes)),
            None => {
                let start = anywhere.map_or(self.arena.end(), |place| place.start);
                (packing.bytes + start, self.arena.take(start, bytes))
            }
        };
        self.offsets[id] = Some(offset);
        let many = waits.len() * others.len() > PAIRS * (waits.len() + others.len());
        self.inherited[id] = if many { vec![op] } else { waits.clone() };
        waits
    }

    /// The users of a buffer that depend on no other user, apart from the first one: for example the writers of a
    /// concatenation.
    fn other_openers(&self, id: BufferId) -> Vec<OpId> {
        let mut openers: Vec<OpId> = Vec::new();
        for &user in &self.users[id] {
            if !openers.iter().take(COMPARED).any(|&opener| self.order.given.is_ordered(opener, user)) {
                openers.push(user);
            }
        }
        openers.split_off(1)
    }

    fn release(&mut self, id: BufferId) {
        let mut last: Vec<OpId> = Vec::new();
        for &user in self.users[id].iter().rev() {
            if !last.iter().take(COMPARED).any(|&later| self.ancestors.is_ordered(user, later)) {
                last.push(user);
            }
        }
        last.reverse();
        if let Some(offset) = self.offsets[id] {
            match offset.checked_sub(self.packing.bytes) {
                Some(offset) => self.arena.release(offset, last.into()),
                None => self.packing.arena.release(offset, last.into()),
            }
        }
        self.inherited[id] = Vec::new();
    }
}
