//! The arena during planning: the ranges in use, and the ops that used each range last.

use std::rc::Rc;

use crate::trace::OpId;

/// The state of a range of the arena.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// Never used.
    Fresh,
    /// In use by a buffer.
    Live,
    /// Free again once these ops have finished.
    Dead(Rc<[OpId]>),
}

#[derive(Debug, Clone)]
struct Segment {
    start: u64,
    bytes: u64,
    state: State,
}

impl Segment {
    fn end(&self) -> u64 {
        self.start + self.bytes
    }
}

/// A free range for a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate {
    /// The highest cost of its segments.
    pub cost: u32,
    /// Bytes of the range that the buffer would leave free.
    waste: u64,
    pub start: u64,
}

/// Segments in address order, without gaps.
#[derive(Debug)]
pub(super) struct Arena {
    segments: Vec<Segment>,
}

impl Arena {
    pub fn new(bytes: u64) -> Self {
        let all = Segment { start: 0, bytes, state: State::Fresh };
        Self { segments: (bytes > 0).then_some(all).into_iter().collect() }
    }

    /// The end of the last byte that was ever used.
    pub fn used(&self) -> u64 {
        self.segments.iter().rfind(|s| s.state != State::Fresh).map_or(0, Segment::end)
    }

    /// The free range with the lowest cost; among equals, the tightest.
    pub fn best(&self, bytes: u64, cost: impl Fn(&State) -> u32) -> Option<Candidate> {
        let mut best: Option<Candidate> = None;
        // The costs of the contiguous free segments up to this one.
        let mut costs: Vec<u32> = Vec::new();
        for (last, segment) in self.segments.iter().enumerate() {
            if segment.state == State::Live {
                costs.clear();
                continue;
            }
            costs.push(cost(&segment.state));
            let (mut room, mut worst) = (0, 0);
            for (before, &cost) in costs.iter().rev().enumerate() {
                let first = &self.segments[last - before];
                room += first.bytes;
                worst = worst.max(cost);
                if best.is_some_and(|best| worst > best.cost) {
                    break;
                }
                if room >= bytes {
                    let place = Candidate { cost: worst, waste: room - bytes, start: first.start };
                    best = Some(best.map_or(place, |best| best.min(place)));
                    break;
                }
            }
        }
        best
    }

    /// The offset at the end where the arena may grow.
    pub fn end(&self) -> u64 {
        let free = self.segments.iter().rev().take_while(|s| s.state != State::Live).last();
        free.map_or(self.segments.last().map_or(0, Segment::end), |s| s.start)
    }

    /// The range from `start` on, if none of its bytes is in use.
    pub fn at(&self, start: u64, bytes: u64, cost: impl Fn(&State) -> u32) -> Option<Candidate> {
        let first = self.segments.partition_point(|s| s.end() <= start);
        let mut worst = 0;
        for segment in self.segments[first..].iter().take_while(|s| s.start < start + bytes) {
            if segment.state == State::Live {
                return None;
            }
            worst = worst.max(cost(&segment.state));
        }
        Some(Candidate { cost: worst, waste: 0, start })
    }

    /// Takes a free range for a buffer. Returns the ops that the buffer's first user must wait for; some may occur
    /// twice.
    pub fn take(&mut self, start: u64, bytes: u64) -> Vec<OpId> {
        let (end, known) = (start + bytes, self.segments.last().map_or(0, Segment::end));
        if end > known {
            self.segments.push(Segment { start: known, bytes: end - known, state: State::Fresh });
        }
        let first = self.segments.partition_point(|s| s.end() <= start);
        let last = self.segments.partition_point(|s| s.start < end);
        let (head, tail) = (self.segments[first].clone(), self.segments[last - 1].clone());
        let waits = self.segments[first..last].iter().filter_map(|s| match &s.state {
            State::Dead(last) => Some(last.iter().copied()),
            _ => None,
        });
        let waits = waits.flatten().collect();
        let parts = [
            Segment { bytes: start - head.start, ..head },
            Segment { start, bytes, state: State::Live },
            Segment { start: end, bytes: tail.end() - end, ..tail },
        ];
        self.segments.splice(first..last, parts.into_iter().filter(|s| s.bytes > 0));
        waits
    }

    /// Frees the range of a buffer. The next buffer there must wait for the ops `last`.
    pub fn release(&mut self, start: u64, last: Rc<[OpId]>) {
        let at = self.segments.partition_point(|s| s.start < start);
        self.segments[at].state = State::Dead(last);
    }
}
