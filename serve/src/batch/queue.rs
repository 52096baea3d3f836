//! The order in which rows are taken: start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996).
//!
//! A row of `cost` tokens of a client gets the start tag `max(now, finish tag of the client's row before)` and the finish tag
//! `start + cost`. Rows are taken by ascending start tags; `now` is the start tag of the latest row taken. So a client that
//! sends a thousand rows at once delays another client's single row by one row, not by a thousand.

use std::collections::{BTreeMap, HashMap};

use super::{Bucket, Buckets};

/// Start tag, and the order of arrival among equal ones.
type Tag = (u64, u64);

/// Clients that are remembered before those who have nothing due are forgotten.
const CLIENTS: usize = 1_024;

/// Rows that wait, with the tokens that each costs, in one lane for each length.
pub(crate) struct Queue<T> {
    lanes: Vec<BTreeMap<Tag, (usize, T)>>,
    /// Finish tag of each client's latest row.
    clients: HashMap<u64, u64>,
    now: u64,
    arrivals: u64,
    len: usize,
}

impl<T> Queue<T> {
    pub fn new(lanes: usize) -> Self {
        let lanes = (0..lanes).map(|_| BTreeMap::new()).collect();
        Self { lanes, clients: HashMap::new(), now: 0, arrivals: 0, len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn push(&mut self, lane: usize, client: u64, cost: usize, row: T) {
        if self.clients.len() >= CLIENTS {
            self.clients.retain(|_, finish| *finish > self.now);
        }
        let start = self.clients.get(&client).copied().unwrap_or(0).max(self.now);
        self.clients.insert(client, start + cost as u64);
        self.insert(lane, (start, self.arrivals), (cost, row));
    }

    /// Puts a row back before all others.
    pub fn push_front(&mut self, lane: usize, cost: usize, row: T) {
        self.insert(lane, (0, self.arrivals), (cost, row));
    }

    fn insert(&mut self, lane: usize, tag: Tag, row: (usize, T)) {
        self.arrivals += 1;
        self.len += 1;
        self.lanes[lane].insert(tag, row);
    }

    /// Drops the rows that are over.
    pub fn purge(&mut self, mut is_over: impl FnMut(&T) -> bool) {
        self.lanes.iter_mut().for_each(|lane| lane.retain(|_, (_, row)| !is_over(row)));
        self.len = self.lanes.iter().map(BTreeMap::len).sum();
    }

    /// Takes all rows, in no particular order.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.len = 0;
        let lanes: Vec<_> = self.lanes.iter_mut().map(std::mem::take).collect();
        lanes.into_iter().flat_map(BTreeMap::into_values).map(|(_, row)| row)
    }

    /// The next batch: the row that is due, and rows of its lane for which the batch has room. Where they are padded, places that the
    /// smallest bucket for these has left go to shorter rows, which costs nothing. Rows that are over are dropped.
    pub fn take(&mut self, buckets: &Buckets, mut is_over: impl FnMut(&T) -> bool) -> Option<(Bucket, Vec<T>)> {
        loop {
            let lane = self.due(self.lanes.len())?;
            let (mut rows, mut tokens) = (Vec::new(), 0);
            while let Some((_, (cost, _))) = self.lanes[lane].first_key_value() {
                let cost = *cost;
                if !buckets.has_room(lane, rows.len(), tokens, cost) {
                    break;
                }
                if let Some(row) = self.pop(lane).filter(|row| !is_over(row)) {
                    rows.push(row);
                    tokens += cost;
                }
            }
            if rows.is_empty() {
                continue;
            }
            let bucket = buckets.fit(lane, rows.len(), tokens);
            while rows.len() < bucket.batch {
                let Some(shorter) = self.due(lane) else { break };
                rows.extend(self.pop(shorter).filter(|row| !is_over(row)));
            }
            return Some((bucket, rows));
        }
    }

    /// Takes the row that is due. Rows that are over are dropped.
    pub fn take_one(&mut self, is_over: impl Fn(&T) -> bool) -> Option<T> {
        loop {
            let row = self.pop(self.due(self.lanes.len())?);
            if let Some(row) = row.filter(|row| !is_over(row)) {
                return Some(row);
            }
        }
    }

    /// Which of the first lanes has the row that is due.
    fn due(&self, lanes: usize) -> Option<usize> {
        let firsts = self.lanes[..lanes].iter().enumerate();
        let firsts = firsts.filter_map(|(lane, rows)| Some((*rows.first_key_value()?.0, lane)));
        firsts.min().map(|(_, lane)| lane)
    }

    fn pop(&mut self, lane: usize) -> Option<T> {
        let ((start, _), (_, row)) = self.lanes[lane].pop_first()?;
        self.now = self.now.max(start);
        self.len -= 1;
        Some(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets() -> Buckets {
        Buckets::new([1, 2, 4], [8, 16], 64).expect("they are sound")
    }

    #[test]
    fn a_single_row_passes_a_flood() {
        let (mut queue, buckets) = (Queue::new(2), buckets());
        (0..100).for_each(|row| queue.push(0, 1, 8, ("flood", row)));
        queue.push(0, 2, 8, ("single", 0));
        let (_, first) = queue.take(&buckets, |_| false).expect("there are rows");
        assert_eq!(first, [("flood", 0), ("single", 0), ("flood", 1), ("flood", 2)]);
    }

    #[test]
    fn spare_places_go_to_shorter_rows() {
        let (mut queue, buckets) = (Queue::new(2), buckets());
        (0..3).for_each(|row| queue.push(1, 1, 16, ("long", row)));
        (0..3).for_each(|row| queue.push(0, 2, 8, ("short", row)));
        let (bucket, rows) = queue.take(&buckets, |_| false).expect("there are rows");
        assert_eq!(bucket, Bucket { batch: 4, length: 16 });
        assert_eq!(rows, [("long", 0), ("long", 1), ("long", 2), ("short", 0)]);
        assert_eq!(queue.len(), 2);
    }

    /// In order of arrival, as many as the tokens and the rows of a batch allow, in the smallest bucket for them.
    #[test]
    fn packed_rows_fill_batches_of_tokens() {
        let buckets = Buckets::packed([32, 64, 128], 64).expect("they are sound");
        let mut queue = Queue::new(1);
        let lengths = [20, 30, 60, 5, 3, 64, 1, 1, 1, 1, 1, 1];
        lengths.iter().enumerate().for_each(|(row, &length)| queue.push(0, 1, buckets.taken(length), row));
        let mut next = || queue.take(&buckets, |&row| row == 3).map(|(bucket, rows)| (bucket.length, rows));
        assert_eq!(next(), Some((128, vec![0, 1, 2, 4])), "126 tokens: the next row has no room");
        assert_eq!(next(), Some((128, vec![5, 6, 7, 8, 9])), "a short row takes 16 tokens");
        assert_eq!(next(), Some((32, vec![10, 11])));
        assert_eq!(next(), None);
    }

    /// Every row is taken once, none that is over, those of one client and length in their order, in batches that fit.
    #[test]
    fn rows_are_neither_lost_nor_doubled() {
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let rows: Vec<(usize, u64, bool)> =
                (0..rng.usize(0..200)).map(|_| (rng.usize(0..2), rng.u64(0..4), rng.u8(0..3) == 0)).collect();
            let (mut queue, buckets, lengths) = (Queue::new(2), buckets(), [8, 16]);
            for (index, &(lane, client, _)) in rows.iter().enumerate() {
                queue.push(lane, client, lengths[lane], index);
            }
            let mut taken = Vec::new();
            while let Some((bucket, batch)) = queue.take(&buckets, |&index| rows[index].2) {
                assert!(!batch.is_empty() && batch.len() <= bucket.batch);
                assert!(batch.iter().all(|&index| lengths[rows[index].0] <= bucket.length));
                assert!(buckets.iter().any(|b| b == bucket));
                taken.extend(batch);
            }
            assert_eq!(queue.len(), 0);
            for (lane, client) in (0..2).flat_map(|lane| (0..4).map(move |client| (lane, client))) {
                let own = |&index: &usize| rows[index].0 == lane && rows[index].1 == client;
                let got: Vec<usize> = taken.iter().copied().filter(own).collect();
                let sent: Vec<usize> = (0..rows.len()).filter(own).filter(|&index| !rows[index].2).collect();
                assert_eq!(got, sent, "seed {seed}");
            }
        }
    }
}
