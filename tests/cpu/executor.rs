//! The executor on the CPU: real modules with the bits of eager execution, and errors for misuse.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use candle::{DType, Module, Result, Tensor};
use candle_nn::VarBuilder;
use opara_candle::ops::ConvConfig;
use opara_candle::{nn, ops, BuiltIn, Error, Mode, OnUncapturable, OparaExecutor};
use opara_models::bert::{BertModel, Config};

use super::common::{same_bits, waves, CPU};

/// Replays a module on several inputs under every scheduler, and compares with eager execution.
fn check_module<M>(module: M, inputs: impl Fn(usize) -> Result<Tensor>) -> anyhow::Result<Vec<opara_candle::Report>>
where
    M: Module + Clone + Send + Sync + 'static,
{
    let mut reports = Vec::new();
    for scheduler in BuiltIn::FIXED {
        let fast = OparaExecutor::builder().scheduler(scheduler).build(module.clone(), &inputs(0)?)?;
        let report = fast.report();
        assert_eq!((report.mode(), report.is_verified()), (Mode::Threads, true), "{report}");
        let first = fast.forward(&inputs(0)?)?;
        for i in 0..5 {
            assert!(same_bits(&fast.forward(&inputs(i)?)?, &module.forward(&inputs(i)?)?)?, "{scheduler}, input {i}");
        }
        assert!(same_bits(&first, &module.forward(&inputs(0)?)?)?, "a later call changed an earlier result");
        reports.push(report);
    }
    Ok(reports)
}

/// The report of one scheduler.
fn of(reports: &[opara_candle::Report], scheduler: BuiltIn) -> &opara_candle::Report {
    reports.iter().find(|report| report.scheduler() == scheduler.to_string()).expect("every scheduler has a report")
}

#[test]
fn bert_is_bit_equal() -> anyhow::Result<()> {
    let model = Arc::new(BertModel::load(opara_weights::seeded(1, DType::F32, CPU), &Config::tiny())?);
    let ids = |i: usize| Tensor::from_vec((0..24).map(|j| (j * 7 + i as u32) % 60).collect(), (2, 12), CPU);
    let reports = check_module(move |x: &Tensor| Module::forward(&*model, x), ids)?;
    let (sequential, opara) = (of(&reports, BuiltIn::Sequential), of(&reports, BuiltIn::Opara));
    assert_eq!((sequential.counts().streams, sequential.counts().waits), (1, 0));
    assert!(opara.counts().streams > 1 && opara.counts().width >= 3, "query, key and value are independent: {opara}");
    Ok(())
}

/// A four-branch convolution block.
#[derive(Clone)]
pub struct Block([nn::Conv2d; 4]);

impl Block {
    pub fn new(vb: VarBuilder) -> Result<Self> {
        let conv = |kernel: usize, name: &str| {
            let config = ConvConfig::default().padding(kernel / 2);
            nn::conv2d(8, 8, (kernel, kernel), config, vb.pp(name))
        };
        Ok(Self([conv(1, "a")?, conv(3, "b")?, conv(5, "c")?, conv(1, "d")?]))
    }
}

impl Module for Block {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let branches = self.0.iter().map(|conv| ops::relu(&conv.forward(x)?)).collect::<Result<Vec<_>>>()?;
        ops::cat(&branches.iter().collect::<Vec<_>>(), 1)
    }
}

#[test]
fn a_four_branch_block_is_bit_equal_and_has_four_streams() -> anyhow::Result<()> {
    let block = Block::new(opara_weights::seeded(2, DType::F32, CPU))?;
    // Large enough for workers to take part.
    let reports = check_module(block, |i| waves(i, (1, 8, 48, 48)))?;
    let opara = of(&reports, BuiltIn::Opara);
    assert_eq!((opara.counts().streams, opara.counts().width, opara.counts().waits), (4, 4, 3));
    Ok(())
}

#[test]
fn a_chain_needs_one_stream() -> anyhow::Result<()> {
    let weight = Tensor::rand(-1f32, 1., (16, 16), CPU)?;
    let chain = move |x: &Tensor| (0..6).try_fold(x.clone(), |x, _| ops::tanh(&ops::matmul(&x, &weight)?));
    let reports = check_module(chain, |i| waves(i, (4, 16)))?;
    let opara = of(&reports, BuiltIn::Opara);
    assert_eq!((opara.counts().streams, opara.counts().waits, opara.counts().depth), (1, 0, 12));
    Ok(())
}

#[test]
fn several_inputs_and_outputs_with_views_and_constants() -> anyhow::Result<()> {
    let function = |x: &[Tensor]| {
        let positions = ops::constant("positions", || Tensor::arange(0f32, 6., CPU)?.reshape((2, 3)))?;
        let sum = ops::add(&ops::add(&x[0], &x[1])?, &positions)?;
        let row = ops::narrow(&ops::transpose(&sum, 0, 1)?, 0, 1, 2)?;
        Ok(vec![sum, ops::contiguous(&row)?, x[1].clone(), row])
    };
    let x = |seed: f32| -> Result<Vec<Tensor>> {
        Ok(vec![Tensor::rand(0f32, seed, (2, 3), CPU)?, Tensor::rand(0f32, 1., (2, 3), CPU)?])
    };
    let fast = OparaExecutor::builder().build_fn(function, &x(1.)?)?;
    assert_eq!((fast.report().mode(), fast.report().counts().folded), (Mode::Threads, 1), "{}", fast.report());
    let input = x(9.)?;
    for (got, expected) in fast.call(&input)?.iter().zip(function(&input)?) {
        assert!(same_bits(got, &expected)?);
    }
    assert_eq!(fast.call_zero_copy(&input, |outputs| outputs.len())?, 4);
    Ok(())
}

#[test]
fn an_executor_inside_a_wrapped_module() -> anyhow::Result<()> {
    let x = Tensor::rand(-1f32, 1., (4, 8), CPU)?;
    let inner = OparaExecutor::new(|x: &Tensor| ops::sqr(&ops::tanh(x)?), &x)?;
    let outer = OparaExecutor::new(move |x: &Tensor| ops::add(&inner.forward(x)?, &ops::relu(x)?), &x)?;
    assert_eq!(outer.report().counts().ops, 4, "the outer executor records the inner one's operators");
    assert!(same_bits(&outer.forward(&x)?, &(x.tanh()?.sqr()? + x.relu()?)?)?);
    Ok(())
}

#[test]
fn calls_from_several_threads() -> anyhow::Result<()> {
    let block = Block::new(opara_weights::seeded(3, DType::F32, CPU))?;
    let inputs = (0..4).map(|_| Tensor::rand(-1f32, 1., (1, 8, 40, 40), CPU)).collect::<Result<Vec<_>>>()?;
    let fast = OparaExecutor::new(block.clone(), &inputs[0])?;
    std::thread::scope(|scope| {
        let call = |input| {
            let (fast, block) = (&fast, &block);
            scope.spawn(move || -> Result<()> {
                let expected = block.forward(input)?;
                for _ in 0..20 {
                    assert!(same_bits(&fast.forward(input)?, &expected)?);
                }
                Ok(())
            })
        };
        let threads: Vec<_> = inputs.iter().map(call).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("the thread panicked"))
    })?;
    Ok(())
}

#[test]
fn an_untraced_tensor_makes_the_module_run_eagerly_and_is_named() -> anyhow::Result<()> {
    let module = |x: &Tensor| {
        let _scope = opara_candle::scope("head");
        ops::add(&ops::tanh(x)?, &x.sqr()?)
    };
    let x = Tensor::rand(0f32, 1., (2, 3), CPU)?;
    let error = OparaExecutor::builder().on_uncapturable(OnUncapturable::Error).build(module, &x).unwrap_err();
    assert!(
        matches!(&error, Error::UntracedTensor { op, label, argument: 1, .. } if op == "add" && label == "head/add"),
        "{error}"
    );
    let eager = OparaExecutor::new(module, &x)?;
    assert_eq!(eager.report().mode(), Mode::Eager);
    assert!(eager.report().reason().is_some_and(|reason| reason.contains("head/add")));
    assert!(same_bits(&eager.forward(&x)?, &module(&x)?)?);
    Ok(())
}

#[test]
fn a_module_of_plain_candle_operators_runs_eagerly() -> anyhow::Result<()> {
    let x = Tensor::rand(0f32, 1., (2, 3), CPU)?;
    let eager = OparaExecutor::new(|x: &Tensor| x.sqr()?.tanh(), &x)?;
    assert_eq!(eager.report().mode(), Mode::Eager);
    let reason = eager.report().reason().unwrap_or_default().to_owned();
    assert!(reason.contains("output 0") && reason.contains("CUDA device takes candle's own operators"), "{reason}");
    assert!(same_bits(&eager.forward(&x)?, &x.sqr()?.tanh()?)?);
    Ok(())
}

#[test]
fn control_flow_that_depends_on_values_is_detected() -> anyhow::Result<()> {
    let module = |x: &Tensor| {
        let first = x.flatten_all()?.get(0)?.to_scalar::<f32>()?;
        if first > 1.5 {
            ops::tanh(x)
        } else {
            ops::relu(x)
        }
    };
    let x = Tensor::new(&[2f32, 1.], CPU)?;
    let error = OparaExecutor::builder().on_uncapturable(OnUncapturable::Error).build(module, &x).unwrap_err();
    assert!(
        matches!(&error, Error::Unstable { at: 0, first, second } if first == "tanh" && second == "relu"),
        "{error}"
    );
    Ok(())
}

#[test]
fn a_number_read_from_the_input_is_found_by_verification() -> anyhow::Result<()> {
    let module = |x: &Tensor| {
        let mean = x.mean_all()?.to_scalar::<f32>()?;
        ops::affine(x, mean as f64, 0.)
    };
    let x = Tensor::new(&[2f32, 1.], CPU)?;
    let fast = OparaExecutor::new(module, &x)?;
    assert_eq!(fast.report().mode(), Mode::Eager, "{}", fast.report());
    let y = Tensor::new(&[8f32, 4.], CPU)?;
    assert!(same_bits(&fast.forward(&y)?, &module(&y)?)?);
    Ok(())
}

#[test]
fn a_mismatch_falls_back_to_the_sequential_schedule() -> anyhow::Result<()> {
    let calls = Arc::new(AtomicUsize::new(0));
    // Wrong only at its fifth call: right in the four recorded calls, wrong in the first replay.
    let module = move |x: &Tensor| {
        let calls = calls.clone();
        ops::custom("flaky", &[x], move |t| {
            let offset = if calls.fetch_add(1, Ordering::Relaxed) == 4 { 1. } else { 0. };
            t[0].affine(1., offset)
        })
    };
    let x = waves(0, (2, 2))?;
    let fast = OparaExecutor::new(module, &x)?;
    let report = fast.report();
    assert_eq!(
        (report.mode(), report.scheduler(), report.is_verified()),
        (Mode::Threads, "sequential", true),
        "{report}"
    );
    assert!(report.reason().is_some_and(|reason| reason.contains("differs") && reason.contains("fell back")));
    assert!(same_bits(&fast.forward(&x)?, &x)?);
    Ok(())
}

#[test]
fn executors_can_be_shared_and_sent() {
    fn check<T: Send + Sync>() {}
    check::<OparaExecutor>();
}

#[test]
fn errors_name_wrong_inputs() -> anyhow::Result<()> {
    let weight = Tensor::rand(0f32, 1., (4, 4), CPU)?;
    let fast = OparaExecutor::new(move |x: &Tensor| ops::matmul(x, &weight), &Tensor::rand(0f32, 1., (2, 4), CPU)?)?;
    let doubles = Tensor::rand(0f64, 1., (2, 4), CPU)?;
    let error = fast.call(&[doubles]).unwrap_err();
    let named = matches!(error, Error::InputDType { index: 0, expected: DType::F32, got: DType::F64, .. });
    assert!(named && error.to_string().contains("to_dtype"), "{error}");
    let error = fast.call(&[]).unwrap_err();
    assert!(matches!(error, Error::InputCount { expected: 1, got: 0 }), "{error}");
    let error = fast.forward(&Tensor::rand(0f32, 1., (2, 5), CPU)?).unwrap_err();
    assert!(error.to_string().contains("matmul"), "the module's own error: {error}");
    // The executor still works.
    assert_eq!(fast.forward(&Tensor::rand(0f32, 1., (2, 4), CPU)?)?.dims(), [2, 4]);
    Ok(())
}

#[test]
fn a_module_that_fails_fails_to_build() {
    let x = Tensor::zeros((2, 2), DType::F32, CPU).unwrap();
    let error = OparaExecutor::new(|_: &Tensor| candle::bail!("no weights today"), &x).unwrap_err();
    assert!(error.to_string().contains("no weights today"));
}

#[test]
fn a_panic_while_recording_or_replaying_is_an_error() -> anyhow::Result<()> {
    let x = Tensor::rand(0f32, 1., (2, 2), CPU)?;
    let error = OparaExecutor::new(|_: &Tensor| panic!("boom"), &x).unwrap_err();
    assert!(error.to_string().contains("boom"), "{error}");

    let calls = Arc::new(AtomicUsize::new(0));
    let allowed = calls.clone();
    let module = move |x: &Tensor| {
        let calls = calls.clone();
        ops::custom("fragile", &[x], move |t| {
            assert!(calls.fetch_add(1, Ordering::Relaxed) < 100, "worn out");
            t[0].tanh()
        })
    };
    let fast = OparaExecutor::new(module, &x)?;
    assert_eq!(fast.report().mode(), Mode::Threads);
    allowed.store(100, Ordering::Relaxed);
    let error = fast.forward(&x).unwrap_err();
    assert!(error.to_string().contains("worn out"), "{error}");
    allowed.store(0, Ordering::Relaxed);
    assert!(same_bits(&fast.forward(&x)?, &x.tanh()?)?, "a later call is answered again");
    Ok(())
}

#[test]
fn shapes_beyond_the_limit_are_built_again() -> anyhow::Result<()> {
    let builds = Arc::new(AtomicUsize::new(0));
    let counter = builds.clone();
    let module = move |x: &Tensor| {
        counter.fetch_add(1, Ordering::Relaxed);
        ops::tanh(x)
    };
    let x = |n: usize| Tensor::rand(0f32, 1., (n, 3), CPU);
    let fast = OparaExecutor::builder().max_shapes(2).build(module, &x(1)?)?;
    let mut before = builds.load(Ordering::Relaxed);
    let mut was_built = |n: usize| -> Result<bool> {
        assert_eq!(fast.forward(&x(n)?)?.dims(), [n, 3]);
        let now = builds.load(Ordering::Relaxed);
        Ok(std::mem::replace(&mut before, now) != now)
    };
    assert!(!was_built(1)?);
    assert!(was_built(2)?);
    assert!(!was_built(1)?, "two plans are kept");
    assert!(was_built(3)?, "shape 2 was evicted: it was used least recently");
    assert!(!was_built(1)?);
    assert!(was_built(2)?);
    Ok(())
}

#[test]
fn empty_and_scalar_tensors() -> anyhow::Result<()> {
    check_module(|x: &Tensor| ops::add(&ops::tanh(x)?, x), |_| Tensor::zeros((0, 4), DType::F32, CPU))?;
    check_module(|x: &Tensor| ops::add(&ops::tanh(x)?, x), |i| Tensor::new(i as f32, CPU))?;
    Ok(())
}

#[test]
fn the_report_as_json_has_its_keys() -> anyhow::Result<()> {
    let fast = OparaExecutor::new(|x: &Tensor| ops::tanh(x), &Tensor::rand(0f32, 1., (2, 3), CPU)?)?;
    let json = serde_json::to_value(fast.report())?;
    let keys =
        "device mode reason scheduler ops edges edges_reduced width depth streams waits buffers arena_bytes verified \
                build_ms eager_us replay_us";
    for key in keys.split_whitespace() {
        assert!(json.get(key).is_some(), "{key} is missing from {json}");
    }
    for stage in ["forward", "trace", "graph", "profile", "schedule", "memory", "capture", "verify"] {
        assert!(json["build_ms"][stage].is_number(), "stage {stage} is missing");
    }
    Ok(())
}

#[test]
fn forward_requires_exactly_one_output() -> anyhow::Result<()> {
    let x = waves(0, (2, 2))?;
    for outputs in [0, 2] {
        let function = move |t: &[Tensor]| (0..outputs).map(|_| ops::relu(&t[0])).collect();
        let fast = OparaExecutor::builder().build_fn(function, std::slice::from_ref(&x))?;
        let error = Error::from(fast.forward(&x).expect_err("not one output"));
        assert!(matches!(error, Error::NotOneOutput { got } if got == outputs), "{error:?}");
        assert!(error.to_string().contains("OparaExecutor::call"), "{error}");
        assert_eq!(fast.call(std::slice::from_ref(&x))?.len(), outputs);
    }
    Ok(())
}
