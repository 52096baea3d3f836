//! The plans of an executor, one for each set of input shapes: eviction, and rebuilding of evicted plans.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use hashbrown::HashMap;
use lru::LruCache;
use parking_lot::Mutex;

use crate::pipeline::Plan;
use crate::report::Report;
use crate::shapes::Key;

/// How many lost plans an executor rebuilds at the next call of their shapes. A build takes as long as some hundred eager calls,
/// so shapes that keep evicting each other would be slower than eager execution.
const REBUILDS: u64 = 16;

/// Eager calls after which a lost plan is rebuilt all the same: the build then costs little compared with these calls.
const CALLS_THAT_PAY: u64 = 1_000;

/// The number of lost plans that are remembered, the latest ones.
const REMEMBERED: usize = 1_024;

/// A plan with the number of its calls.
pub(crate) struct Entry {
    pub plan: Plan,
    calls: AtomicU64,
}

impl Entry {
    fn new(plan: Plan) -> Arc<Self> {
        Arc::new(Self { plan, calls: AtomicU64::new(0) })
    }

    /// Counts a call. Is its number a multiple of `every`?
    pub fn is_nth(&self, every: u64) -> bool {
        every > 0 && (self.calls.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(every)
    }

    fn is_stale(&self) -> bool {
        self.plan.replay.as_ref().is_some_and(|replay| replay.is_stale())
    }
}

/// Why the plan of some shapes was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Cause {
    /// It was evicted by plans of other shapes.
    Evicted,
    /// The module freed memory that it read.
    Freed,
    /// Its outputs differed from the module's.
    Differed,
}

impl Cause {
    fn reason(self, max_shapes: usize) -> String {
        match self {
            Cause::Evicted => format!(
                "there are more sets of input shapes than the {max_shapes} plans that are kept: raise \
                 `Builder::max_shapes`"
            ),
            Cause::Freed => "the module keeps freeing memory that its recorded passes read: let it keep a tensor for \
                             each shape, as a cache or a table, for as long as it lives"
                .into(),
            Cause::Differed => "a re-check found other outputs than the module's".into(),
        }
    }
}

/// A lost plan.
struct Lost {
    cause: Cause,
    /// Eager calls since it was lost.
    calls: u64,
}

impl Lost {
    /// Does the next call of its shapes build it again? `rebuilds` counts earlier builds of lost plans.
    fn is_built_again(&self, rebuilds: u64) -> bool {
        self.cause != Cause::Differed && (rebuilds < REBUILDS || self.calls >= CALLS_THAT_PAY)
    }
}

/// The plans of an executor.
pub(crate) struct Plans {
    state: Mutex<State>,
    max_shapes: usize,
    /// The shapes that the executor was built with.
    example: Key,
}

struct State {
    kept: LruCache<Key, Arc<Entry>>,
    lost: LruCache<Key, Lost>,
    /// The number of lost plans that were rebuilt.
    rebuilds: u64,
    /// Eager entries that replace lost plans, by the cause of the loss.
    eager: HashMap<Cause, Arc<Entry>>,
    /// The report of the latest plan for the shapes that the executor was built with.
    example_report: Option<Report>,
    /// Number of times that all plans were dropped.
    generation: u64,
    /// Evicted entries, which are dropped after the lock is released.
    out: Vec<Arc<Entry>>,
}

impl Plans {
    /// No plans yet, and at most `max_shapes` later; `example` are the shapes that come first.
    pub fn new(max_shapes: usize, example: Key) -> Self {
        let state = State {
            kept: LruCache::unbounded(),
            lost: LruCache::unbounded(),
            rebuilds: 0,
            eager: HashMap::new(),
            example_report: None,
            generation: 0,
            out: Vec::new(),
        };
        Self { state: Mutex::new(state), max_shapes, example }
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let result = f(&mut state);
        let out = std::mem::take(&mut state.out);
        drop(state);
        // Outside of the lock, since dropping waits for the last replays.
        drop(out);
        result
    }

    /// The plan for calls of these shapes; `None` if it is to be built.
    pub fn find(&self, key: &Key) -> Option<Arc<Entry>> {
        self.with(|state| state.find(key, self.max_shapes))
    }

    /// The same for a look at it, which counts as no call.
    pub fn peek(&self, key: &Key) -> Option<Arc<Entry>> {
        self.state.lock().peek(key)
    }

    /// Keeps a plan that was built for these shapes, unless all plans were forgotten since that `generation`.
    pub fn insert(&self, key: Key, plan: Plan, generation: u64) -> Arc<Entry> {
        let entry = Entry::new(plan);
        self.with(|state| {
            if state.generation == generation {
                state.rebuilds += u64::from(state.lost.pop(&key).is_some());
                state.keep(key.clone(), entry.clone());
                while state.kept.len() > self.max_shapes {
                    state.evict();
                }
            }
            if key == self.example {
                state.example_report = Some(entry.plan.report.clone());
            }
        });
        entry
    }

    /// Number of times that all plans were dropped.
    pub fn generation(&self) -> u64 {
        self.state.lock().generation
    }

    /// Calls of these shapes run the module from now on, since this plan's outputs differ from the module's.
    pub fn distrust(&self, key: &Key, entry: &Arc<Entry>, reason: String) {
        let report = entry.plan.report.eagerly(reason);
        self.with(|state| {
            // If it was dropped or rebuilt since, it answers no more calls.
            if state.kept.peek(key).is_some_and(|kept| Arc::ptr_eq(kept, entry)) {
                if *key == self.example {
                    state.example_report = Some(report.clone());
                }
                state.lose(key.clone(), Cause::Differed);
                state.keep(key.clone(), Entry::new(Plan::eager(report)));
            }
        });
    }

    /// Drops all plans, and forgets which were lost. The report of the example's shapes stays.
    pub fn forget(&self) {
        self.with(|state| {
            state.generation += 1;
            state.rebuilds = 0;
            state.lost.clear();
            while let Some((_, entry)) = state.kept.pop_lru() {
                state.out.push(entry);
            }
            let State { eager, out, .. } = state;
            out.extend(eager.drain().map(|(_, entry)| entry));
        });
    }

    /// The report of the plan for the example's shapes, or of their last plan if it was dropped.
    pub fn example_report(&self) -> Option<Report> {
        let state = self.state.lock();
        state.peek(&self.example).map(|entry| entry.plan.report.clone()).or_else(|| state.example_report.clone())
    }

    /// Number of lost plans that were built again.
    pub fn rebuilds(&self) -> u64 {
        self.state.lock().rebuilds
    }
}

impl State {
    fn find(&mut self, key: &Key, max_shapes: usize) -> Option<Arc<Entry>> {
        if let Some(entry) = self.kept.get(key) {
            if !entry.is_stale() {
                return Some(entry.clone());
            }
            self.lose(key.clone(), Cause::Freed);
        }
        let lost = self.lost.get_mut(key)?;
        if lost.is_built_again(self.rebuilds) {
            return None;
        }
        lost.calls += 1;
        let cause = lost.cause;
        if !self.eager.contains_key(&cause) {
            // For all shapes that lost their plans so: the time of one of them says nothing of the others.
            let report = self.example_report.as_ref()?.eagerly(cause.reason(max_shapes));
            let report = Report { eager_us: 0., ..report };
            if let Some(reason) = &report.reason {
                tracing::warn!(%reason, rebuilds = self.rebuilds, "calls of some shapes run eagerly");
            }
            self.eager.insert(cause, Entry::new(Plan::eager(report)));
        }
        self.eager.get(&cause).cloned()
    }

    fn peek(&self, key: &Key) -> Option<Arc<Entry>> {
        if let Some(entry) = self.kept.peek(key).filter(|entry| !entry.is_stale()) {
            return Some(entry.clone());
        }
        let lost = self.lost.peek(key).filter(|lost| !lost.is_built_again(self.rebuilds))?;
        self.eager.get(&lost.cause).cloned()
    }

    fn keep(&mut self, key: Key, entry: Arc<Entry>) {
        self.out.extend(self.kept.put(key, entry));
    }

    /// Evicts the least recently used plan.
    fn evict(&mut self) {
        if let Some((key, entry)) = self.kept.pop_lru() {
            self.out.push(entry);
            self.remember(key, Cause::Evicted);
        }
    }

    /// Drops a plan, and remembers why.
    fn lose(&mut self, key: Key, cause: Cause) {
        self.out.extend(self.kept.pop(&key));
        self.remember(key, cause);
    }

    fn remember(&mut self, key: Key, cause: Cause) {
        let before = self.lost.pop(&key);
        // An eager entry of a plan that differed may be evicted, too; the cause is still that it differed.
        let cause = before.map_or(cause, |before| if before.cause == Cause::Differed { before.cause } else { cause });
        self.lost.put(key, Lost { cause, calls: 0 });
        while self.lost.len() > REMEMBERED {
            self.lost.pop_lru();
        }
    }
}

#[cfg(test)]
mod tests {
    use candle::DType;

    use super::*;

    fn key(rows: usize) -> Key {
        vec![(vec![rows], DType::F32)]
    }

    fn plan() -> Plan {
        Plan::default()
    }

    /// Calls with that many shapes alternately, and returns the number of builds.
    fn builds(plans: &Plans, shapes: std::ops::Range<usize>, rounds: usize) -> usize {
        let mut builds = 0;
        for rows in (0..rounds).flat_map(|_| shapes.clone()) {
            if plans.find(&key(rows)).is_none() {
                builds += 1;
                plans.insert(key(rows), plan(), plans.generation());
            }
        }
        builds
    }

    #[test]
    fn shapes_that_push_each_other_out_are_built_a_few_times() {
        let plans = Plans::new(8, key(0));
        assert_eq!(builds(&plans, 0..9, 100), 9 + REBUILDS as usize);
        assert_eq!(plans.rebuilds(), REBUILDS);
        assert_eq!(plans.state.lock().kept.len(), 8);
        plans.forget();
        assert_eq!(builds(&plans, 0..8, 100), 8, "as at first");
    }

    #[test]
    fn a_shape_that_is_called_often_is_built_again() {
        let plans = Plans::new(1, key(0));
        builds(&plans, 0..2, 100);
        let calls = (0..).take_while(|_| plans.find(&key(0)).is_some()).count() as u64;
        assert!(calls <= CALLS_THAT_PAY, "{calls}");
        assert!(plans.find(&key(0)).is_none(), "until it is built");
        plans.insert(key(0), plan(), 0);
        assert!((0..2 * CALLS_THAT_PAY).all(|_| plans.find(&key(0)).is_some()));
    }

    #[test]
    fn new_shapes_are_built_however_many_were_lost_and_few_are_remembered() {
        let plans = Plans::new(2, key(0));
        builds(&plans, 0..3, 100);
        assert_eq!(builds(&plans, 1_000..6_000, 1), 5_000);
        assert_eq!(plans.state.lock().lost.len(), REMEMBERED);
    }

    #[test]
    fn a_look_is_no_call() {
        let plans = Plans::new(1, key(0));
        builds(&plans, 0..2, 100);
        let calls = |plans: &Plans| plans.state.lock().lost.iter().map(|(_, lost)| lost.calls).sum::<u64>();
        let before = calls(&plans);
        for _ in 0..CALLS_THAT_PAY {
            let looked = [0, 1].map(|rows| plans.peek(&key(rows)).is_some());
            assert_eq!(looked, [true, true], "the one is kept, the other one runs eagerly");
        }
        assert_eq!(calls(&plans), before);
        assert!(plans.peek(&key(9)).is_none(), "it was never built");
    }

    #[test]
    fn shapes_that_differed_are_never_rebuilt() {
        let plans = Plans::new(1, key(0));
        let entry = plans.insert(key(0), plan(), 0);
        plans.distrust(&key(0), &entry, "it differs".into());
        let reason = || plans.example_report().and_then(|report| report.reason);
        assert_eq!((plans.find(&key(0)).is_some(), reason()), (true, Some("it differs".into())));
        plans.insert(key(1), plan(), 0);
        assert!((0..2 * CALLS_THAT_PAY).all(|_| plans.find(&key(0)).is_some()), "also after others took its place");
        assert!(reason().is_some_and(|reason| reason.contains("re-check")));
        plans.forget();
        assert!(plans.find(&key(0)).is_none(), "but after a change of the module");
    }

    #[test]
    fn a_plan_that_was_begun_before_all_were_forgotten_is_not_kept() {
        let plans = Plans::new(2, key(0));
        let generation = plans.generation();
        plans.forget();
        plans.insert(key(0), plan(), generation);
        assert!(plans.find(&key(0)).is_none());
        assert!(plans.example_report().is_some(), "its own call was answered by it");
    }
}
