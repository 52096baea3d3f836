//! The gate between captures and calls that wait for the whole device.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use loom::sync::atomic::AtomicUsize;
use loom::sync::Mutex;
use loom::thread::{self, JoinHandle};

use crate::gate::{Capture, Gate};
use crate::sync::set_timeouts;

/// A capture.
struct Run {
    /// Held during a driver call. Has another thread ended the capture?
    is_ended: Mutex<bool>,
    calls: AtomicUsize,
}

impl Run {
    fn new() -> Arc<Self> {
        Arc::new(Self { is_ended: Mutex::new(false), calls: AtomicUsize::new(0) })
    }
}

impl Capture for Run {
    fn is_over(&self) -> bool {
        self.is_ended.try_lock().is_ok_and(|is_ended| *is_ended)
    }

    fn calls(&self) -> usize {
        self.calls.load(Relaxed)
    }

    fn end(&self) {
        if let Ok(mut is_ended) = self.is_ended.try_lock() {
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
        let is_ended = run.is_ended.lock().expect("no thread panics");
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

/// Each time that patience ends, the capture has made a call since the last time.
#[test]
fn a_capture_that_goes_on_making_calls_is_not_ended() {
    /// A capture that makes a call whenever it is asked how many there were.
    struct Busy(AtomicUsize);

    impl Capture for Busy {
        fn is_over(&self) -> bool {
            false
        }

        fn calls(&self) -> usize {
            self.0.fetch_add(1, Relaxed)
        }

        fn end(&self) {
            panic!("it is ended in the middle of its work");
        }
    }

    check(3, || {
        let gate = Arc::new(Gate::default());
        let busy = Arc::new(Busy(AtomicUsize::new(0)));
        gate.enter(busy.clone());
        let waits = {
            let gate = gate.clone();
            thread::spawn(move || gate.between_captures(|| ()))
        };
        gate.leave(&busy);
        waits.join().expect("no panic");
    });
}
