//! Failing driver calls while an executor is built and called: each gives a typed error or eager mode with a reason,
//! leaks nothing, and later calls are right.
//!
//! `cargo test --release --features cudnn,faults --test gpu_faults`. Tests skip without a GPU, and say so. Calls fail
//! in the whole process, so one test runs at a time.

#[path = "../common/mod.rs"]
mod common;
mod sweep;

use std::slice::from_ref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{ensure, Context};
use candle::{Device, Result, Tensor};
use common::{assert_same, gpu, isolated, isolated_on_a_full_disk, one_on, waves};
use opara_candle::faults::{with_fault, Failure, Fault};
use opara_candle::{Builder, Error, Mode, OparaExecutor, Search};
use sweep::{
    alone, assert_survives, branches, builder, built_and_called, is_typed, module, pool, settle, sweep, Built,
};

#[test]
fn one_failing_call_is_an_error_or_eager_mode_and_leaks_nothing() -> anyhow::Result<()> {
    let _alone = alone();
    let Some(device) = gpu() else { return Ok(()) };
    assert_survives(&device, |_| true)
}

/// With per-thread streams, events order the work.
#[test]
fn failing_events_with_per_thread_streams() -> anyhow::Result<()> {
    let _alone = alone();
    if gpu().is_none() {
        return Ok(());
    }
    assert_survives(&Device::new_cuda(0)?, |call| call.starts_with("cuEvent") || call == "cuStreamWaitEvent")
}

/// The device has memory for a forward pass, but not for additional allocations of building.
#[test]
fn without_memory_for_a_graph_the_module_runs_eagerly_until_it_is_rebuilt() -> anyhow::Result<()> {
    let _alone = alone();
    let Some(device) = gpu() else { return Ok(()) };
    let function = module(&device)?;
    let inputs = one_on(0, &device)?;
    let expected = function(&inputs)?;
    built_and_called(builder(), &function, &inputs)?;
    for call in ["cuGraphInstantiateWithFlags", "cuGraphAddKernelNode_v2", "cuStreamBeginCapture_v2"] {
        let fault = Fault { call, nth: 1, failure: Failure::OutOfMemory };
        let (built, _) = with_fault(Some(fault), || built_and_called(builder(), &function, &inputs));
        let (fast, answer) = built.context(call)?;
        assert_same(&answer, &expected, call);
        let reason = fast.report().reason().unwrap_or_default().to_owned();
        assert!(fast.report().mode() == Mode::Eager && reason.contains("no memory left"), "{call}: {}", fast.report());
        fast.invalidate();
        assert_same(&fast.call(&inputs)?, &expected, call);
        assert_eq!((fast.report().mode(), fast.report().reason()), (Mode::Graph, None), "{call}");
        // With `OnUncapturable::Error`, the caller gets the error.
        let strict = || builder().on_uncapturable(opara_candle::OnUncapturable::Error);
        let (built, _) = with_fault(Some(fault), || built_and_called(strict(), &function, &inputs));
        assert!(matches!(built, Err(Error::OutOfMemory { .. })), "{call}: {:?}", built.err());
    }
    // The driver has no reason to refuse a graph, so that is an error and not eager mode.
    let fault = Fault { call: "cuGraphInstantiateWithFlags", nth: 1, failure: Failure::Refused };
    let (built, _) = with_fault(Some(fault), || built_and_called(builder(), &function, &inputs));
    assert!(matches!(built, Err(Error::Driver { call: "cuGraphInstantiate", .. })), "{:?}", built.err());
    // If the module's own forward pass runs out of memory, that is an error.
    let fault = Fault { call: "cuLaunchKernel", nth: 1, failure: Failure::OutOfMemory };
    let (built, _) = with_fault(Some(fault), || built_and_called(builder(), &function, &inputs));
    assert!(matches!(built, Err(Error::OutOfMemory { .. })), "{:?}", built.err());
    settle(&device)
}

/// Calls that only the first build of a process makes.
#[test]
fn failures_in_the_first_build_of_a_process() -> anyhow::Result<()> {
    let _alone = alone();
    isolated(|| {
        let Some(device) = gpu() else { return Ok(()) };
        let function = module(&device)?;
        let inputs = one_on(0, &device)?;
        let expected = function(&inputs)?;
        settle(&device)?;
        for call in ["cuMemPoolCreate", "cuStreamCreate", "cublasCreate_v2"] {
            let fault = Fault { call, nth: 1, failure: Failure::OutOfMemory };
            let (built, calls) = with_fault(Some(fault), || built_and_called(builder(), &function, &inputs));
            ensure!(calls.contains_key(call), "{call} is not called: {calls:?}");
            let (fast, answer) = built.context(call)?;
            assert_same(&answer, &expected, call);
            assert_eq!(fast.report().mode(), Mode::Eager, "{call}: {}", fast.report());
        }
        let (fast, answer) = built_and_called(builder(), &function, &inputs)?;
        assert_same(&answer, &expected, "the first build without a fault");
        assert_eq!(fast.report().mode(), Mode::Graph, "{}", fast.report());
        settle(&device)
    })
}

/// The first capture with a convolution makes a handle of cuDNN.
#[test]
fn without_a_second_handle_of_cudnn_the_module_runs_eagerly() -> anyhow::Result<()> {
    let _alone = alone();
    isolated(|| {
        let Some(device) = gpu().filter(|_| cfg!(feature = "cudnn")) else { return Ok(()) };
        let weight = waves(3, (8, 8, 3, 3))?.to_device(&device)?;
        let function = move |t: &[Tensor]| Ok(vec![t[0].conv2d(&weight, 1, 1, 1, 1)?.relu()?]);
        let inputs = [waves(0, (1, 8, 16, 16))?.to_device(&device)?];
        let expected = function(&inputs)?;
        settle(&device)?;
        // The first one is the module's own, on the thread that captures.
        let fault = Fault { call: "cudnnCreate", nth: 2, failure: Failure::OutOfMemory };
        let (built, calls) = with_fault(Some(fault), || built_and_called(builder(), &function, &inputs));
        ensure!(calls.get("cudnnCreate").is_some_and(|&calls| calls >= 2), "no second handle: {calls:?}");
        let (fast, answer) = built?;
        assert_same(&answer, &expected, "without a second handle");
        let report = fast.report();
        let reason = report.reason().unwrap_or_default();
        assert!(report.mode() == Mode::Eager && reason.contains("second handle"), "{report}");
        let (fast, answer) = built_and_called(builder(), &function, &inputs)?;
        assert_same(&answer, &expected, "with a second handle");
        assert_eq!(fast.report().mode(), Mode::Graph, "{}", fast.report());
        settle(&device)
    })
}

#[test]
fn without_memory_for_challengers_there_is_still_a_graph() -> anyhow::Result<()> {
    let _alone = alone();
    let Some(device) = gpu() else { return Ok(()) };
    let function = branches(&device)?;
    let inputs = one_on(0, &device)?;
    let expected = function(&inputs)?;
    let tuning = Search::default().budget(std::time::Duration::ZERO).proposals(4).cache(None);
    let tuned = || builder().scheduler(tuning.clone());
    let raced = || builder().benchmark_challengers(true);
    settle(&device)?;
    let before = pool(&device)?;
    for (is_tuned, make) in [(true, &tuned as &dyn Fn() -> Builder), (false, &raced)] {
        let (built, calls) = with_fault(None, || built_and_called(make(), &function, &inputs));
        built?;
        let graphs = calls["cuGraphInstantiateWithFlags"];
        ensure!(graphs > 1, "nothing to compare");
        for nth in 2..=graphs {
            let fault = Fault { call: "cuGraphInstantiateWithFlags", nth, failure: Failure::OutOfMemory };
            let (built, _) = with_fault(Some(fault), || built_and_called(make(), &function, &inputs));
            let (fast, answer) = built.with_context(|| format!("graph {nth} of {graphs}"))?;
            assert_same(&answer, &expected, format_args!("graph {nth} of {graphs}"));
            let report = fast.report();
            assert_eq!(report.mode(), Mode::Graph, "{report}");
            // A search builds a varying number of graphs, so the last one may not be reached.
            let fell_back = report.reason().as_ref().is_some_and(|reason| reason.contains("no memory left"));
            assert!(!is_tuned || fell_back == (report.scheduler() == "sequential"), "{report}");
            assert!(is_tuned || report.reason().is_none(), "{report}");
        }
        settle(&device)?;
        ensure!(pool(&device)? == before, "graphs that were not tried left memory");
    }
    Ok(())
}

/// All calls fail from some call on. Each further call must return the same error: nothing is tried eagerly, nothing
/// hangs or panics.
#[test]
fn every_call_after_a_lost_device_returns_that_error() -> anyhow::Result<()> {
    let _alone = alone();
    let Some(device) = gpu() else { return Ok(()) };
    let function = module(&device)?;
    let inputs = one_on(0, &device)?;
    let taller = [waves(1, (5, 6))?.to_device(&device)?];
    let expected = [function(&inputs)?, function(&taller)?];
    let old = builder().build_fn(function.clone(), &inputs)?;
    let work = || {
        let new = || built_and_called(builder(), &function, &inputs).map(|(_, answer)| (0, answer));
        vec![
            new(),
            old.call(&inputs).map(|answer| (0, answer)),
            old.call(&taller).map(|answer| (1, answer)),
            new(),
            old.call(&taller).map(|answer| (1, answer)),
        ]
    };
    let check = |fault: Option<Fault>, results: Vec<opara_candle::Result<(usize, Vec<Tensor>)>>| {
        let mut is_lost = false;
        for (i, result) in results.into_iter().enumerate() {
            match (result, fault) {
                (Ok((of, answer)), _) if !is_lost => assert_same(&answer, &expected[of], format_args!("step {i}")),
                (Ok(_), _) => anyhow::bail!("step {i}: an answer of a device that is lost"),
                (Err(error), None) => return Err(error.into()),
                (Err(error), Some(_)) => {
                    // A library's status does not show that the device is lost; the next driver call does.
                    let of_library = !is_lost && error.to_string().contains("CUBLAS");
                    ensure!(of_library || is_typed(&error, Failure::Lost), "step {i}: {error:?}");
                    is_lost = true;
                }
            }
        }
        // The device is in fact usable. Everything is built again.
        old.invalidate();
        assert_same(&old.call(&inputs)?, &expected[0], "the device was not lost");
        assert_eq!(old.report().mode(), Mode::Graph, "{}", old.report());
        Ok(())
    };
    sweep(&device, &[Failure::Lost], |_| true, work, check)
}

/// Counts its calls in a tensor on the device, and adds the count to its input.
fn counting(counter: Tensor) -> impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Clone + Send + Sync + 'static {
    move |t| {
        counter.slice_set(&(&counter + 1.)?, 0, 0)?;
        Ok(vec![t[0].broadcast_add(&counter)?])
    }
}

#[test]
fn a_failing_build_restores_the_modules_state() -> anyhow::Result<()> {
    let _alone = alone();
    let Some(device) = gpu() else { return Ok(()) };
    let counter = Tensor::zeros(1, candle::DType::F32, &device)?;
    let zero = counter.copy()?;
    let inputs = one_on(0, &device)?;
    let function = counting(counter.clone());
    let work = || builder().build_fn(function.clone(), &inputs);
    let check = |fault: Option<Fault>, built: opara_candle::Result<OparaExecutor>| {
        assert_same(from_ref(&counter), from_ref(&zero), "the counter after building");
        match (built, fault) {
            (Ok(fast), _) => {
                for call in 1..=3 {
                    let expected = (&inputs[0] + call as f64)?;
                    assert_same(&fast.call(&inputs)?, &[expected], format_args!("call {call}"));
                }
                counter.slice_set(&zero, 0, 0)?;
            }
            (Err(error), Some(fault)) => ensure!(is_typed(&error, fault.failure), "{error:?}"),
            (Err(error), None) => return Err(error.into()),
        }
        Ok(())
    };
    let is_meant = |call: &str| call.starts_with("cuMem") || call.starts_with("cuLaunch") || call.contains("Capture");
    sweep(&device, &[Failure::OutOfMemory, Failure::Refused], is_meant, work, check)
}

/// The executor exists; its calls fail.
#[test]
fn a_failing_call_is_an_error_and_the_next_call_works() -> anyhow::Result<()> {
    let _alone = alone();
    let Some(device) = gpu() else { return Ok(()) };
    let function = module(&device)?;
    let fast = builder().build_fn(function.clone(), &one_on(0, &device)?)?;
    let work = || -> anyhow::Result<_> {
        // At other addresses, so that the graph's parameters must be updated.
        let inputs = [0, 1].map(|i| one_on(i, &device));
        let [first, second] = inputs;
        let (first, second) = (first?, second?);
        Ok([fast.call(&first), fast.call(&second)])
    };
    let expected = [function(&one_on(0, &device)?)?, function(&one_on(1, &device)?)?];
    let check = |fault: Option<Fault>, answers: anyhow::Result<[opara_candle::Result<Vec<Tensor>>; 2]>| {
        // The inputs cannot be uploaded.
        let answers = match answers {
            Err(error) if fault.is_none() => return Err(error),
            Err(_) => return Ok(()),
            Ok(answers) => answers,
        };
        let mut failed = 0;
        for (answer, expected) in answers.into_iter().zip(&expected) {
            match (answer, fault) {
                (Ok(answer), _) => assert_same(&answer, expected, "a call that did not fail"),
                (Err(error), Some(fault)) => {
                    ensure!(is_typed(&error, fault.failure), "{error:?}");
                    failed += 1;
                }
                (Err(error), None) => return Err(error.into()),
            }
        }
        ensure!(failed <= 1, "both calls failed");
        assert_same(&fast.call(&one_on(1, &device)?)?, &expected[1], "a later call");
        assert_eq!(fast.report().mode(), Mode::Graph, "{}", fast.report());
        Ok(())
    };
    sweep(&device, &[Failure::OutOfMemory, Failure::Refused], |_| true, work, check)
}

/// It drops a table from before the call, and fails or panics. During a capture, the table is freed when the capture
/// ends.
#[test]
fn a_module_that_fails_or_panics_at_any_call_leaks_nothing() -> anyhow::Result<()> {
    let _alone = alone();
    let Some(device) = gpu() else { return Ok(()) };
    let inputs = one_on(0, &device)?;
    // More calls than building makes.
    const CALLS: usize = 7;
    let build = |nth: usize, panics: bool| -> Built {
        let table = Mutex::new(Some(waves(2, (4, 6))?.to_device(&device)?));
        let calls = AtomicUsize::new(0);
        let function = move |t: &[Tensor]| {
            let mut table = table.lock().unwrap_or_else(PoisonError::into_inner);
            let sum = table.as_ref().map_or_else(|| t[0].sqr(), |table| t[0].sqr()? + table)?;
            if calls.fetch_add(1, Ordering::Relaxed) + 1 == nth {
                *table = None;
                assert!(!panics, "no answer");
                candle::bail!("no answer");
            }
            Ok(vec![sum])
        };
        let fast = builder().build_fn(function, &inputs)?;
        let answer = fast.call(&inputs)?;
        Ok((fast, answer))
    };
    let (fast, expected) = build(0, false)?;
    drop(fast);
    settle(&device)?;
    let before = pool(&device)?;
    for nth in 1..=CALLS {
        for panics in [false, true] {
            match build(nth, panics) {
                Ok((fast, answer)) => {
                    let report = fast.report();
                    // A module that failed in a capture runs eagerly from then on, and has no table any more.
                    ensure!(report.mode() == Mode::Eager || nth > 1, "{report}");
                    if report.mode() == Mode::Graph {
                        assert_same(&answer, &expected, format_args!("call {nth}"));
                    }
                }
                Err(Error::Candle(error)) => ensure!(!panics && error.to_string().contains("no answer"), "{error}"),
                Err(Error::Panicked { message }) => ensure!(panics && message.contains("no answer"), "{message}"),
                // A pass without the table differs from the passes before.
                Err(Error::Stateful { .. }) => ensure!(nth > 1),
                Err(error) => return Err(error.into()),
            }
            settle(&device)?;
            let after = pool(&device)?;
            ensure!(after == before, "call {nth}, panics: {panics}: the pool went from {before} bytes to {after}");
        }
    }
    Ok(())
}

#[test]
fn kernels_are_compiled_without_a_writable_cache_folder() -> anyhow::Result<()> {
    let _alone = alone();
    isolated_on_a_full_disk(|| {
        let Some(device) = gpu() else { return Ok(()) };
        let folder = tempfile::tempdir()?;
        let function = module(&device)?;
        let inputs = one_on(0, &device)?;
        for kept in [folder.path(), std::path::Path::new("/proc/opara-candle")] {
            let builder = builder().cache_folder(Some(kept.into()));
            let (fast, answer) = built_and_called(builder, &function, &inputs)?;
            let report = fast.report();
            assert!(report.mode() == Mode::Graph && report.counts().fused > 0 && report.notes().is_empty(), "{report}");
            assert_same(&answer, &function(&inputs)?, kept.display());
        }
        assert_eq!(std::fs::read_dir(folder.path())?.count(), 0, "files are left");
        Ok(())
    })
}
