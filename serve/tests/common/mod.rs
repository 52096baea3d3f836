//! An engine that does as the test says, batch by batch.

#![allow(dead_code, reason = "each test uses some of it")]

#[cfg(feature = "server")]
pub mod served;

use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;

use opara_serve::batch::{Bucket, Engine, EngineError};
use parking_lot::Mutex;

/// What becomes of a batch.
pub enum Order {
    Run,
    Fail,
    Panic,
    LoseDevice,
}

/// The rows of each batch that was started, with its bucket.
pub type Started = Receiver<(Bucket, Vec<Vec<u32>>)>;

/// Answers a row with the sum of its ids and their number. Each batch waits for an order. Clones take orders from one queue.
#[derive(Clone)]
pub struct Fake {
    orders: Arc<Mutex<Receiver<Order>>>,
    started: Sender<(Bucket, Vec<Vec<u32>>)>,
}

impl Fake {
    pub fn new() -> (Self, Sender<Order>, Started) {
        let (orders, receiver) = channel();
        let (sender, started) = channel();
        (Self { orders: Arc::new(Mutex::new(receiver)), started: sender }, orders, started)
    }
}

pub fn answer(row: &[u32]) -> Vec<f32> {
    vec![row.iter().sum::<u32>() as f32, row.len() as f32]
}

impl Engine for Fake {
    type Row = Vec<u32>;
    type Answer = Vec<f32>;

    fn length(&self, row: &Vec<u32>) -> usize {
        row.len()
    }

    fn run(&self, bucket: Bucket, rows: &[&Vec<u32>]) -> Result<Vec<Vec<f32>>, EngineError> {
        let _ = self.started.send((bucket, rows.iter().map(|row| row.to_vec()).collect()));
        match self.orders.lock().recv() {
            // A test that is over lets everything run.
            Ok(Order::Run) | Err(_) => Ok(rows.iter().map(|row| answer(row)).collect()),
            Ok(Order::Fail) => Err(EngineError::new("on purpose")),
            Ok(Order::Panic) => panic!("on purpose"),
            Ok(Order::LoseDevice) => Err(EngineError::fatal("on purpose")),
        }
    }
}

/// Fails, panics and takes its time at random, by the contents of the rows.
#[derive(Clone, Default)]
pub struct Moody {
    pub rows: Arc<std::sync::atomic::AtomicUsize>,
}

/// A row with this id has its batch panic, and one with the next id has it fail.
pub const PANIC: u32 = 66;

impl Engine for Moody {
    type Row = Vec<u32>;
    type Answer = Vec<f32>;

    fn length(&self, row: &Vec<u32>) -> usize {
        row.len()
    }

    fn run(&self, _: Bucket, rows: &[&Vec<u32>]) -> Result<Vec<Vec<f32>>, EngineError> {
        self.rows.fetch_add(rows.len(), std::sync::atomic::Ordering::Relaxed);
        let has = |id: u32| rows.iter().any(|row| row.contains(&id));
        assert!(!has(PANIC), "on purpose");
        match has(PANIC + 1) {
            true => Err(EngineError::new("on purpose")),
            false => Ok(rows.iter().map(|row| answer(row)).collect()),
        }
    }
}
