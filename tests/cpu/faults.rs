//! Modules that fail while executors are built on the CPU, and cache folders that cannot store anything.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use candle::{Result, Tensor};
use opara_candle::{ops, Error, Mode, OnUncapturable, OparaExecutor, Search};

use super::common::{assert_same, isolated_on_a_full_disk, one, waves};

/// The number of times that building calls a module: see `OparaExecutor::new`.
const CALLS: usize = 12;

/// The error message of the failing module.
fn no_answer(call: usize) -> String {
    format!("no answer to call {call}.")
}

fn plain(t: &[Tensor]) -> Result<Vec<Tensor>> {
    Ok(vec![ops::add(&ops::relu(&t[0])?, &ops::tanh(&t[0])?)?])
}

/// A module that counts its calls and fails at call `nth`, counted from 1; it never fails if that is 0.
fn failing(
    calls: &Arc<AtomicUsize>,
    nth: &Arc<AtomicUsize>,
) -> impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync {
    let (calls, nth) = (calls.clone(), nth.clone());
    move |t| {
        let call = calls.fetch_add(1, Ordering::Relaxed) + 1;
        match call == nth.load(Ordering::Relaxed) {
            true => Err(candle::Error::Msg(no_answer(call))),
            false => plain(t),
        }
    }
}

fn counters(nth: usize) -> [Arc<AtomicUsize>; 2] {
    [0, nth].map(|n| Arc::new(AtomicUsize::new(n)))
}

/// Is it the module's own error, from this call?
fn is_error_of_module(error: &Error, call: usize) -> bool {
    let said = error.to_string().contains(&no_answer(call));
    said && matches!(error, Error::Candle(_) | Error::FailsOnOtherValues { .. } | Error::NotCapturable { .. })
}

#[test]
fn a_module_that_fails_at_any_call_of_building_is_an_error_or_runs_eagerly() -> anyhow::Result<()> {
    for nth in 1..=CALLS + 1 {
        for action in [OnUncapturable::Eager, OnUncapturable::Error] {
            let [calls, failing_call] = counters(nth);
            let function = failing(&calls, &failing_call);
            let fast = match OparaExecutor::builder().on_uncapturable(action).build_fn(function, &one(0)?) {
                Ok(fast) => fast,
                Err(error) => {
                    assert!(nth <= CALLS && is_error_of_module(&error, nth), "call {nth}: {error:?}");
                    continue;
                }
            };
            let report = fast.report();
            match report.mode() {
                Mode::Eager => {
                    let reason = report.reason().unwrap_or_default();
                    assert!(action == OnUncapturable::Eager && reason.contains(&no_answer(nth)), "{reason}");
                }
                mode => assert!(mode == Mode::Threads && nth > CALLS, "call {nth} failed: {mode:?}"),
            }
            for i in 0..3 {
                assert_same(
                    &fast.call(&one(i)?)?,
                    &plain(&one(i)?)?,
                    format_args!("input {i} after call {nth} failed"),
                );
            }
        }
    }
    Ok(())
}

#[test]
fn a_shape_that_fails_to_build_does_not_affect_others_and_is_built_later() -> anyhow::Result<()> {
    let other = [waves(1, (5, 6))?];
    for nth in 1..=CALLS {
        let [calls, failing_call] = counters(0);
        let fast = OparaExecutor::builder()
            .on_uncapturable(OnUncapturable::Error)
            .build_fn(failing(&calls, &failing_call), &one(0)?)?;
        failing_call.store(calls.load(Ordering::Relaxed) + nth, Ordering::Relaxed);
        let error = fast.call(&other).expect_err("the module failed");
        assert!(is_error_of_module(&error, failing_call.load(Ordering::Relaxed)), "call {nth}: {error:?}");
        assert_same(&fast.call(&one(1)?)?, &plain(&one(1)?)?, "the shape that was built");
        assert_same(&fast.call(&other)?, &plain(&other)?, "the shape that failed");
        let report = fast.report_for(&other)?;
        assert_eq!((report.mode(), report.reason()), (Mode::Threads, None));
    }
    Ok(())
}

/// Builds twice with tuning and a cache folder: the second build must find no plan, and answers must be right.
fn assert_built_without(folder: &Path) -> anyhow::Result<()> {
    let tuning = Search::default().proposals(4).cache(Some(folder.into()));
    for _ in 0..2 {
        let fast = OparaExecutor::builder().scheduler(tuning.clone()).build_fn(plain, &one(0)?)?;
        let report = fast.report();
        assert!(
            report.mode() == Mode::Threads && report.search().is_some_and(|found| !found.cached),
            "{}",
            fast.report()
        );
        assert_same(&fast.call(&one(1)?)?, &plain(&one(1)?)?, "a tuned executor");
    }
    Ok(())
}

#[test]
fn tuning_works_without_a_writable_cache_folder() -> anyhow::Result<()> {
    let file = tempfile::NamedTempFile::new()?;
    assert_built_without(&file.path().join("in a file"))?;
    assert_built_without(file.path())?;
    if cfg!(target_os = "linux") {
        // Not even root can create a folder there.
        assert_built_without(Path::new("/proc/opara-candle"))?;
    }
    assert_eq!(std::fs::read(file.path())?, b"");
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
fn tuning_works_on_a_full_disk() -> anyhow::Result<()> {
    isolated_on_a_full_disk(|| {
        let folder = tempfile::tempdir()?;
        assert!(std::fs::write(folder.path().join("more"), b"more").is_err(), "the disk is full");
        std::fs::remove_file(folder.path().join("more"))?;
        assert_built_without(folder.path())?;
        assert_eq!(std::fs::read_dir(folder.path())?.count(), 0, "files are left");
        Ok(())
    })
}
