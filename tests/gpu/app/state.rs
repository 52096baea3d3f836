//! Modules that keep something between calls, as in applications: a table for the last shape, a counter on the device,
//! a weight that shares memory with the input. Also on the CPU where that applies. GPU tests skip without a GPU or the
//! feature `cuda`, and say so.

use std::slice::from_ref;
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};

use anyhow::ensure;
use candle::{DType, Device, Result, Tensor};
use opara_candle::{ops, Error, OparaExecutor};

use crate::common::{assert_same, built_or_stateful, devices, gpu, isolated, same_bits, waves, CPU};

/// Message for taking a lock.
const FREE: &str = "no panic holds this lock";

fn rows(i: usize, n: usize, device: &Device) -> Result<Tensor> {
    waves(i, (n, 6))?.to_device(device)
}

/// A table of positions.
fn positions(rows: usize, device: &Device) -> Result<Tensor> {
    Tensor::arange(0f32, 6. * rows as f32, device)?.reshape((rows, 6))
}

/// A module that has a table for the last shape. It frees the one before, unless it `keeps` all of them.
fn with_table(keeps: bool) -> impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static {
    let tables = Mutex::new(Vec::<Tensor>::new());
    move |x| {
        let mut tables = tables.lock().expect(FREE);
        if tables.last().is_none_or(|table| table.dims() != x.dims()) {
            let table = positions(x.dim(0)?, x.device())?;
            if !keeps {
                tables.clear();
            }
            tables.push(table);
        }
        ops::add(x, tables.last().expect("it was made above"))
    }
}

/// Does each thread have a stream of its own on this device? There, memory that one thread frees may be written by it while what another
/// one has launched still reads it, without this library, too: `examples/shared_table.rs` counts it.
fn has_streams_for_threads(device: &Device) -> bool {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(device) = device {
        const PER_THREAD: usize = 2;
        return device.cuda_stream().cu_stream() as usize == PER_THREAD;
    }
    let _ = device;
    false
}

/// Threads that call one executor, each with its own shape, so that each call may replace another's table.
fn share_an_executor(device: &Device, threads: usize) -> anyhow::Result<()> {
    const CALLS: usize = 40;
    let fast = OparaExecutor::new(with_table(has_streams_for_threads(device)), &rows(0, 2, device)?)?;
    let inputs = |n: usize| (0..CALLS).map(|i| rows(i, n, device)).collect::<Result<Vec<_>>>();
    let inputs = (0..threads).map(|thread| inputs(3 + thread)).collect::<Result<Vec<_>>>()?;
    device.synchronize()?;
    let together = Barrier::new(threads);
    let answers = std::thread::scope(|scope| {
        let call = |inputs: &[Tensor]| {
            together.wait();
            let answers = inputs.iter().map(|x| Ok(fast.call(from_ref(x))?)).collect::<anyhow::Result<Vec<_>>>();
            // With per-thread streams, other threads may read only finished results.
            device.synchronize()?;
            answers
        };
        let callers: Vec<_> = inputs.iter().map(|inputs| scope.spawn(move || call(inputs))).collect();
        callers.into_iter().map(|caller| caller.join().expect("no panic")).collect::<anyhow::Result<Vec<_>>>()
    })?;
    let mut wrong = 0;
    for (x, got) in inputs.iter().flatten().zip(answers.iter().flatten()) {
        let expected = (x + positions(x.dim(0)?, device)?)?;
        wrong += usize::from(!same_bits(&got[0], &expected)?);
    }
    ensure!(wrong == 0, "{wrong} of {} answers are wrong", threads * CALLS);
    Ok(())
}

#[test]
fn threads_share_a_module_with_a_table_for_one_shape_on_the_cpu() -> anyhow::Result<()> {
    share_an_executor(CPU, 2)?;
    share_an_executor(CPU, 4)
}

#[test]
fn threads_share_a_module_with_a_table_for_one_shape_on_a_gpu() -> anyhow::Result<()> {
    isolated(|| {
        for device in devices()? {
            share_an_executor(&device, 2)?;
            share_an_executor(&device, 4)?;
        }
        Ok(())
    })
}

/// Counts its calls in a tensor on the device, and adds the count to its input.
fn counting(counter: Tensor) -> impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Clone + Send + Sync + 'static {
    move |t| {
        counter.slice_set(&(&counter + 1.)?, 0, 0)?;
        Ok(vec![t[0].broadcast_add(&counter)?])
    }
}

#[test]
fn a_counter_on_the_device_counts_only_calls() -> anyhow::Result<()> {
    isolated(|| {
        for device in devices()? {
            for (verify, stress) in [(true, 0), (false, 0), (true, 4)] {
                let zero = || Tensor::zeros(1, DType::F32, &device);
                let (counter, expected) = (zero()?, zero()?);
                let plain = counting(expected.clone());
                let builder = OparaExecutor::builder().verify(verify).stress(stress);
                let fast = builder.build_fn(counting(counter.clone()), &[rows(0, 4, &device)?])?;
                let count = || Ok::<_, candle::Error>(counter.to_vec1::<f32>()?[0]);
                ensure!(count()? == 0., "before the first call: {}\n{}", count()?, fast.report());
                // A new shape at every second call.
                for call in 1..=6 {
                    let x = [rows(call, 4 + call / 2, &device)?];
                    assert_same(&fast.call(&x)?, &plain(&x)?, format_args!("call {call}"));
                    ensure!(count()? == call as f32, "after call {call}: {}\n{}", count()?, fast.report());
                }
                let x = [rows(7, 4, &device)?];
                let expected = plain(&x)?;
                fast.call_zero_copy(&x, |borrowed| assert_same(borrowed, &expected, "a call with a zero-copy output"))?;
                ensure!(count()? == 7., "after a call with a zero-copy output: {}", count()?);
            }
        }
        Ok(())
    })
}

/// Overwrites its weight, and reads its input before and after.
fn overwriting(weight: Tensor) -> impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Clone + Send + Sync + 'static {
    move |t| {
        let twice = t[0].affine(2., 1.)?;
        weight.slice_set(&twice, 0, 0)?;
        Ok(vec![(&t[0] + &weight)?, t[0].sqr()?])
    }
}

#[test]
fn an_input_shares_memory_with_a_weight_that_is_written() -> anyhow::Result<()> {
    isolated(|| {
        let Some(device) = gpu() else { return Ok(()) };
        // A weight inside a larger tensor. The inputs are parts of that tensor, too: the same rows, some of them, and
        // others.
        let twin = || -> Result<_> {
            let whole = rows(3, 12, &device)?;
            let weight = whole.narrow(0, 4, 4)?;
            let inputs = [4, 6, 0, 8].map(|first| whole.narrow(0, first, 4)).into_iter().collect::<Result<Vec<_>>>()?;
            Ok((overwriting(weight), whole, inputs))
        };
        for example in 0..5 {
            let ((module, whole, inputs), (plain, expected, plain_inputs)) = (twin()?, twin()?);
            // The last example shares nothing with the weight.
            let of = inputs.get(example).cloned().map_or_else(|| rows(0, 4, &device), Ok)?;
            let fast = OparaExecutor::builder().build_fn(module, &[of])?;
            assert_same(from_ref(&whole), from_ref(&expected), format_args!("what example {example} left"));
            for (i, (x, plain_x)) in inputs.iter().zip(&plain_inputs).enumerate() {
                let of = format_args!("example {example}, input {i}");
                assert_same(&fast.call(from_ref(x))?, &plain(from_ref(plain_x))?, of);
                assert_same(from_ref(&whole), from_ref(&expected), format_args!("{of}: the memory after it"));
            }
        }
        Ok(())
    })
}

/// The module reads other memory at every call. It must run eagerly, or building must report that it keeps state.
#[test]
fn a_table_that_another_thread_replaces_in_the_middle_of_a_capture() -> anyhow::Result<()> {
    isolated(|| {
        for device in devices()? {
            let table = Arc::new(Mutex::new(positions(4, &device)?));
            device.synchronize()?;
            let replaced = table.clone();
            let other = crate::common::Meanwhile::new(move |_| {
                let mut table = replaced.lock().expect(FREE);
                let same = table.copy()?;
                table.device().synchronize()?;
                *table = same;
                Ok(())
            });
            let asks = other.clone();
            let function = move |t: &[Tensor]| {
                // The module has read the table, and another thread replaces it with an equal one.
                let taken = table.lock().expect(FREE).clone();
                asks.ask();
                Ok(vec![(&t[0] + taken)?.sqr()?])
            };
            let built = OparaExecutor::builder().build_fn(function, &[rows(0, 4, &device)?]);
            let Some(fast) = built_or_stateful(built)? else { continue };
            for i in 0..4 {
                let noise = Tensor::full(f32::NAN, (4, 6), &device)?;
                let x = rows(i, 4, &device)?;
                let expected = (&x + positions(4, &device)?)?.sqr()?;
                assert_same(&fast.call(&[x])?, &[expected], format_args!("call {i}"));
                drop(noise);
            }
            other.finish()?;
        }
        Ok(())
    })
}

/// Sends its result to another thread in the middle of each call; that thread reads and drops it.
fn send_to_another_thread(device: &Device) -> anyhow::Result<()> {
    type Read = Result<[Vec<Vec<f32>>; 2]>;
    let (give, take) = channel::<[Tensor; 2]>();
    let (done, read) = channel::<Read>();
    let other = std::thread::spawn(move || {
        take.into_iter().try_for_each(|[x, twice]| done.send((|| Ok([x.to_vec2()?, twice.to_vec2()?]))()))
    });
    let answers = Arc::new(Mutex::new(Vec::new()));
    let module = {
        let (answers, channels) = (answers.clone(), Mutex::new((give, read)));
        move |x: &Tensor| {
            let (give, read) = &*channels.lock().expect(FREE);
            give.send([x.clone(), (x * 2.)?]).map_err(candle::Error::wrap)?;
            answers.lock().expect(FREE).push(read.recv().map_err(candle::Error::wrap)??);
            x + 1.
        }
    };
    let x = rows(0, 3, device)?;
    let built = OparaExecutor::new(module, &x);
    // A tensor that is not freed during the capture looks like state, unless its memory was reused.
    ensure!(matches!(built, Ok(_) | Err(Error::Stateful { .. })), "{:?}", built.err());
    drop(built);
    ensure!(other.join().expect("no panic").is_ok());
    let answers = std::mem::take(&mut *answers.lock().expect(FREE));
    ensure!(answers.len() > 3, "{} calls", answers.len());
    for [x, twice] in answers {
        let expected: Vec<Vec<f32>> = x.iter().map(|row| row.iter().map(|v| v * 2.).collect()).collect();
        ensure!(twice == expected, "another thread read {twice:?} for {expected:?}");
    }
    // Later work on the device is unaffected.
    ensure!(same_bits(&(&x * 2.)?, &(rows(0, 3, CPU)? * 2.)?.to_device(device)?)?);
    Ok(())
}

#[test]
fn a_tensor_sent_to_another_thread_during_a_capture_is_readable() -> anyhow::Result<()> {
    isolated(|| match gpu() {
        Some(device) => send_to_another_thread(&device),
        None => Ok(()),
    })
}
