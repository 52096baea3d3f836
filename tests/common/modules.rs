//! Modules that several test programs wrap.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;

use candle::{Device, Result, Tensor};
use parking_lot::Mutex;

use super::one_on;

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

/// A call that stops in the middle.
pub struct Stopped {
    /// Ends when the call is there.
    pub entered: Receiver<()>,
    /// Dropped, it lets the call go on.
    pub leave: Sender<()>,
}

/// A module whose first call with so many rows stops in the middle.
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
                // Ends with an error, since nobody sends.
                left.recv().ok();
            }
        }
        module(t)
    };
    (stops, Stopped { entered, leave })
}

/// `then` where `x` is large, else `x`: no small example shows what `then` holds.
pub fn where_large(x: &Tensor, then: &Tensor) -> Result<Tensor> {
    x.gt(100f32)?.where_cond(then, x)
}

/// Inputs that show it.
pub fn large(i: usize, device: &Device) -> Result<Tensor> {
    one_on(i, device)?[0].affine(1000., 500.)
}
