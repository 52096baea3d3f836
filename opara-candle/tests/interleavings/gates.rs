//! The gate between captures and calls that wait for the whole device.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use loom::sync::atomic::AtomicUsize;
use loom::sync::Mutex;
use loom::thread::{self, JoinHandle};

use crate::gate::{Capture, Gate};
use crate::sync::set_timeouts;

/// A capture. The value is held during a driver call, and says whether another thread has ended the capture.
struct Run(Mutex<bool>);

impl Run {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(false)))
    }
}

impl Capture for Run {
    fn is_over(&self) -> bool {
        self.0.try_lock().is_ok_and(|is_ended| *is_ended)
    }

    fn end(&self) {
        if let Ok(mut is_ended) = self.0.try_lock() {
            *is_ended = true;
        }
    }
}

/// A device, as the gate guards it. Only the gate orders reads and writes of the counts.
struct Device {
    gate: Gate<Run>,
    captures: AtomicUsize,
    waits: AtomicUsize,
}

impl Device {
    fn new() -> Arc<Self> {
        Arc::new(Self { gate: Gate::default(), captures: AtomicUsize::new(0), waits: AtomicUsize::new(0) })
    }

    /// A capture of one driver call. The driver would abort it if another thread waited for the device meanwhile.
    fn capture(&self) {
        let run = Run::new();
        self.gate.enter(run.clone());
        let is_ended = run.0.lock().expect("no thread panics");
        if !*is_ended {
            self.captures.fetch_add(1, Relaxed);
            assert_eq!(self.waits.load(Relaxed), 0, "a thread waits for the device while another one captures");
            self.captures.fetch_sub(1, Relaxed);
        }
        drop(is_ended);
        self.gate.leave(&run);
    }

    /// A call that waits for the whole device, on another thread.
    fn wait(self: &Arc<Self>) -> JoinHandle<()> {
        let device = self.clone();
        thread::spawn(move || {
            device.gate.between_captures(|| {
                device.waits.fetch_add(1, Relaxed);
                assert_eq!(
                    device.captures.load(Relaxed),
                    0,
                    "a thread waits for the device while another one captures"
                );
                device.waits.fetch_sub(1, Relaxed);
            });
        })
    }
}

/// Runs a test in all orders of up to three switches before a thread has to wait: all orders of three threads take minutes.
fn check(timeouts: usize, test: impl Fn() + Send + Sync + 'static) {
    let mut orders = loom::model::Builder::new();
    orders.preemption_bound = Some(3);
    orders.check(move || {
        set_timeouts(timeouts);
        test();
    });
}

#[test]
fn captures_and_waits_for_the_device_exclude_each_other() {
    for timeouts in [0, 2] {
        check(timeouts, || {
            let device = Device::new();
            let (first, second) = (device.wait(), device.wait());
            device.capture();
            for wait in [first, second] {
                wait.join().expect("no panic");
            }
            device.capture();
        });
    }
}

#[test]
fn captures_run_beside_each_other() {
    check(0, || {
        let device = Device::new();
        let wait = device.wait();
        let other = {
            let device = device.clone();
            thread::spawn(move || device.capture())
        };
        device.capture();
        for ends in [wait, other] {
            ends.join().expect("no panic");
        }
    });
}

/// The module waits for the thread that waits for its capture. Without patience's end this is a deadlock, which loom reports.
#[test]
fn a_capture_that_waits_for_a_waiting_thread_is_ended() {
    check(1, || {
        let device = Device::new();
        let run = Run::new();
        device.gate.enter(run.clone());
        device.wait().join().expect("no panic");
        assert!(run.is_over(), "the module's next call is refused");
        device.gate.leave(&run);
        device.capture();
    });
}
