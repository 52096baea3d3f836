//! Builds and calls of one executor on several threads, on rayon's among them: nothing waits for a build. A test that hangs is killed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;

use anyhow::ensure;
use candle::{DType, Module, Result, Tensor};
use opara_candle::{ops, Error, Mode, OparaExecutor, StepExecutor};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::common::{assert_same, isolated, same_bits, waves, CPU};

/// Rows whose build calls the executor again.
const BUILT: usize = 3;

fn rows(n: usize) -> Result<Tensor> {
    waves(n, (n, 6))
}

fn module(x: &Tensor) -> Result<Tensor> {
    ops::add(&ops::tanh(x)?, &ops::sqr(x)?)
}

fn pool(threads: usize) -> Arc<ThreadPool> {
    Arc::new(ThreadPoolBuilder::new().num_threads(threads).build().expect("threads can be started"))
}

/// Calls the executor with these rows, and compares.
fn call(fast: &OparaExecutor, n: usize) -> anyhow::Result<()> {
    ensure!(same_bits(&fast.forward(&rows(n)?)?, &module(&rows(n)?)?)?, "{n} rows");
    Ok(())
}

/// An executor whose module, on [`BUILT`] rows, has `meanwhile` call the executor and waits for it.
fn calling_itself(
    meanwhile: impl Fn(&OparaExecutor) -> anyhow::Result<()> + Send + Sync + 'static,
) -> anyhow::Result<Arc<OparaExecutor>> {
    let itself: Arc<OnceLock<Weak<OparaExecutor>>> = Arc::default();
    let of = itself.clone();
    let module = move |x: &Tensor| {
        if let Some(fast) = of.get().and_then(Weak::upgrade).filter(|_| x.dims() == [BUILT, 6]) {
            meanwhile(&fast).map_err(candle::Error::msg)?;
        }
        module(x)
    };
    let fast = Arc::new(OparaExecutor::new(module, &rows(2)?)?);
    itself.set(Arc::downgrade(&fast)).expect("it is set once");
    Ok(fast)
}

#[test]
fn a_module_may_wait_for_a_pool_whose_threads_call_its_executor() -> anyhow::Result<()> {
    isolated(|| {
        let pool = pool(2);
        let inside = pool.clone();
        let fast = calling_itself(move |fast| {
            // More calls of new shapes than the pool has threads.
            inside.install(|| (4..10usize).into_par_iter().try_for_each(|n| call(fast, n)))
        })?;
        call(&fast, BUILT)?;
        pool.install(|| (1..20usize).into_par_iter().try_for_each(|n| call(&fast, n)))?;
        ensure!(fast.report_for(&[rows(BUILT)?])?.mode() == Mode::Threads);
        Ok(())
    })
}

#[test]
fn a_module_may_wait_for_a_thread_that_calls_its_executor() -> anyhow::Result<()> {
    isolated(|| {
        let fast =
            calling_itself(|fast| thread::scope(|scope| scope.spawn(|| call(fast, 4)).join().expect("no panic")))?;
        call(&fast, BUILT)?;
        call(&fast, 4)
    })
}

/// What the module keeps for the latest shape is replaced by another call while a shape is built: that is no state of its own.
#[test]
fn a_build_beside_other_calls_does_not_take_their_table_for_state() -> anyhow::Result<()> {
    isolated(|| {
        let itself: Arc<OnceLock<Weak<OparaExecutor>>> = Arc::default();
        let (of, latest, passes) = (itself.clone(), Mutex::new(2), AtomicUsize::new(0));
        let keeping = move |x: &Tensor| {
            let rows = x.dims()[0];
            let is_second = rows == BUILT && passes.fetch_add(1, Ordering::Relaxed) == 1;
            if let Some(fast) = of.get().and_then(Weak::upgrade).filter(|_| is_second) {
                let other = || fast.forward(&self::rows(4)?).map(drop);
                thread::scope(|scope| scope.spawn(other).join().expect("no panic"))?;
            }
            // Another result for a table that was replaced.
            let before = std::mem::replace(&mut *latest.lock().expect("no panic holds it"), rows);
            let y = module(x)?;
            if before == rows {
                Ok(y)
            } else {
                ops::affine(&y, 1., before as f64)
            }
        };
        let fast = Arc::new(OparaExecutor::new(keeping, &rows(2)?)?);
        itself.set(Arc::downgrade(&fast)).expect("it is set once");
        fast.forward(&rows(BUILT)?)?;
        let report = fast.report_for(&[rows(BUILT)?])?;
        ensure!(report.reason().as_ref().is_some_and(|why| why.contains("other calls")), "{report}");
        Ok(())
    })
}

#[test]
fn a_look_at_a_new_shape_does_not_wait_for_a_build() -> anyhow::Result<()> {
    isolated(|| {
        let fast = calling_itself(|fast| {
            let look =
                || Ok::<_, anyhow::Error>((fast.report_for(&[rows(4)?]), fast.trace(&[rows(4)?]), fast.report()));
            let (report, trace, of_example) = thread::scope(|scope| scope.spawn(look).join().expect("no panic"))?;
            ensure!(matches!(report, Err(Error::Building)) && matches!(trace, Err(Error::Building)));
            ensure!(of_example.mode() == Mode::Threads, "a plan that is there is described");
            Ok(())
        })?;
        call(&fast, BUILT)?;
        ensure!(fast.report_for(&[rows(4)?])?.mode() == Mode::Threads);
        Ok(())
    })
}

#[test]
fn a_step_may_wait_for_a_pool_whose_threads_step_other_states() -> anyhow::Result<()> {
    isolated(|| {
        type Steps = StepExecutor<Tensor>;
        let add = |fast: &Steps, n: usize| -> anyhow::Result<()> {
            let (x, mut sum) = (rows(n)?, Tensor::ones(6, DType::F32, CPU)?);
            let expected = (x.sum(0)? + 1.)?;
            fast.step(&[x], &mut sum)?;
            assert_same(&[sum], &[expected], format_args!("{n} rows"));
            Ok(())
        };
        let (itself, pool) = (Arc::<OnceLock<Weak<Steps>>>::default(), pool(2));
        let of = itself.clone();
        let step = move |x: &[Tensor], sum: &Tensor| {
            if let Some(fast) = of.get().and_then(Weak::upgrade).filter(|_| x[0].dims() == [BUILT, 6]) {
                pool.install(|| (4..8usize).into_par_iter().try_for_each(|n| add(&fast, n)))
                    .map_err(candle::Error::msg)?;
            }
            let total = ops::reshape(&ops::sum_keepdim(&x[0], 0)?, 6)?;
            ops::assign(sum, &ops::add(&total, sum)?)?;
            Ok(vec![])
        };
        let fast = OparaExecutor::builder().build_step(step, &[rows(2)?], &Tensor::ones(6, DType::F32, CPU)?)?;
        let fast = Arc::new(fast);
        itself.set(Arc::downgrade(&fast)).expect("it is set once");
        (1..8usize).try_for_each(|n| add(&fast, n))
    })
}

#[test]
fn a_thread_of_a_pool_records_its_own_module_alone() -> anyhow::Result<()> {
    isolated(|| {
        // A thread that waits for a task takes those of others meanwhile.
        let split = |x: &Tensor| {
            rayon::yield_now();
            module(x)
        };
        pool(1).install(|| -> anyhow::Result<()> {
            let other = OparaExecutor::new(module, &rows(1)?)?;
            let (built, called) = rayon::join(
                || OparaExecutor::new(split, &rows(2)?),
                || -> anyhow::Result<()> {
                    call(&other, 5)?;
                    (0..4).try_for_each(|n| module(&rows(n + 1)?).map(drop))?;
                    Ok(())
                },
            );
            called?;
            let report = built?.report();
            ensure!((report.mode(), report.counts().ops) == (Mode::Threads, 3), "{report}");
            Ok(())
        })?;
        let fast = OparaExecutor::new(split, &rows(2)?)?;
        (1..40usize).into_par_iter().try_for_each(|n| call(&fast, n % 9 + 1))
    })
}

#[test]
fn a_replay_does_not_wait_for_a_pool_whose_threads_wait_for_the_caller() -> anyhow::Result<()> {
    isolated(|| {
        let (fast, lock) = (OparaExecutor::new(module, &rows(2)?)?, Mutex::new(()));
        let (enter, entered) = channel();
        rayon::in_place_scope(|scope| {
            let held = lock.lock().expect("no panic holds it");
            for _ in 0..rayon::current_num_threads() {
                let (enter, lock) = (enter.clone(), &lock);
                scope.spawn(move |_| {
                    enter.send(()).ok();
                    drop(lock.lock());
                });
            }
            entered.iter().take(rayon::current_num_threads()).for_each(drop);
            let called = (0..100).try_for_each(|_| call(&fast, 2));
            drop(held);
            called
        })
    })
}

#[test]
fn threads_that_bring_a_shape_at_once_build_it_once() -> anyhow::Result<()> {
    let calls = Arc::new(Mutex::new(0));
    let count = calls.clone();
    let counted = move |x: &Tensor| {
        *count.lock().expect("no panic holds it") += 1;
        module(x)
    };
    let fast = OparaExecutor::new(counted, &rows(2)?)?;
    (0..32).into_par_iter().try_for_each(|_| call(&fast, 5))?;
    call(&fast, 5)?;
    let before = *calls.lock().expect("no panic holds it");
    (0..32).into_par_iter().try_for_each(|_| call(&fast, 5))?;
    assert_eq!((*calls.lock().expect("no panic holds it"), fast.report().rebuilds()), (before, 0), "all are replayed");
    Ok(())
}
