//! Vector clocks of a schedule: what is surely finished when an op starts.

use super::Schedule;
use crate::trace::OpId;

/// Entries in all, above which clocks of the streams past the limit are not kept (256 MiB).
const MAX_ENTRIES: usize = 1 << 26;

/// For each op and stream, how many ops of that stream are finished once the op is.
///
/// (Fidge 1988, Mattern 1988.) Where there are so many streams that the table would not fit, ops of the streams past
/// the limit count as unordered, which is on the safe side.
pub(crate) struct Clocks {
    table: Vec<u32>,
    streams: usize,
    stream: Vec<usize>,
    /// Position on its stream, from 1.
    rank: Vec<u32>,
}

impl Clocks {
    pub fn new(schedule: &Schedule) -> Self {
        let n = schedule.order.len();
        let streams = schedule.streams().min(MAX_ENTRIES / n.max(1));
        let mut clocks =
            Self { table: vec![0; n * streams], streams, stream: schedule.stream.clone(), rank: vec![0; n] };
        let mut length = vec![0; schedule.streams()];
        for &op in &schedule.order {
            let stream = schedule.stream[op];
            length[stream] += 1;
            clocks.rank[op] = length[stream];
            for &p in &schedule.predecessors[op] {
                for s in 0..streams {
                    let known = clocks.table[p * streams + s];
                    let own = &mut clocks.table[op * streams + s];
                    *own = known.max(*own);
                }
            }
            if stream < streams {
                clocks.table[op * streams + stream] = length[stream];
            }
        }
        clocks
    }

    /// Whether `first` is surely finished before `second` starts.
    pub fn ordered(&self, first: OpId, second: OpId) -> bool {
        let stream = self.stream[first];
        if stream == self.stream[second] {
            self.rank[first] < self.rank[second]
        } else {
            stream < self.streams && self.table[second * self.streams + stream] >= self.rank[first]
        }
    }
}
