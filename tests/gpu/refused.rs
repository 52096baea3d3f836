//! Modules on a GPU that cannot be captured: read-backs, waits, random numbers, second devices. Tests skip without a
//! GPU or the feature `cuda`, and say so.

use crate::common::{
    answers_like, assert_same, gpu, isolated, large, one_on, refused, replayed, same_bits, second_gpu, where_large,
};
use candle::{Device, Result, Tensor};
use candle_nn::Dropout;
use opara_candle::{Error, Mode, OnUncapturable, OparaExecutor};

#[test]
fn a_read_back_is_refused_and_its_span_named() {
    let Some(device) = gpu() else { return };
    let function = |t: &[Tensor]| {
        let _decoder = tracing::info_span!("decoder").entered();
        let hidden = t[0].sqr()?;
        let _sampler = opara_candle::scope("sampler");
        let mean = hidden.mean_all()?.to_scalar::<f32>()?;
        Ok(vec![(hidden * mean as f64)?])
    };
    let fast = refused(function, &one_on(0, &device).expect("an input"), &["reads 4 bytes back", "decoder/sampler"]);
    answers_like(&fast, function, |i| one_on(i, &device));
}

#[test]
fn a_read_back_whose_error_is_ignored_is_refused() {
    let Some(device) = gpu() else { return };
    let function = |t: &[Tensor]| Ok(vec![(&t[0] * t[0].mean_all()?.to_scalar::<f32>().unwrap_or(1.) as f64)?]);
    let fast = refused(function, &one_on(0, &device).expect("an input"), &["reads 4 bytes back"]);
    answers_like(&fast, function, |i| one_on(i, &device));
}

#[test]
fn a_module_that_computes_on_the_cpu_is_refused_and_its_span_named() {
    let Some(device) = gpu() else { return };
    let function = |t: &[Tensor]| {
        let _span = tracing::info_span!("offloaded").entered();
        Ok(vec![t[0].relu()?.to_device(&Device::Cpu)?.sqr()?.to_device(t[0].device())?])
    };
    let fast = refused(function, &one_on(0, &device).expect("an input"), &["reads 96 bytes back", "offloaded"]);
    answers_like(&fast, function, |i| one_on(i, &device));
}

#[test]
fn a_module_that_waits_for_the_device_is_refused() {
    let Some(device) = gpu() else { return };
    let function = |t: &[Tensor]| {
        let y = t[0].relu()?;
        t[0].device().synchronize()?;
        Ok(vec![y.sqr()?])
    };
    let fast = refused(function, &one_on(0, &device).expect("an input"), &[]);
    answers_like(&fast, function, |i| one_on(i, &device));
    replayed(Mode::Graph, |t: &[Tensor]| Ok(vec![t[0].relu()?]), |i| one_on(i, &device));
}

/// Builds executors of a module that draws random numbers: once with the numbers in the outputs, and once with numbers
/// that do not show in the examples' outputs. The reason must name the span, and the numbers must equal eager
/// execution's with the same seed.
fn assert_draws_are_detected(draw: fn(&Tensor) -> Result<Tensor>) -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let shown = move |t: &[Tensor]| {
        let _span = tracing::info_span!("noise").entered();
        Ok(vec![draw(&t[0])?])
    };
    let hidden = move |t: &[Tensor]| Ok(vec![where_large(&t[0], &shown(t)?[0])?]);
    let same_draws =
        |fast: &OparaExecutor, function: &dyn Fn(&[Tensor]) -> Result<Vec<Tensor>>| -> anyhow::Result<()> {
            let x = [large(1, &device)?];
            device.set_seed(7)?;
            let got = [fast.call(&x)?, fast.call(&x)?].concat();
            device.set_seed(7)?;
            assert_same(&got, &[function(&x)?, function(&x)?].concat(), "calls from the same seed");
            assert!(!same_bits(&got[0], &got[1])?, "every call draws anew");
            Ok(())
        };
    same_draws(&refused(shown, &one_on(0, &device)?, &["noise"]), &shown)?;
    same_draws(&refused(hidden, &one_on(0, &device)?, &["noise"]), &hidden)?;
    let fast = OparaExecutor::builder().verify(false).build_fn(shown, &one_on(0, &device)?)?;
    assert!(fast.report().mode() == Mode::Eager && fast.report().reason().is_some(), "{}", fast.report());
    let strict = OparaExecutor::builder().on_uncapturable(OnUncapturable::Error);
    let error = strict.build_fn(shown, &one_on(0, &device)?).unwrap_err();
    assert!(matches!(error, Error::DrawsRandomNumbers { .. }), "{error:?}");
    same_draws(&fast, &shown)
}

#[test]
fn uniform_draws_are_detected_and_their_span_named() -> anyhow::Result<()> {
    assert_draws_are_detected(|x| x + Tensor::rand(0f32, 1., x.shape(), x.device())?)
}

#[test]
fn normal_draws_are_detected_and_their_span_named() -> anyhow::Result<()> {
    assert_draws_are_detected(|x| x + Tensor::randn(0f32, 1., x.shape(), x.device())?)
}

#[test]
fn dropout_in_training_is_detected_and_its_span_named() -> anyhow::Result<()> {
    assert_draws_are_detected(|x| Dropout::new(0.5).forward(x, true))
}

#[test]
fn dropout_in_inference_is_captured() {
    let Some(device) = gpu() else { return };
    let function = |t: &[Tensor]| Ok(vec![Dropout::new(0.5).forward(&t[0].relu()?, false)?]);
    replayed(Mode::Graph, function, |i| one_on(i, &device));
}

/// Wraps a module that alternates between two devices.
///
/// Data crosses from one device to the other only after copies: candle marks a kernel's output as read, not as written,
/// so another stream that copies it does not wait for the kernel, in eager execution either.
fn assert_a_second_device_is_detected(first: &Device, second: Device) -> anyhow::Result<()> {
    let function = move |t: &[Tensor]| {
        let _span = tracing::info_span!("elsewhere").entered();
        let there = t[0].to_device(&second)?;
        there.affine(2., 1.)?;
        Ok(vec![there.to_device(t[0].device())?.sqr()?])
    };
    let fast = refused(function.clone(), &one_on(0, first)?, &["elsewhere"]);
    answers_like(&fast, function, |i| one_on(i, first));
    Ok(())
}

#[test]
fn a_module_on_a_second_stream_is_detected_and_its_span_named() -> anyhow::Result<()> {
    isolated(|| {
        if gpu().is_none() {
            return Ok(());
        }
        // Their streams wait for each other if they share a tensor.
        assert_a_second_device_is_detected(&Device::new_cuda_with_stream(0)?, Device::new_cuda_with_stream(0)?)
    })
}

#[test]
fn a_module_on_a_second_gpu_is_detected_and_its_span_named() -> anyhow::Result<()> {
    isolated(|| {
        let Some(device) = gpu() else { return Ok(()) };
        let Some(second) = second_gpu() else { return Ok(()) };
        assert_a_second_device_is_detected(&device, second)
    })
}
