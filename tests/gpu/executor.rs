//! The executor on a GPU. Tests skip without a GPU or the feature `cuda`, and say so.

use std::sync::Arc;

use crate::common::{differing, gpu};
use candle::{DType, Device, Module, Result, Tensor};
use candle_nn::{linear, seq, VarBuilder};
use candle_transformers::models::{bert, t5};
use opara_candle::{BuiltIn, Error, Mode, OnUncapturable, OparaExecutor};

const SEQ: usize = 128;

/// candle-transformers' BERT-base with seeded weights.
fn bert(device: &Device, dtype: DType) -> Result<impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + Clone> {
    let vb = opara_weights::seeded(1, dtype, device);
    let model = Arc::new(bert::BertModel::load(vb, &bert::Config::default())?);
    Ok(move |x: &[Tensor]| Ok(vec![model.forward(&x[0], &x[1], Some(&x[2]))?]))
}

fn sentence(device: &Device, seed: u32) -> Result<Vec<Tensor>> {
    let ids: Vec<u32> = (0..SEQ as u32).map(|i| (i * 7919 + seed * 104_729) % 30_000 + 100).collect();
    let ids = Tensor::from_vec(ids, (1, SEQ), device)?;
    Ok(vec![ids.clone(), ids.zeros_like()?, ids.ones_like()?])
}

#[test]
fn bert_replays_the_eager_bits() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in [DType::F32, DType::F16] {
        let module = bert(&device, dtype)?;
        for scheduler in BuiltIn::FIXED {
            let example = sentence(&device, 0)?;
            let fast = OparaExecutor::builder().scheduler(scheduler).stress(8).build_fn(module.clone(), &example)?;
            let report = fast.report();
            println!("{dtype:?} {scheduler}\n{report}");
            assert_eq!((report.mode(), report.is_verified(), report.reason()), (Mode::Graph, true, None));
            let first = fast.call(&example)?.remove(0);
            let kept = first.copy()?;
            for seed in 1..4 {
                let input = sentence(&device, seed)?;
                let expected = module(&input)?.remove(0);
                // Other tensors are allocated and freed between calls.
                let noise = Tensor::rand(0f32, 1., (1 << 20, seed as usize), &device)?;
                assert_eq!(differing(&expected, &fast.call(&input)?[0])?, 0, "input {seed}");
                assert_eq!(
                    fast.call_zero_copy(&input, |out| differing(&expected, &out[0]))??,
                    0,
                    "borrowed, input {seed}"
                );
                drop(noise);
                assert_eq!(differing(&first, &kept)?, 0, "a result changed after the call that made it");
            }
        }
    }
    Ok(())
}

#[test]
fn bert_from_two_threads() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let module = bert(&device, DType::F32)?;
    let inputs: Vec<Vec<Tensor>> = (0..2).map(|seed| sentence(&device, seed)).collect::<Result<_>>()?;
    let expected: Vec<Tensor> = inputs.iter().map(|x| Ok(module(x)?.remove(0))).collect::<Result<_>>()?;
    let fast = OparaExecutor::builder().build_fn(module, &inputs[0])?;
    std::thread::scope(|scope| {
        let callers: Vec<_> = inputs
            .iter()
            .zip(&expected)
            .map(|(input, expected)| {
                let fast = &fast;
                scope.spawn(move || -> anyhow::Result<()> {
                    for _ in 0..200 {
                        assert_eq!(differing(expected, &fast.call(input)?[0])?, 0);
                    }
                    Ok(())
                })
            })
            .collect();
        callers.into_iter().try_for_each(|caller| caller.join().expect("a caller panicked"))
    })
}

#[test]
fn ten_thousand_replays_give_the_same_bits() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let input = sentence(&device, 5)?;
    let fast = OparaExecutor::builder().build_fn(bert(&device, DType::F16)?, &input)?;
    let expected = fast.call(&input)?.remove(0);
    // Compares on the device, to avoid 10,000 read-backs. NaN would differ from itself, so finite outputs are compared
    // by value, and the bits once on the host.
    let mut differences = Tensor::zeros((), DType::F32, &device)?;
    for _ in 0..10_000 {
        let differs = fast.call_zero_copy(&input, |out| out[0].ne(&expected)?.to_dtype(DType::F32)?.sum_all())??;
        differences = (differences + differs)?;
    }
    let nan = expected.ne(&expected)?.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()?;
    assert_eq!(differences.to_scalar::<f32>()?, 10_000. * nan);
    assert_eq!(differing(&expected, &fast.call(&input)?[0])?, 0);
    Ok(())
}

/// candle-transformers' T5 uploads its table of relative positions in every forward pass: 64 KiB at 128 tokens.
#[test]
fn t5_with_uploads_is_captured() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let config = t5::Config { d_model: 512, d_ff: 2048, num_layers: 6, num_heads: 8, ..Default::default() };
    for (dtype, tokens) in [(DType::F32, 128), (DType::F32, 512), (DType::F16, 128)] {
        let model = t5::T5EncoderModel::load(opara_weights::seeded(1, dtype, &device), &config)?;
        let model = std::sync::Mutex::new(model);
        let module = move |ids: &Tensor| model.lock().expect("no panic holds this lock").forward(ids);
        let ids = |seed: u32| {
            let ids: Vec<u32> = (0..tokens).map(|i| (i * 7919 + seed * 104_729) % 32_000 + 3).collect();
            Tensor::from_vec(ids, (1, tokens as usize), &device)
        };
        let expected = [module(&ids(1)?)?, module(&ids(2)?)?];
        let fast = OparaExecutor::new(module, &ids(0)?)?;
        println!("{dtype:?}, {tokens} tokens\n{}", fast.report());
        assert_eq!((fast.report().mode(), fast.report().reason()), (Mode::Graph, None));
        for (seed, expected) in [(1, &expected[0]), (2, &expected[1]), (1, &expected[0])] {
            assert_eq!(differing(expected, &fast.forward(&ids(seed)?)?)?, 0);
        }
    }
    Ok(())
}

#[test]
fn an_uncapturable_module_runs_eagerly_with_a_reason() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let reads_back = |x: &Tensor| -> Result<Tensor> {
        let mean = x.mean_all()?.to_scalar::<f32>()?;
        x * mean as f64
    };
    let x = Tensor::rand(0f32, 1., (4, 4), &device)?;
    let fast = OparaExecutor::new(reads_back, &x)?;
    let report = fast.report();
    assert_eq!(report.mode(), Mode::Eager);
    assert!(report.reason().as_ref().is_some_and(|r| r.contains("reads 4 bytes back")), "{report}");
    assert_eq!(differing(&reads_back(&x)?, &fast.forward(&x)?)?, 0);
    let refused = OparaExecutor::builder().on_uncapturable(OnUncapturable::Error).build(reads_back, &x);
    assert!(refused.is_err());
    // The stream is usable after a failed capture.
    let fast = OparaExecutor::new(|x: &Tensor| x.relu(), &x)?;
    assert_eq!(fast.report().mode(), Mode::Graph, "{}", fast.report());
    Ok(())
}

#[test]
fn modules_that_are_not_send_are_captured_and_called_during_captures() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let layers = |vb: VarBuilder| Ok(seq().add(linear(64, 64, vb.pp("up"))?).add(|x: &Tensor| x.relu()));
    let vb = opara_weights::seeded(3, DType::F32, &device);
    let eager = layers(vb.clone())?;
    let rows = |n: usize| Tensor::rand(-1f32, 1., (n, 64), &device);
    let inputs = (1..8).map(rows).collect::<Result<Vec<_>>>()?;
    let expected = inputs.iter().map(|x| eager.forward(x)).collect::<Result<Vec<_>>>()?;

    let weights = vb.clone();
    let captured = OparaExecutor::new_local(move || layers(weights), &inputs[0])?;
    assert_eq!(captured.report().mode(), Mode::Graph, "{}", captured.report());
    let make = move || {
        let layers = layers(vb)?;
        Ok(move |x: &Tensor| {
            x.flatten_all()?.get(0)?.to_scalar::<f32>()?;
            layers.forward(x)
        })
    };
    let reads_back = OparaExecutor::new_local(make, &inputs[0])?;
    assert_eq!(reads_back.report().mode(), Mode::Eager);
    // Every call of either executor has a new shape, which must be captured or refused while the other waits.
    let calls = |executor: &OparaExecutor| inputs.iter().map(|x| executor.forward(x)).collect::<Result<Vec<_>>>();
    let outputs = std::thread::scope(|scope| {
        let other = scope.spawn(|| calls(&reads_back));
        [calls(&captured), other.join().expect("the caller panicked")]
    });
    for outputs in outputs {
        for (output, expected) in outputs?.iter().zip(&expected) {
            assert_eq!(differing(expected, output)?, 0);
        }
    }
    Ok(())
}

#[test]
fn an_executor_built_during_a_capture_is_refused() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let x = Tensor::rand(-1f32, 1., (4, 4), &device)?;
    let fast = OparaExecutor::new(|x: &Tensor| OparaExecutor::new(|x: &Tensor| x.relu(), x)?.forward(x), &x)?;
    assert_eq!(differing(&x.relu()?, &fast.forward(&x)?)?, 0, "no hang, {}", fast.report());
    Ok(())
}

#[test]
fn misuse_gets_an_error() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let x = Tensor::rand(0f32, 1., (4, 4), &device)?;
    let fast = OparaExecutor::new(|x: &Tensor| x.relu(), &x)?;
    let error = fast.call(&[x.to_device(&Device::Cpu)?]).unwrap_err();
    assert!(matches!(error, Error::InputDevice { index: 0, .. }), "{error}");
    let inputs = std::slice::from_ref(&x);
    let inner = fast.call_zero_copy(inputs, |_| fast.call(inputs).map(drop))?;
    assert!(matches!(inner, Err(Error::OutputsBorrowed)), "no hang");
    let panics = |x: &Tensor| if x.dim(0)? == 5 { panic!("boom") } else { x.relu() };
    let fast = OparaExecutor::new(panics, &x)?;
    let error = fast.forward(&Tensor::rand(0f32, 1., (5, 4), &device)?).unwrap_err();
    assert!(error.to_string().contains("boom"), "{error}");
    assert_eq!(differing(&x.relu()?, &fast.forward(&x)?)?, 0, "it still answers what it knows");
    Ok(())
}

#[test]
fn a_module_with_state_is_an_error() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let last = std::sync::Mutex::new(None::<Tensor>);
    let module = move |x: &Tensor| -> Result<Tensor> {
        let y = x.affine(2., 1.)?;
        let mut last = last.lock().expect("no panic holds this lock");
        let sum = match &*last {
            Some(last) => (&y + last)?,
            None => y.clone(),
        };
        *last = Some(y);
        Ok(sum)
    };
    let x = Tensor::rand(0f32, 1., (8, 8), &device)?;
    let error = OparaExecutor::new(module, &x).expect_err("it keeps what it made");
    assert!(matches!(error, Error::Stateful { .. }), "{error}");
    Ok(())
}

#[test]
fn outputs_that_are_inputs_views_or_duplicates() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let weight = Tensor::rand(0f32, 1., (3, 4), &device)?;
    let function = {
        let weight = weight.clone();
        move |x: &[Tensor]| {
            let y = x[0].relu()?;
            Ok(vec![x[0].clone(), y.clone(), y.t()?, y, weight.clone()])
        }
    };
    let x = Tensor::rand(-1f32, 1., (3, 4), &device)?;
    let fast = OparaExecutor::builder().build_fn(function.clone(), std::slice::from_ref(&x))?;
    assert_eq!(fast.report().mode(), Mode::Graph, "{}", fast.report());
    let x = Tensor::rand(-1f32, 1., (3, 4), &device)?;
    let (got, expected) = (fast.call(std::slice::from_ref(&x))?, function(std::slice::from_ref(&x))?);
    for (got, expected) in got.iter().zip(&expected) {
        assert_eq!(got.dims(), expected.dims());
        assert_eq!(differing(got, expected)?, 0);
    }
    Ok(())
}
