//! Modules that several test programs wrap, and shared assertions about their executors.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;

use candle::{Device, Result, Tensor};
use opara_candle::{Mode, OparaExecutor};
use parking_lot::Mutex;
use tracing::Level;

use super::{assert_same, logged, one_on};

/// A module that counts its calls.
pub fn counted<F>(
    calls: &Arc<AtomicUsize>,
    module: F,
) -> impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static
where
    F: Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
{
    let calls = calls.clone();
    move |t| {
        calls.fetch_add(1, Ordering::Relaxed);
        module(t)
    }
}

/// Calls an executor that keeps eight plans with nine shapes in turn. After some rounds it must stop building, warn
/// once, and run one of the nine shapes eagerly. `rows` makes inputs with that many rows.
///
/// # Panics
/// If the executor behaves differently, or an answer differs from `expected`.
pub fn assert_nine_shapes_settle<F>(
    module: F,
    expected: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
    rows: impl Fn(usize) -> Result<[Tensor; 1]>,
) -> anyhow::Result<()>
where
    F: Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
{
    let calls = Arc::new(AtomicUsize::new(0));
    let (log, ()) = logged(Level::WARN, || -> anyhow::Result<()> {
        let fast = OparaExecutor::builder().build_fn(counted(&calls, module), &rows(1)?)?;
        let round = || -> anyhow::Result<Vec<_>> {
            let mut reports = Vec::new();
            for n in 1..10 {
                let x = rows(n)?;
                assert_same(&fast.call(&x)?, &expected(&x)?, format_args!("{n} rows"));
                reports.push(fast.report_for(&x)?);
            }
            Ok(reports)
        };
        for _ in 0..10 {
            round()?;
        }
        let before = calls.load(Ordering::Relaxed);
        for _ in 0..10 {
            let reports = round()?;
            let eager: Vec<_> = reports.iter().filter(|report| report.mode() == Mode::Eager).collect();
            assert_eq!(eager.len(), 1, "eight are kept");
            assert!(eager[0].reason().is_some_and(|reason| reason.contains("max_shapes")), "{}", eager[0]);
            assert!(reports.iter().all(|report| report.rebuilds() == 16));
        }
        assert_eq!(calls.load(Ordering::Relaxed) - before, 10, "the module answers one of nine calls");
        Ok(())
    })?;
    assert_eq!(log.iter().filter(|line| line.contains("max_shapes")).count(), 1, "{log:?}");
    Ok(())
}

/// A call that is blocked in the middle.
pub struct Stopped {
    /// Disconnects when the call has arrived.
    pub entered: Receiver<()>,
    /// The call continues when this is dropped.
    pub leave: Sender<()>,
}

/// A module whose first call with this many rows blocks in the middle.
pub fn stopped_at<F>(
    rows: usize,
    module: F,
) -> (impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static, Stopped)
where
    F: Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
{
    let (enter, entered) = channel::<()>();
    let (leave, left) = channel::<()>();
    let gate = Mutex::new((Some(enter), left));
    let stops = move |t: &[Tensor]| {
        if t[0].dim(0)? == rows {
            let (enter, left) = &mut *gate.lock();
            if let Some(enter) = enter.take() {
                drop(enter);
                // Returns with an error, since nothing is ever sent.
                left.recv().ok();
            }
        }
        module(t)
    };
    (stops, Stopped { entered, leave })
}

/// `then` where `x` is large, otherwise `x`: examples with small values do not show the content of `then`.
pub fn where_large(x: &Tensor, then: &Tensor) -> Result<Tensor> {
    x.gt(100f32)?.where_cond(then, x)
}

/// Inputs with large values, which show it.
pub fn large(i: usize, device: &Device) -> Result<Tensor> {
    one_on(i, device)?[0].affine(1000., 500.)
}
