//! Answers that one thread drops while another builds new shapes. Tests skip without a GPU or the feature `cuda`, and
//! say so.

use std::sync::mpsc::{channel, Receiver};
use std::sync::Arc;

use anyhow::ensure;
use candle::{DType, Device, Module, Result, Tensor};
use opara_candle::{device_memory, Mode, OparaExecutor};
use parking_lot::Mutex;

use crate::common::{beside, devices, isolated, same_bits, waves, Meanwhile};

/// Columns of an input: an answer with 64 rows takes half a MiB.
const WIDTH: usize = 2048;
/// Bytes that the pool may keep beyond its use before: less than a few answers.
const SLACK: u64 = 2 << 20;

fn plain(x: &Tensor) -> Result<Tensor> {
    x.tanh()?.affine(2., 1.)?.sqr()? + x
}

fn rows(device: &Device, n: usize) -> Result<Tensor> {
    waves(n, (n, WIDTH))?.to_device(device)
}

/// Bytes of the memory pool in use after all work has finished.
fn pool_in_use(device: &Device) -> anyhow::Result<u64> {
    let ((), usage) = device_memory::watch(device, || anyhow::Ok(()))?;
    Ok(usage.map_or(0, |usage| usage.before))
}

/// Calls with new shapes, all of which must be captured.
fn call_new_shapes(fast: &OparaExecutor, device: &Device) -> anyhow::Result<()> {
    for n in 2..40 {
        let x = rows(device, n)?;
        let got = fast.forward(&x)?;
        let report = fast.report();
        ensure!((report.mode(), &report.reason()) == (Mode::Graph, &None), "{n} rows: {report}");
        ensure!(same_bits(&got, &plain(&x)?)?, "{n} rows: wrong numbers");
    }
    Ok(())
}

/// Answers of an executor, to be dropped by another thread.
fn answers(fast: &OparaExecutor, device: &Device, count: usize) -> anyhow::Result<Receiver<Tensor>> {
    let x = rows(device, 64)?;
    let (send, answers) = channel();
    for _ in 0..count {
        send.send(fast.forward(&x)?)?;
    }
    device.synchronize()?;
    Ok(answers)
}

/// Runs a scenario twice. The first run allocates memory that stays: kernels, workspaces, memory of graphs. The second
/// run must leave nothing in the pool.
fn assert_pool_is_left_as_it_was(device: &Device, scenario: impl Fn() -> anyhow::Result<()>) -> anyhow::Result<()> {
    scenario()?;
    let before = pool_in_use(device)?;
    scenario()?;
    let after = pool_in_use(device)?;
    ensure!(after <= before + SLACK, "the pool had {before} bytes in use before, and has {after}");
    Ok(())
}

#[test]
fn answers_dropped_while_new_shapes_are_built_are_freed() -> anyhow::Result<()> {
    isolated(|| {
        for device in devices()? {
            let scenario = || -> anyhow::Result<()> {
                let fast = OparaExecutor::builder().max_shapes(64).build(plain, &rows(&device, 64)?)?;
                let expected = plain(&rows(&device, 64)?)?;
                let answers = Mutex::new(answers(&fast, &device, 400)?);
                // One per round; the rest is dropped at the end.
                let read_and_drop = |_| {
                    let Ok(answer) = answers.lock().try_recv() else { return Ok(()) };
                    ensure!(same_bits(&answer, &expected)?, "an earlier answer has changed");
                    Ok(())
                };
                beside(|| call_new_shapes(&fast, &device), &[&read_and_drop])
            };
            assert_pool_is_left_as_it_was(&device, scenario)?;
        }
        Ok(())
    })
}

#[test]
fn answers_dropped_in_the_middle_of_a_capture_are_freed() -> anyhow::Result<()> {
    isolated(|| {
        for device in devices()? {
            let scenario = || -> anyhow::Result<()> {
                let earlier = OparaExecutor::new(plain, &rows(&device, 64)?)?;
                // Building calls the module a few times per shape.
                let answers = answers(&earlier, &device, 400)?;
                let of_thread = device.clone();
                let other = Meanwhile::new(move |_| {
                    // Makes the context current on this thread: cudarc does not do that for per-thread streams.
                    drop(Tensor::zeros(1, DType::U8, &of_thread)?);
                    answers.try_recv()?;
                    Ok(())
                });
                let asks: Arc<Meanwhile> = other.clone();
                let function = move |x: &Tensor| {
                    let y = x.tanh()?;
                    asks.ask();
                    y.affine(2., 1.)?.sqr()? + x
                };
                let fast = OparaExecutor::builder().max_shapes(64).build(function, &rows(&device, 64)?)?;
                let outcome = call_new_shapes(&fast, &device);
                let requests = other.finish()?;
                ensure!(requests >= 2 * 38, "{requests} drops");
                outcome
            };
            assert_pool_is_left_as_it_was(&device, scenario)?;
        }
        Ok(())
    })
}
