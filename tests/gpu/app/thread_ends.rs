//! Threads that end with tensors in their thread-locals, and with the cuDNN handle that candle keeps there. On the CPU
//! and on a GPU. GPU tests skip without a GPU or the feature `cuda`, and say so.

use std::cell::RefCell;
use std::thread;

use anyhow::ensure;
use candle::{DType, Device, Module, Result, Tensor};
use opara_candle::{Mode, OparaExecutor};

use crate::common::{beside, counts, devices, isolated, same_bits, waves, CPU};

thread_local! {
    /// The mask for the last number of rows on this thread.
    static MASK: RefCell<Option<Tensor>> = const { RefCell::new(None) };
}

fn make_mask(rows: usize, device: &Device) -> Result<Tensor> {
    Tensor::arange(0f32, 6. * rows as f32, device)?.reshape((rows, 6))?.cos()
}

/// Multiplies by a mask that each thread keeps.
fn masked(x: &Tensor) -> Result<Tensor> {
    MASK.with_borrow_mut(|mask| {
        if mask.as_ref().is_none_or(|mask| mask.dims() != x.dims()) {
            *mask = Some(make_mask(x.dim(0)?, x.device())?);
        }
        let mask = mask.as_ref().expect("it was made above");
        x * mask
    })
}

/// The same in a module that cannot be captured, since it reads a number back.
fn masked_eagerly(x: &Tensor) -> Result<Tensor> {
    masked(x)?.affine(x.mean_all()?.to_scalar::<f32>()?.into(), 0.)
}

fn rows(device: &Device, n: usize) -> Result<Tensor> {
    waves(n, (n, 6))?.to_device(device)
}

fn check(got: &Tensor, x: &Tensor, eagerly: bool) -> anyhow::Result<()> {
    let masked = (x * make_mask(x.dim(0)?, x.device())?)?;
    let expected = match eagerly {
        true => masked.affine(x.mean_all()?.to_scalar::<f32>()?.into(), 0.)?,
        false => masked,
    };
    ensure!(same_bits(got, &expected)?, "{got}\nis not\n{expected}");
    Ok(())
}

/// Runs each piece of work on its own thread, one after another.
fn on_threads_that_end(work: &[&(dyn Fn() -> anyhow::Result<()> + Sync)]) -> anyhow::Result<()> {
    for work in work {
        // Joined here: a scope alone does not wait for the destructors of thread-locals.
        thread::scope(|scope| scope.spawn(work).join().expect("no panic"))?;
    }
    Ok(())
}

fn threads_end(device: &Device) -> anyhow::Result<()> {
    let x = rows(device, 4)?;
    let captured = OparaExecutor::new(masked, &x)?;
    let eager = OparaExecutor::new(masked_eagerly, &x)?;
    ensure!(eager.report().mode() == Mode::Eager, "{}", eager.report());
    device.synchronize()?;
    on_threads_that_end(&[
        // The mask's thread-local is created before the driver's on this thread, and dropped after it.
        &|| check(&masked(&x)?, &x, false),
        &|| {
            let other = rows(device, 3)?;
            check(&masked(&other)?, &other, false)
        },
        &|| check(&eager.forward(&x)?, &x, true),
        &|| check(&captured.forward(&x)?, &x, false),
        // New shapes, for which the mask of this thread or of a capture thread is built again.
        &|| {
            (5..9).try_for_each(|n| {
                let x = rows(device, n)?;
                check(&captured.forward(&x)?, &x, false)?;
                check(&eager.forward(&x)?, &x, true)?;
                check(&masked(&x)?, &x, false)
            })
        },
        // A module on a thread of the library, which may end with the executor.
        &|| {
            let loaded = OparaExecutor::new_local(|| Ok(masked), &x)?;
            check(&loaded.forward(&x)?, &x, false)
        },
        &|| {
            let loaded = OparaExecutor::new_local(|| Ok(masked_eagerly), &x)?;
            check(&loaded.forward(&x)?, &x, true)
        },
        // Earlier executors still work after all these threads have ended.
        &|| check(&captured.forward(&x)?, &x, false),
        &|| check(&eager.forward(&x)?, &x, true),
    ])
}

#[test]
fn threads_end_with_tensors_of_the_cpu() -> anyhow::Result<()> {
    isolated(|| threads_end(CPU))
}

#[test]
fn threads_end_with_tensors_of_a_gpu() -> anyhow::Result<()> {
    isolated(|| devices()?.iter().try_for_each(threads_end))
}

/// When a thread that has run a convolution ends, it destroys its cuDNN handle, for which the library waits for the
/// whole GPU.
#[test]
fn threads_with_convolutions_may_end_while_new_shapes_are_built() -> anyhow::Result<()> {
    isolated(|| {
        for device in devices()? {
            let weight = counts(1, (8, 4, 3, 3), DType::F32)?;
            let image = counts(2, (1, 4, 12, 12), DType::F32)?;
            // Sums of these are exact in every order.
            let expected = image.conv2d(&weight, 1, 1, 1, 1)?;
            let (weight, image) = (weight.to_device(&device)?, image.to_device(&device)?);
            device.synchronize()?;
            let convolve = || -> anyhow::Result<()> {
                let got = image.conv2d(&weight, 1, 1, 1, 1)?;
                ensure!(same_bits(&got, &expected)?, "a convolution is wrong");
                Ok(())
            };
            let fast = OparaExecutor::new(|x: &Tensor| x.tanh()?.sqr(), &rows(&device, 2)?)?;
            let new_shapes = || {
                (3..40).try_for_each(|n| {
                    let x = rows(&device, n)?;
                    ensure!(same_bits(&fast.forward(&x)?, &x.tanh()?.sqr()?)?, "{n} rows: wrong numbers");
                    let report = fast.report();
                    ensure!((report.mode(), &report.reason()) == (Mode::Graph, &None), "{n} rows: {report}");
                    Ok(())
                })
            };
            beside(new_shapes, &[&|_| on_threads_that_end(&[&convolve])])?;
        }
        Ok(())
    })
}

/// If each thread has its own stream, the driver hangs when a thread ends with pending work while another one builds.
#[test]
fn threads_end_with_work_on_their_own_stream_beside_building() -> anyhow::Result<()> {
    isolated(|| {
        let Some(device) = devices()?.pop() else { return Ok(()) };
        let module = |x: &Tensor| x.tanh()?.sqr();
        let fast = OparaExecutor::new(module, &rows(&device, 2)?)?;
        let large = Tensor::ones((64, 1 << 14), DType::F32, &device)?;
        device.synchronize()?;
        // Nothing waits for the answers.
        let replays = || {
            fast.forward(&rows(&device, 2)?)?;
            Ok(())
        };
        let launches = || {
            large.tanh()?.sqr()?;
            Ok(())
        };
        let lives = |_: usize| (0..8).try_for_each(|_| on_threads_that_end(&[&replays, &launches]));
        let builds = || {
            (0..24).try_for_each(|_| {
                let x = rows(&device, 3)?;
                let built = OparaExecutor::new(module, &x)?;
                ensure!(same_bits(&built.forward(&x)?, &module(&x)?)?, "wrong numbers");
                Ok(())
            })
        };
        beside(builds, &[&lives, &lives, &lives])
    })
}
