//! Event-driven simulation of one pass.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::kernel::{limited, Shared, SimulatedKernel};
use super::processors::{Placement, Processors};
use crate::device::DeviceModel;
use crate::schedule::{Schedule, Step};
use crate::trace::OpId;

/// Parts of one kernel that were placed at the same time, and therefore end at the same time.
#[derive(Debug)]
struct Batch {
    step: usize,
    placement: Placement,
    /// Microseconds until its end at full rate.
    left_us: f64,
    draws: Shared,
    /// Progress per microsecond: 1 if it runs alone, less if it competes for bandwidth or arithmetic.
    rate: f64,
}

/// The state of a step.
#[derive(Debug, Clone)]
struct State {
    /// The number of predecessors that have not ended.
    waits: usize,
    /// Microseconds from the end of the last predecessor to its arrival.
    latency_us: f64,
    /// Parts that are not placed yet.
    parts: u64,
    /// Running batches.
    running: usize,
    start_us: f64,
    end_us: f64,
}

/// Remaining time that counts as zero, because of rounding.
const ROUNDING_US: f64 = 1e-9;

pub(super) struct Run<'a> {
    kernels: &'a [SimulatedKernel],
    /// Maximum number of kernels in flight.
    queues: usize,
    steps: Vec<Step>,
    successors: Vec<Vec<usize>>,
    states: Vec<State>,
    now: f64,
    /// Launches that have not arrived, by time, then launch order. The time is stored as bits, since bits of non-negative floats
    /// compare like the floats.
    arriving: BinaryHeap<Reverse<(u64, usize)>>,
    /// Launches that have arrived and wait for a queue, by launch order.
    arrived: BinaryHeap<Reverse<usize>>,
    /// Steps with parts to place, first come first served.
    placing: VecDeque<usize>,
    running: Vec<Batch>,
    in_flight: usize,
    processors: Processors,
}

impl<'a> Run<'a> {
    pub fn new(kernels: &'a [SimulatedKernel], schedule: &Schedule, device: &DeviceModel) -> Self {
        let steps = schedule.steps();
        let mut successors = vec![Vec::new(); steps.len()];
        for (at, step) in steps.iter().enumerate() {
            step.after.iter().for_each(|&before| successors[before].push(at));
        }
        let state = |step: &Step| State {
            waits: step.after.len(),
            latency_us: latency_us(step, &successors, device),
            parts: step.op.map_or(0, |op| kernels[op].parts),
            running: 0,
            start_us: 0.,
            end_us: 0.,
        };
        let mut run = Self {
            kernels,
            queues: device.queues.max(1),
            states: steps.iter().map(state).collect(),
            successors,
            steps,
            now: 0.,
            arriving: BinaryHeap::new(),
            arrived: BinaryHeap::new(),
            placing: VecDeque::new(),
            running: Vec::new(),
            in_flight: 0,
            processors: Processors::new(device),
        };
        for step in 0..run.steps.len() {
            if run.states[step].waits == 0 {
                run.launch(step);
            }
        }
        run
    }

    /// Simulates the pass. Returns the start and the end of each op in microseconds.
    pub fn finish(mut self) -> Vec<(f64, f64)> {
        loop {
            self.admit();
            self.place();
            self.share();
            let ends = self.running.iter().map(|batch| self.now + batch.left_us / batch.rate);
            let arrives = self.arriving.peek().map(|Reverse((bits, _))| f64::from_bits(*bits));
            let Some(next) = ends.chain(arrives).reduce(f64::min) else { break };
            self.advance(next);
        }
        let mut times = vec![(0., 0.); self.kernels.len()];
        for (step, state) in self.steps.iter().zip(&self.states) {
            step.op.into_iter().for_each(|op| times[op] = (state.start_us, state.end_us));
        }
        times
    }

    /// The predecessors of a step have ended: it arrives after its latency.
    fn launch(&mut self, step: usize) {
        let at = self.now + self.states[step].latency_us;
        self.arriving.push(Reverse((at.to_bits(), step)));
    }

    fn admit(&mut self) {
        while let Some(&Reverse((bits, step))) = self.arriving.peek() {
            if f64::from_bits(bits) > self.now {
                break;
            }
            self.arriving.pop();
            match self.steps[step].op {
                Some(_) => self.arrived.push(Reverse(step)),
                None => self.end(step),
            }
        }
        while self.in_flight < self.queues {
            let Some(Reverse(step)) = self.arrived.pop() else { break };
            self.in_flight += 1;
            match self.states[step].parts {
                0 => self.start(step, Placement::new(), 1),
                _ => self.placing.push_back(step),
            }
        }
    }

    fn place(&mut self) {
        while let Some((&step, op)) = self.placing.front().and_then(|step| Some((step, self.steps[*step].op?))) {
            let (kernel, parts) = (&self.kernels[op], self.states[step].parts);
            let (placement, placed) = self.processors.place(kernel.needs, parts, kernel.least.min(parts));
            if placed > 0 {
                self.states[step].parts -= placed;
                self.start(step, placement, placed);
            }
            if self.states[step].parts > 0 {
                break;
            }
            self.placing.pop_front();
        }
    }

    fn start(&mut self, step: usize, placement: Placement, parts: u64) {
        let Some(kernel) = self.kernel(step) else { return };
        let state = &mut self.states[step];
        if state.running == 0 && state.end_us == 0. {
            state.start_us = self.now;
        }
        state.running += 1;
        let draws = kernel.draws.map(|draw| draw * parts as f64);
        self.running.push(Batch { step, placement, left_us: kernel.us, draws, rate: 1. });
    }

    fn kernel(&self, step: usize) -> Option<SimulatedKernel> {
        self.steps[step].op.map(|op: OpId| self.kernels[op])
    }

    /// Sets the rates of running batches: a batch that demands more than its fair share of a resource gets the fair share.
    fn share(&mut self) {
        self.running.iter_mut().for_each(|batch| batch.rate = 1.);
        for shared in 0..Shared::default().len() {
            let draws = |batch: &Batch| batch.draws[shared];
            if self.running.iter().map(draws).sum::<f64>() > 1. {
                let fair = fair(self.running.iter().map(draws).collect());
                for batch in self.running.iter_mut().filter(|batch| batch.draws[shared] > fair) {
                    batch.rate = batch.rate.min(fair / batch.draws[shared]);
                }
            }
        }
    }

    fn advance(&mut self, next: f64) {
        let passed = next - self.now;
        self.now = next;
        let mut at = 0;
        while at < self.running.len() {
            let batch = &mut self.running[at];
            batch.left_us -= passed * batch.rate;
            // Late in a long pass the remaining time may be too small to change `now`.
            if batch.left_us > ROUNDING_US && self.now + batch.left_us > self.now {
                at += 1;
                continue;
            }
            let Batch { step, placement, .. } = self.running.swap_remove(at);
            if let Some(kernel) = self.kernel(step) {
                self.processors.release(kernel.needs, &placement);
            }
            let state = &mut self.states[step];
            state.running -= 1;
            state.end_us = self.now;
            if state.running == 0 && state.parts == 0 {
                self.in_flight -= 1;
                self.end(step);
            }
        }
    }

    fn end(&mut self, step: usize) {
        self.states[step].end_us = self.now;
        for next in std::mem::take(&mut self.successors[step]) {
            self.states[next].waits -= 1;
            if self.states[next].waits == 0 {
                self.launch(next);
            }
        }
    }
}

/// The latency of a step's waits. The first steps have none. Neither has a step whose only predecessor has no other successor:
/// measured kernel times contain that latency, since they are measured from launch to launch.
fn latency_us(step: &Step, successors: &[Vec<usize>], device: &DeviceModel) -> f64 {
    match step.after[..] {
        [] => 0.,
        [before] if successors[before].len() == 1 => 0.,
        _ => limited(device.wait_us + device.edge_us * (step.after.len() - 1) as f64),
    }
}

/// The largest share of each such that all together use at most 1 (max-min fairness).
fn fair(mut draws: Vec<f64>) -> f64 {
    draws.sort_by(f64::total_cmp);
    let mut left = 1.;
    for (at, draw) in draws.iter().enumerate() {
        let part = left / (draws.len() - at) as f64;
        if *draw > part {
            return part;
        }
        left -= draw;
    }
    1.
}
