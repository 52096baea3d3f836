//! Executors on a GPU with several threads and several streams. Tests skip without a GPU or the feature `cuda`, and say
//! so.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Barrier;

use crate::common::{answers_like, assert_same, counts, devices, gpu, replayed, waves};
use candle::{DType, Device, Module, Result, Tensor};
use candle_transformers::models::bert;
use opara_candle::{Mode, OparaExecutor};

#[test]
fn an_executor_outlives_the_thread_that_built_it() -> anyhow::Result<()> {
    let function = |weight: &Tensor, t: &[Tensor]| Ok(vec![(t[0].tanh()? * weight)?, t[0].sqr()?.sum_keepdim(1)?]);
    for device in devices()? {
        let on_device = |i: usize| waves(i, (4, 6))?.to_device(&device);
        let build = || -> anyhow::Result<_> {
            let weight = on_device(9)?;
            let of = weight.clone();
            let fast = OparaExecutor::builder().build_fn(move |t: &[Tensor]| function(&of, t), &[on_device(0)?])?;
            assert_eq!(fast.report().mode(), Mode::Graph, "{}", fast.report());
            Ok((fast, weight))
        };
        let (fast, weight) = std::thread::scope(|scope| scope.spawn(build).join().expect("no panic"))?;
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (fast, weight, on_device) = (&fast, &weight, &on_device);
                let inputs = move |i: usize| Ok(vec![on_device(10 * thread + i)?]);
                scope.spawn(move || answers_like(fast, |t: &[Tensor]| function(weight, t), inputs));
            }
        });
    }
    Ok(())
}

/// Host memory of one call serves later ones, also of other threads and with more elements.
#[test]
fn threads_read_answers_of_several_sizes_on_the_host() -> anyhow::Result<()> {
    let function = |t: &[Tensor]| Ok(vec![t[0].tanh()?, t[0].t()?, t[0].sqr()?.to_dtype(DType::F16)?]);
    for device in devices()? {
        let input = |thread: usize, i: usize| waves(7 * thread + i, (1 + 5 * (i % 3), 6))?.to_device(&device);
        let fast = OparaExecutor::builder().build_fn(function, &[input(0, 0)?])?;
        let call = |thread: usize| {
            (0..60).try_for_each(|i| {
                let inputs = [input(thread, i)?];
                let host = |y: &Tensor| y.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
                let outputs = fast.call(&inputs)?;
                let expected = outputs.iter().map(host).collect::<Result<Vec<_>>>()?;
                assert_eq!(fast.call_to_host(&inputs)?, expected, "thread {thread}, call {i}");
                let first = outputs.iter().map(|y| host(&y.narrow(0, 0, 1)?)).collect::<Result<Vec<_>>>()?;
                assert_eq!(fast.call_to_host_rows(&inputs, 1)?, first, "thread {thread}, call {i}, a row");
                assert!(fast.call_to_host_rows(&inputs, 17).is_err(), "there are no 17 rows");
                anyhow::Ok(())
            })
        };
        std::thread::scope(|scope| {
            let call = &call;
            let threads: Vec<_> = (0..3).map(|thread| scope.spawn(move || call(thread))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
        })?;
    }
    Ok(())
}

/// Must not run concurrently with tests that draw random numbers: per-thread streams wait for the default stream, which
/// may have no work during a capture.
#[test]
fn bert_with_every_kind_of_stream() -> anyhow::Result<()> {
    for device in devices()? {
        let config = bert::Config { num_hidden_layers: 2, ..Default::default() };
        let model = bert::BertModel::load(opara_weights::seeded(1, DType::F32, &device), &config)?;
        let input = |i: usize| {
            let ids = (waves(i, (1, 32))? + 1.)?.affine(10_000., 0.)?.to_dtype(DType::U32)?.to_device(&device)?;
            Ok(vec![ids.clone(), ids.zeros_like()?, ids.ones_like()?])
        };
        let model = std::sync::Arc::new(model);
        let module = move |t: &[Tensor]| Ok(vec![model.forward(&t[0], &t[1], Some(&t[2]))?]);
        replayed(Mode::Graph, module, input);
    }
    Ok(())
}

/// A module of matmuls, and two inputs with their eager answers.
fn matmuls(device: &Device) -> Result<(impl Module + Clone + Send + Sync + 'static, [(Tensor, Tensor); 2])> {
    let weight = waves(9, (64, 64))?.affine(0.1, 0.)?.to_device(device)?;
    let module = move |x: &Tensor| {
        let branches = (0..4).map(|_| x.matmul(&weight)?.tanh()?.matmul(&weight)).collect::<Result<Vec<_>>>()?;
        Tensor::cat(&branches, 1)
    };
    let pair = |i: usize| {
        let x = waves(i, (32, 64))?.to_device(device)?;
        let y = module(&x)?;
        Ok::<_, candle::Error>((x, y))
    };
    let pairs = [pair(0)?, pair(1)?];
    Ok((module, pairs))
}

/// All answers are kept, and read at the end.
#[test]
fn calls_work_while_other_executors_are_built() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let (module, pairs) = matmuls(&device)?;
    let fast = OparaExecutor::new(module.clone(), &pairs[0].0)?;
    let (built, answers) = std::thread::scope(|scope| {
        let call = |x: &Tensor| (0..300).map(|_| fast.forward(x)).collect::<Vec<_>>();
        let callers = pairs.each_ref().map(|(x, _)| scope.spawn(move || call(x)));
        let built: Vec<_> = (0..20).map(|_| OparaExecutor::new(module.clone(), &pairs[0].0)).collect();
        (built, callers.map(|caller| caller.join().expect("no panic")))
    });
    for built in built {
        let built = built?;
        assert_eq!((built.report().mode(), built.report().reason()), (Mode::Graph, None));
        assert_same(&[built.forward(&pairs[1].0)?], &[pairs[1].1.clone()], "an executor that was built meanwhile");
    }
    for (answers, (_, expected)) in answers.into_iter().zip(&pairs) {
        for (i, answer) in answers.into_iter().enumerate() {
            assert_same(&[answer?], std::slice::from_ref(expected), format_args!("call {i} meanwhile"));
        }
    }
    Ok(())
}

#[test]
fn two_threads_build_executors_on_one_device() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let (module, pairs) = matmuls(&device)?;
    let both = Barrier::new(2);
    let built = std::thread::scope(|scope| {
        let build = || {
            both.wait();
            (0..10).map(|_| OparaExecutor::new(module.clone(), &pairs[0].0)).collect::<Vec<_>>()
        };
        [scope.spawn(build), scope.spawn(build)].map(|builder| builder.join().expect("no panic"))
    });
    for built in built.into_iter().flatten() {
        let built = built?;
        assert_eq!((built.report().mode(), built.report().reason()), (Mode::Graph, None));
        assert_same(
            &[built.forward(&pairs[1].0)?],
            &[pairs[1].1.clone()],
            "an executor built concurrently with another",
        );
    }
    Ok(())
}

/// Creating and dropping a device, an executor, or a library handle waits for the whole GPU, which makes the driver
/// break concurrent captures.
#[test]
fn devices_and_executors_are_created_and_dropped_while_others_are_built() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let (module, pairs) = matmuls(&device)?;
    let done = AtomicBool::new(false);
    let built = std::thread::scope(|scope| {
        let other = scope.spawn(|| -> anyhow::Result<()> {
            while !done.load(Ordering::Relaxed) {
                let device = Device::new_cuda_with_stream(0)?;
                let (module, pairs) = matmuls(&device)?;
                let fast = OparaExecutor::new(module, &pairs[0].0)?;
                assert_eq!((fast.report().mode(), fast.report().reason()), (Mode::Graph, None));
                opara_candle::device_memory::free_memory(&device)?;
            }
            Ok(())
        });
        let built: Vec<_> = (0..60).map(|_| OparaExecutor::new(module.clone(), &pairs[0].0)).collect();
        done.store(true, Ordering::Relaxed);
        other.join().expect("no panic").map(|()| built)
    })?;
    for built in built {
        let built = built?;
        assert_eq!((built.report().mode(), built.report().reason()), (Mode::Graph, None));
        assert_same(&[built.forward(&pairs[1].0)?], &[pairs[1].1.clone()], "an executor that was built meanwhile");
    }
    Ok(())
}

/// Two devices on one GPU have different streams, which wait for each other if they share a tensor.
#[test]
fn an_input_may_still_be_computed_on_another_stream() -> anyhow::Result<()> {
    if gpu().is_none() {
        return Ok(());
    }
    let (here, there) = (Device::new_cuda_with_stream(0)?, Device::new_cuda_with_stream(0)?);
    let weight = counts(3, (8, 2048), DType::F32)?.to_device(&here)?;
    let function = move |t: &[Tensor]| Ok(vec![((&t[0] * 2.)? + &weight)?]);
    let example = counts(0, (8, 2048), DType::F32)?.to_device(&here)?;
    let fast = OparaExecutor::builder().build_fn(function.clone(), &[example])?;
    assert_eq!(fast.report().mode(), Mode::Graph, "{}", fast.report());
    // Swaps neighbouring columns: applied twice, it gives the same bits.
    let exchange: Vec<u32> = (0..2048).map(|i| i ^ 1).collect();
    let exchange = Tensor::eye(2048, DType::F32, &there)?.index_select(&Tensor::new(exchange, &there)?, 0)?;
    for (i, inside_out) in [(1, false), (2, false), (3, true), (4, true)] {
        let x = counts(i, (2048, 2048), DType::F32)?.to_device(&there)?;
        there.synchronize()?;
        let late = (0..200).try_fold(x.clone(), |x, _| x.matmul(&exchange))?;
        // A replay reads copies of inputs that are not contiguous.
        let part = |x: &Tensor| match inside_out {
            false => x.narrow(0, i, 8)?.affine(1., 1.),
            true => x.t()?.narrow(0, i, 8),
        };
        let got = fast.call(&[part(&late)?])?;
        here.synchronize()?;
        let expected = part(&x)?.to_device(&Device::Cpu)?.to_device(&here)?;
        assert_same(&got, &function(&[expected])?, format_args!("input {i}"));
    }
    Ok(())
}

/// Plans for tensors of two devices on one GPU share an executor's arena, and wait for each other.
#[test]
fn plans_on_two_streams_share_an_arena() -> anyhow::Result<()> {
    if gpu().is_none() {
        return Ok(());
    }
    let devices = [Device::new_cuda_with_stream(0)?, Device::new_cuda_with_stream(0)?];
    let function = |t: &[Tensor]| {
        let wide = Tensor::cat(&[&t[0]; 64], 1)?;
        let sum =
            (0..16).try_fold(wide.clone(), |x, i| ((x * 0.5)? + (&wide * f64::from(i))?)?.sqr()?.affine(1e-3, 1.))?;
        Ok(vec![sum.narrow(1, 0, 512)?])
    };
    let inputs: Vec<Tensor> = (0..2).map(|i| counts(i, (512 << i, 512), DType::F32)).collect::<Result<_>>()?;
    let inputs = inputs.iter().zip(&devices).map(|(x, device)| x.to_device(device)).collect::<Result<Vec<_>>>()?;
    let fast = OparaExecutor::builder().build_fn(function, &inputs[..1])?;
    let expected = inputs.iter().map(|x| function(std::slice::from_ref(x))).collect::<Result<Vec<_>>>()?;
    let mut answers = Vec::new();
    for turn in 0..20 {
        let x = &inputs[turn % 2..][..1];
        answers.push((turn % 2, fast.call(x)?));
        assert_eq!(fast.report_for(x)?.mode(), Mode::Graph, "{}", fast.report_for(x)?);
    }
    devices.iter().try_for_each(Device::synchronize)?;
    for (turn, (which, got)) in answers.iter().enumerate() {
        assert_same(got, &expected[*which], format_args!("turn {turn}"));
    }
    Ok(())
}
