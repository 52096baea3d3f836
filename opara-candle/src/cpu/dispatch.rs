//! Decides which operator runs next, and whether it runs on one core beside others or alone on all cores.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// The work below which handing an operator to another thread costs more than it saves, in operations or quarters of a byte
/// moved: some 50 microseconds of one core.
const LARGE: u64 = 1_000_000;

/// The share of all cores' speed that a scalable operator reaches on them. (Measured with operators of milliseconds on 2 cores.)
const EFFICIENCY: f64 = 0.85;

/// Workers are tried if the estimated time with them is at most this share of the time without.
const WORTH_TRYING: f64 = 0.95;

/// The operators to dispatch, by position in launch order.
#[derive(Debug, Clone, Default)]
pub(super) struct Steps {
    /// Estimated work of each operator.
    pub work: Vec<u64>,
    /// Does it gain from more cores? Matmul, attention, softmax, convolutions and pools do. candle's other operators run on one.
    pub scales: Vec<bool>,
    /// The operators that wait for each.
    pub successors: Vec<Vec<usize>>,
    /// The number of operators for which each waits.
    pub waits: Vec<usize>,
}

impl Steps {
    /// Estimated time of an operator on all cores.
    fn on_all_cores(&self, at: usize, cores: usize) -> f64 {
        let speedup = if self.scales[at] { cores as f64 * EFFICIENCY } else { 1. };
        self.work[at] as f64 / speedup
    }

    /// Estimated time of a call with that many workers. Operators that run on no worker have all cores.
    fn makespan(self: &Arc<Self>, workers: usize, cores: usize) -> f64 {
        let mut dispatch = Dispatch::new(self.clone(), workers);
        let mut running: Vec<(f64, usize)> = Vec::new();
        let mut now = 0.;
        while !dispatch.is_finished() {
            if let Some(at) = dispatch.lead() {
                now += self.on_all_cores(at, cores);
                dispatch.finish(at);
                continue;
            }
            while let Some(at) = dispatch.follow() {
                running.push((now + self.work[at] as f64, at));
            }
            let next = (0..running.len()).min_by(|&a, &b| running[a].0.total_cmp(&running[b].0));
            let Some((end, at)) = next.map(|i| running.swap_remove(i)) else { break };
            now = end;
            dispatch.finish(at);
        }
        now
    }

    /// Are workers likely to be clearly faster than one operator after the other on all cores? Only then are they tried.
    pub fn parallelism_pays(self: &Arc<Self>, cores: usize) -> bool {
        self.makespan(cores, cores) < WORTH_TRYING * self.makespan(1, cores)
    }
}

/// The state of one call. Pure bookkeeping: the caller locks it and runs the operators.
#[derive(Debug)]
pub(super) struct Dispatch {
    steps: Arc<Steps>,
    cores: usize,
    ready: BinaryHeap<Reverse<usize>>,
    waits: Vec<usize>,
    left: usize,
    /// Operators on workers, with the virtual time at which each should be done; one unit of work takes one of time.
    running: Vec<(usize, u64)>,
    now: u64,
    leading: bool,
}

impl Dispatch {
    /// The start of a call. With one core, all operators run on the caller's thread.
    pub fn new(steps: Arc<Steps>, cores: usize) -> Self {
        let n = steps.waits.len();
        let ready = (0..n).filter(|&at| steps.waits[at] == 0).map(Reverse).collect();
        let waits = steps.waits.clone();
        Self { steps, cores, ready, waits, left: n, running: Vec::new(), now: 0, leading: false }
    }

    /// Is nothing left to start or to wait for?
    pub fn is_finished(&self) -> bool {
        self.left == 0
    }

    /// Is an operator running on a worker?
    pub fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// The next operator for the caller's thread, with all cores, if that is faster now.
    pub fn lead(&mut self) -> Option<usize> {
        if self.leading || self.is_running() || self.is_faster_in_parallel() {
            return None;
        }
        let Reverse(at) = self.ready.pop()?;
        self.leading = true;
        Some(at)
    }

    /// The next operator for a worker, if another one should start now.
    pub fn follow(&mut self) -> Option<usize> {
        let Reverse(at) = *self.ready.peek()?;
        let small_beside = self.is_running() && self.steps.work[at] <= LARGE;
        if self.leading || self.running.len() >= self.cores || !(small_beside || self.is_faster_in_parallel()) {
            return None;
        }
        self.ready.pop();
        self.running.push((at, self.now + self.steps.work[at]));
        Some(at)
    }

    /// Is it faster to start the ready large operators now, one per core, than to run each on all cores later?
    fn is_faster_in_parallel(&self) -> bool {
        let idle = self.cores.saturating_sub(self.running.len());
        let ready = self.ready.iter().map(|Reverse(at)| *at);
        let large: Vec<usize> = ready.filter(|&at| self.steps.work[at] > LARGE).collect();
        if self.cores < 2 || large.len() > idle && idle > 0 {
            return self.cores > 1;
        }
        let until = self.running.iter().map(|&(_, end)| end.saturating_sub(self.now)).max().unwrap_or(0) as f64;
        let longest = large.iter().map(|&at| self.steps.work[at]).max().unwrap_or(0) as f64;
        let alone: f64 = large.iter().map(|&at| self.steps.on_all_cores(at, self.cores)).sum();
        !large.is_empty() && longest.max(until) < until + alone
    }

    /// Marks an operator as done, and makes its successors ready.
    pub fn finish(&mut self, at: usize) {
        match self.running.iter().position(|&(running, _)| running == at) {
            Some(i) => self.now = self.now.max(self.running.swap_remove(i).1),
            None => self.leading = false,
        }
        self.left -= 1;
        for &successor in &self.steps.successors[at] {
            self.waits[successor] -= 1;
            if self.waits[successor] == 0 {
                self.ready.push(Reverse(successor));
            }
        }
    }

    /// Starts nothing more.
    pub fn cancel(&mut self) {
        self.ready.clear();
        self.left = self.running.len() + usize::from(self.leading);
        self.waits.fill(usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MUCH: u64 = 10 * LARGE;

    /// `work` of each step, and edges from the first to the second.
    fn steps(work: &[u64], edges: &[(usize, usize)]) -> Arc<Steps> {
        let n = work.len();
        let mut steps =
            Steps { work: work.to_vec(), scales: vec![true; n], successors: vec![vec![]; n], waits: vec![0; n] };
        for &(from, to) in edges {
            steps.successors[from].push(to);
            steps.waits[to] += 1;
        }
        Arc::new(steps)
    }

    #[test]
    fn a_chain_runs_on_the_callers_thread() {
        let steps = steps(&[MUCH, 1, MUCH], &[(0, 1), (1, 2)]);
        let mut dispatch = Dispatch::new(steps, 2);
        for at in 0..3 {
            assert_eq!(dispatch.follow(), None);
            assert_eq!(dispatch.lead(), Some(at));
            assert_eq!(dispatch.lead(), None, "one at a time");
            dispatch.finish(at);
        }
        assert!(dispatch.is_finished());
    }

    #[test]
    fn with_one_core_everything_runs_on_the_callers_thread() {
        let steps = steps(&[MUCH; 3], &[]);
        let mut dispatch = Dispatch::new(steps, 1);
        for at in 0..3 {
            assert_eq!((dispatch.follow(), dispatch.lead()), (None, Some(at)));
            dispatch.finish(at);
        }
    }

    #[test]
    fn two_large_branches_go_to_two_workers() {
        let steps = steps(&[MUCH, MUCH, MUCH], &[(0, 2), (1, 2)]);
        let mut dispatch = Dispatch::new(steps, 2);
        assert_eq!(dispatch.lead(), None);
        assert_eq!((dispatch.follow(), dispatch.follow(), dispatch.follow()), (Some(0), Some(1), None));
        dispatch.finish(1);
        dispatch.finish(0);
        assert_eq!((dispatch.follow(), dispatch.lead()), (None, Some(2)));
    }

    #[test]
    fn the_third_of_three_equal_operators_gets_both_cores() {
        let steps = steps(&[MUCH; 3], &[]);
        let mut dispatch = Dispatch::new(steps, 2);
        assert_eq!((dispatch.follow(), dispatch.follow()), (Some(0), Some(1)));
        dispatch.finish(0);
        assert_eq!(dispatch.follow(), None, "the other worker will be done soon");
        assert_eq!(dispatch.lead(), None);
        dispatch.finish(1);
        assert_eq!(dispatch.lead(), Some(2));
    }

    #[test]
    fn short_operators_run_beside_a_long_one() {
        let steps = steps(&[4 * MUCH, MUCH, MUCH, 1], &[]);
        let mut dispatch = Dispatch::new(steps, 2);
        assert_eq!((dispatch.follow(), dispatch.follow()), (Some(0), Some(1)));
        dispatch.finish(1);
        assert_eq!(dispatch.follow(), Some(2));
        dispatch.finish(2);
        assert_eq!(dispatch.follow(), Some(3), "a small operator runs beside the large one");
    }

    #[test]
    fn operators_that_do_not_scale_run_in_parallel() {
        let mut steps = Steps::clone(&steps(&[20 * MUCH, MUCH, MUCH], &[(1, 2)]));
        steps.scales = vec![false; 3];
        let mut dispatch = Dispatch::new(Arc::new(steps), 2);
        assert_eq!((dispatch.follow(), dispatch.follow()), (Some(0), Some(1)));
        dispatch.finish(1);
        assert_eq!(dispatch.follow(), Some(2));
    }

    #[test]
    fn workers_are_tried_if_the_estimate_says_that_they_pay() {
        let branches = Steps::clone(&steps(&[MUCH; 4], &[]));
        assert!(Arc::new(Steps { scales: vec![false; 4], ..branches }).parallelism_pays(2));
        assert!(!steps(&[MUCH; 3], &[(0, 1), (1, 2)]).parallelism_pays(2), "a chain");
        let attention = [MUCH, MUCH, MUCH, 9 * MUCH, 9 * MUCH];
        assert!(
            !steps(&attention, &[(0, 3), (1, 3), (2, 3), (3, 4)]).parallelism_pays(2),
            "three short operators of five"
        );
    }

    #[test]
    fn a_much_longer_operator_gets_all_cores() {
        let steps = steps(&[20 * MUCH, MUCH], &[]);
        let mut dispatch = Dispatch::new(steps, 2);
        assert_eq!((dispatch.follow(), dispatch.lead()), (None, Some(0)));
    }

    #[test]
    fn a_cancelled_call_waits_for_running_operators_and_starts_none() {
        let steps = steps(&[MUCH; 4], &[(0, 3)]);
        let mut dispatch = Dispatch::new(steps, 2);
        assert_eq!((dispatch.follow(), dispatch.follow()), (Some(0), Some(1)));
        dispatch.cancel();
        dispatch.finish(0);
        assert!(!dispatch.is_finished());
        assert_eq!((dispatch.follow(), dispatch.lead()), (None, None));
        dispatch.finish(1);
        assert!(dispatch.is_finished());
    }
}
