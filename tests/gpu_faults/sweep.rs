//! Sweeps over failing driver calls.

use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{ensure, Context};
use candle::{Device, Result, Tensor};
use opara_candle::faults::{with_fault, Failure, Fault};
use opara_candle::{device_memory, Builder, Error, Mode, OparaExecutor};

use super::common::{assert_same, one_on, waves};

/// Held by each test.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Number of calls per function that are made to fail, spread evenly over all of its calls.
pub const SAMPLES: usize = 12;

/// Bytes that a sweep may leave outside the device's memory pool: a tensor that cudarc leaks pins 32 MiB of each of the
/// two capture pools.
pub const SLACK: u64 = 128 << 20;

/// Without options whose number of calls varies, and without files.
pub fn builder() -> Builder {
    OparaExecutor::builder().benchmark_challengers(false).cache_folder(None)
}

/// Matmuls, fused launches, an upload, a constant, and an output that is a view.
pub fn module(device: &Device) -> Result<impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Clone + Send + Sync + 'static> {
    let weight = waves(3, (6, 6))?.to_device(device)?;
    let device = device.clone();
    Ok(move |t: &[Tensor]| {
        let up = t[0].matmul(&weight)?;
        let bias = Tensor::new(&[0.5f32, -1., 0., 2., 1., 3.], &device)?;
        let both = (up.relu()? + up.affine(2., 1.)?.tanh()?)?.broadcast_add(&bias)?;
        let out = both.matmul(&weight.affine(0.5, 0.)?)?;
        Ok(vec![out.t()?, both])
    })
}

/// Two matmuls of one input, whose launches may run on two streams.
pub fn branches(device: &Device) -> Result<impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Clone + Send + Sync + 'static> {
    let [left, right] = [3, 4].map(|i| waves(i, (6, 6)).and_then(|t| t.to_device(device)));
    let (left, right) = (left?, right?);
    Ok(move |t: &[Tensor]| Ok(vec![(t[0].matmul(&left)? + t[0].matmul(&right)?)?]))
}

/// Waits for all work. cudarc reports an error of a destructor at the next call: let that be this one.
pub fn settle(device: &Device) -> anyhow::Result<()> {
    let _of_a_destructor = device.synchronize();
    Ok(device.synchronize()?)
}

/// Bytes of the device's memory pool in use.
pub fn pool(device: &Device) -> anyhow::Result<u64> {
    let (_, usage) = device_memory::watch(device, || Ok::<_, Error>(()))?;
    Ok(usage.context("a GPU has a pool")?.before)
}

/// Repeats some work, each time with another failing call, and passes the result to `check`. Together that must leave
/// no memory in use.
pub fn sweep<T>(
    device: &Device,
    failures: &[Failure],
    is_meant: impl Fn(&str) -> bool,
    work: impl Fn() -> T,
    check: impl Fn(Option<Fault>, T) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // The second run loads nothing any more.
    check(None, work())?;
    let (result, calls) = with_fault(None, &work);
    check(None, result)?;
    settle(device)?;
    let mut before = pool(device)?;
    let besides = device_memory::used_outside_pool(device)?;
    let mut faults = 0;
    for (call, count) in calls.into_iter().filter(|(call, _)| is_meant(call)) {
        for nth in (1..=count).step_by(count.div_ceil(SAMPLES)) {
            for &failure in failures {
                let fault = Fault { call, nth, failure };
                let (result, _) = with_fault(Some(fault), &work);
                settle(device)?;
                check(Some(fault), result).with_context(|| format!("{fault:?}"))?;
                settle(device)?;
                let after = pool(device)?;
                // If cudarc cannot create events for memory, it leaks it, in plain candle code too.
                if call == "cuEventCreate" {
                    before = after;
                }
                ensure!(after == before, "{fault:?} took the pool from {before} bytes to {after}");
                faults += 1;
            }
        }
    }
    ensure!(faults > 0, "no call was let fail");
    // Pools of captures, workspaces, memory that the driver keeps for graphs, and memory that other programs take
    // meanwhile.
    let more = device_memory::used_outside_pool(device)?.saturating_sub(besides);
    ensure!(more < SLACK, "{faults} failing calls left {more} bytes outside the pool");
    println!("{faults} calls were made to fail");
    Ok(())
}

/// An executor and its first answer.
pub type Built = opara_candle::Result<(OparaExecutor, Vec<Tensor>)>;

pub fn built_and_called<F>(builder: Builder, function: &F, inputs: &[Tensor]) -> Built
where
    F: Fn(&[Tensor]) -> Result<Vec<Tensor>> + Clone + Send + Sync + 'static,
{
    let fast = builder.build_fn(function.clone(), inputs)?;
    let answer = fast.call(inputs)?;
    Ok((fast, answer))
}

/// Does the error have the type of this failure?
pub fn is_typed(error: &Error, failure: Failure) -> bool {
    match failure {
        Failure::OutOfMemory => matches!(error, Error::OutOfMemory { .. }),
        Failure::Refused => matches!(error, Error::Driver { .. } | Error::Candle(_)),
        Failure::Lost => matches!(error, Error::DeviceLost { .. }),
    }
}

/// Builds and calls a module on a device, with failing calls of the functions that `is_meant` selects.
pub fn assert_survives(device: &Device, is_meant: impl Fn(&str) -> bool) -> anyhow::Result<()> {
    let function = module(device)?;
    let inputs = [0, 1].map(|i| one_on(i, device));
    let [first, second] = inputs;
    let (first, second) = (first?, second?);
    let expected = [function(&first)?, function(&second)?];
    let answers = |(fast, answer): (OparaExecutor, Vec<Tensor>)| -> anyhow::Result<OparaExecutor> {
        assert_same(&answer, &expected[0], "the first call");
        assert_same(&fast.call(&second)?, &expected[1], "a later call");
        assert_same(&fast.call(&first)?, &expected[0], "the last call");
        Ok(fast)
    };
    let check = |fault: Option<Fault>, built: Built| {
        match (fault, built) {
            (None, built) => {
                let fast = answers(built?)?;
                assert!(fast.report().mode() == Mode::Graph && fast.report().counts().fused > 0, "{}", fast.report());
            }
            (Some(_), Ok(built)) => {
                let report = answers(built)?.report();
                assert!(report.mode() == Mode::Graph || report.reason().is_some_and(|reason| !reason.is_empty()));
            }
            (Some(fault), Err(error)) => {
                ensure!(is_typed(&error, fault.failure), "{error:?}");
                let fast = answers(built_and_called(builder(), &function, &first)?)?;
                assert_eq!(fast.report().mode(), Mode::Graph, "{}", fast.report());
            }
        }
        Ok(())
    };
    let work = || built_and_called(builder(), &function, &first);
    sweep(device, &[Failure::OutOfMemory, Failure::Refused], is_meant, work, check)
}
