//! Shared helpers of the executors' tests.
#![allow(dead_code, unused_imports)] // Each test program uses a part of it.

pub mod backward;
mod beside;
pub mod decoder;
#[path = "../../opara-candle/src/test_device.rs"]
mod device;
pub mod loader;
mod modules;
pub mod precision;
pub mod trainer;
pub mod training;
pub mod writing;

use std::time::Duration;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use candle::{DType, Device, Module, Result, Shape, Tensor};
use opara_candle::plan::graph::OpGraph;
use opara_candle::{Builder, Error, Mode, OnStateful, OparaExecutor, SpanLabels};
use tracing_subscriber::prelude::*;

pub use beside::{beside, Meanwhile, Round};
pub use device::{device_or_skip, devices, gpu, second_gpu};
pub use modules::{assert_nine_shapes_settle, counted, large, stopped_at, where_large};

/// The CPU device.
pub const CPU: &Device = &Device::Cpu;

/// Every dtype that both of candle's backends support.
pub const DTYPES: [DType; 7] = [DType::U8, DType::U32, DType::I64, DType::F16, DType::BF16, DType::F32, DType::F64];

/// Different floats, which depend only on `i` and the shape.
pub fn waves(i: usize, shape: impl Into<Shape>) -> Result<Tensor> {
    let shape = shape.into();
    (Tensor::arange(0f32, shape.elem_count() as f32, CPU)? * (i + 1) as f64)?.sin()?.reshape(shape)
}

/// The largest difference of two tensors, in f64, which is NaN where one alone is.
pub fn furthest(got: &Tensor, expected: &Tensor) -> Result<f64> {
    let numbers = |of: &Tensor| of.to_device(CPU)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
    let apart = numbers(got)?.into_iter().zip(numbers(expected)?).map(|(got, expected)| match got.is_nan() {
        true if expected.is_nan() => 0.,
        _ if got == expected => 0.,
        _ => (got - expected).abs(),
    });
    // `f64::max` would leave out what is no number.
    Ok(apart.fold(0., |most, apart| if apart > most || apart.is_nan() { apart } else { most }))
}

/// A single input: a float matrix that depends on `i`.
pub fn one(i: usize) -> Result<Vec<Tensor>> {
    one_on(i, CPU)
}

/// The same on a device.
pub fn one_on(i: usize, device: &Device) -> Result<Vec<Tensor>> {
    Ok(vec![waves(i, (4, 6))?.to_device(device)?])
}

/// Numbers from 0 to 12, which depend only on `i` and the shape. Short sums and products of them are exact in every
/// dtype, so they do not depend on the order.
pub fn counts(i: usize, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    let shape = shape.into();
    let numbers: Vec<u32> = (0..shape.elem_count()).map(|j| ((j * 7 + i * 11) % 13) as u32).collect();
    Tensor::from_vec(numbers, shape, CPU)?.to_dtype(dtype)
}

/// The bits of every element, with one pattern for all NaNs.
fn bits(tensor: &Tensor) -> Result<Vec<u64>> {
    let flat = tensor.to_device(CPU)?.flatten_all()?;
    if flat.dtype() == DType::I64 {
        return Ok(flat.to_vec1::<i64>()?.into_iter().map(|v| v as u64).collect());
    }
    // A double holds every value of the other dtypes exactly, including the sign of zero.
    let values = flat.to_dtype(DType::F64)?.to_vec1::<f64>()?;
    Ok(values.into_iter().map(|v| if v.is_nan() { u64::MAX } else { v.to_bits() }).collect())
}

/// The number of elements whose bits differ. NaN equals NaN.
pub fn differing(a: &Tensor, b: &Tensor) -> Result<usize> {
    assert_eq!((a.dims(), a.dtype()), (b.dims(), b.dtype()));
    Ok(bits(a)?.iter().zip(bits(b)?).filter(|(a, b)| **a != *b).count())
}

/// Are shape, dtype and bits the same?
pub fn same_bits(a: &Tensor, b: &Tensor) -> Result<bool> {
    Ok(a.dims() == b.dims() && a.dtype() == b.dtype() && bits(a)? == bits(b)?)
}

/// Asserts that both have the same number of tensors, with the same bits.
#[track_caller]
pub fn assert_same(got: &[Tensor], expected: &[Tensor], of: impl std::fmt::Display) {
    assert_eq!(got.len(), expected.len(), "outputs of {of}");
    for (output, (got, expected)) in got.iter().zip(expected).enumerate() {
        let same = same_bits(got, expected).expect("tensors can be read back");
        assert!(same, "output {output} of {of}:\n{got}\nis not\n{expected}");
    }
}

/// The values of a matrix in several memory layouts; the last one is a matrix with other, broadcast values.
pub fn layouts(x: &Tensor) -> Result<Vec<(&'static str, Tensor)>> {
    let (rows, columns) = x.dims2()?;
    let flat = x.flatten_all()?;
    let behind_one = Tensor::cat(&[&flat.narrow(0, 0, 1)?, &flat], 0)?;
    let wider = Tensor::cat(&[&x.narrow(1, 0, 1)?, x], 1)?;
    Ok(vec![
        ("contiguous", x.clone()),
        ("transposed", x.t()?.contiguous()?.t()?),
        ("at an odd offset", behind_one.narrow(0, 1, rows * columns)?.reshape((rows, columns))?),
        ("columns of a wider matrix", wider.narrow(1, 1, columns)?),
        ("one row, broadcast", x.narrow(0, 1, 1)?.broadcast_as((rows, columns))?),
    ])
}

/// Calls an executor with `inputs(1)`, `inputs(0)` and others, with copied and with borrowed outputs. Compares each
/// answer with eager execution, and checks at the end that no later call changed an earlier answer.
#[track_caller]
pub fn answers_like<F>(fast: &OparaExecutor, function: F, inputs: impl Fn(usize) -> Result<Vec<Tensor>>)
where
    F: Fn(&[Tensor]) -> Result<Vec<Tensor>>,
{
    let mut answers = Vec::new();
    for i in [1, 0, 2, 3] {
        let inputs = inputs(i).expect("inputs can be made");
        let expected = function(&inputs).expect("the function takes these inputs");
        let got = fast.call(&inputs).expect("the executor takes what the function takes");
        assert_same(&got, &expected, format_args!("input {i}"));
        fast.call_zero_copy(&inputs, |borrowed| assert_same(borrowed, &expected, format_args!("input {i}, borrowed")))
            .expect("outputs are borrowed");
        answers.push((i, got, expected));
    }
    for (i, got, expected) in answers {
        assert_same(&got, &expected, format_args!("input {i}, after other calls"));
    }
}

/// Builds an executor for `inputs(0)`, asserts that it is replayed in this mode with Opara's schedule, and compares it
/// with eager execution.
#[track_caller]
pub fn replayed<F>(mode: Mode, function: F, inputs: impl Fn(usize) -> Result<Vec<Tensor>>) -> OparaExecutor
where
    F: Fn(&[Tensor]) -> Result<Vec<Tensor>> + Clone + Send + Sync + 'static,
{
    let example = inputs(0).expect("inputs can be made");
    let fast = OparaExecutor::builder()
        .stress(4)
        .benchmark_challengers(false)
        .build_fn(function.clone(), &example)
        .expect("it can be built");
    let report = fast.report();
    assert_eq!((report.mode(), report.is_verified(), &report.reason()), (mode, true, &None), "{report}");
    answers_like(&fast, function, inputs);
    fast
}

/// Builds an executor, and asserts that it runs eagerly, for a reason that contains all of `parts`. Spans become
/// labels.
#[track_caller]
pub fn refused<F>(function: F, inputs: &[Tensor], parts: &[&str]) -> OparaExecutor
where
    F: Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
{
    let labels = tracing_subscriber::registry().with(SpanLabels);
    let fast = tracing::subscriber::with_default(labels, || OparaExecutor::builder().build_fn(function, inputs))
        .expect("what cannot be captured runs eagerly");
    let report = fast.report();
    let reason = report.reason().unwrap_or_default();
    assert!(report.mode() == Mode::Eager && !reason.is_empty(), "{report}");
    for part in parts {
        assert!(reason.contains(part), "the reason does not mention `{part}`: {reason}");
    }
    fast
}

/// Asserts that building an executor fails because the module keeps state, for a reason that contains all of `parts`.
/// Spans become labels.
#[track_caller]
pub fn stateful<F>(builder: Builder, function: F, inputs: &[Tensor], parts: &[&str])
where
    F: Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
{
    let labels = tracing_subscriber::registry().with(SpanLabels);
    let built = tracing::subscriber::with_default(labels, || builder.build_fn(function, inputs));
    let error = built.expect_err("the module keeps state");
    assert!(matches!(error, Error::Stateful { .. }), "{error:?}");
    let reason = error.to_string();
    for part in parts.iter().chain(&["on_stateful"]) {
        assert!(reason.contains(part), "the reason does not mention `{part}`: {reason}");
    }
}

/// Calls an executor of a module that is declared to keep state, and the same module without an executor, alternately.
/// Both must give the same answers from the first call on. `make` makes a module with its own state.
#[track_caller]
pub fn assert_same_state_as<F>(make: impl Fn() -> F, inputs: impl Fn(usize) -> Result<Vec<Tensor>>)
where
    F: Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
{
    let example = inputs(9).expect("inputs can be made");
    let builder = OparaExecutor::builder().on_stateful(OnStateful::Eager);
    let (fast, plain) = (builder.build_fn(make(), &example).expect("building does not call it"), make());
    assert_eq!(fast.report().mode(), Mode::Eager, "{}", fast.report());
    for i in 0..4 {
        let inputs = inputs(i).expect("inputs can be made");
        let expected = plain(&inputs).expect("the function takes these inputs");
        assert_same(&fast.call(&inputs).expect("an answer"), &expected, format_args!("call {i}"));
    }
}

/// An executor, and the number of calls of the function while it was built.
pub fn calls_while_built<F>(builder: Builder, function: F, inputs: &[Tensor]) -> anyhow::Result<(OparaExecutor, usize)>
where
    F: Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
{
    let calls = Arc::new(AtomicUsize::new(0));
    let fast = builder.build_fn(counted(&calls, function), inputs)?;
    Ok((fast, calls.load(Ordering::Relaxed)))
}

/// The executor, or `None` if building fails because the module keeps state, as it may for such a module.
///
/// # Errors
/// Any other error.
pub fn built_or_stateful(built: opara_candle::Result<OparaExecutor>) -> anyhow::Result<Option<OparaExecutor>> {
    match built {
        Ok(fast) => Ok(Some(fast)),
        Err(Error::Stateful { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Asserts that no launch of a scope `branch-0`, `branch-1`, ... depends on a launch of another such scope.
#[track_caller]
pub fn assert_branches_are_free(fast: &OparaExecutor, inputs: Result<Vec<Tensor>>, branches: usize) {
    let inputs = inputs.expect("inputs can be made");
    let trace = fast.trace(&inputs).expect("it was recorded");
    let graph = OpGraph::new(&trace);
    let branch = |op: usize| (0..branches).find(|b| trace.ops[op].label.split('/').any(|p| p == format!("branch-{b}")));
    let bit = |op: usize| branch(op).map_or(0, |b| 1u64 << b);
    // For each launch, the set of branches that it runs after.
    let mut after: Vec<u64> = Vec::new();
    for op in 0..trace.ops.len() {
        let before = graph.predecessors(op).fold(0, |found, p| found | after[p] | bit(p));
        let name = &trace.ops[op].name;
        assert!(bit(op) == 0 || before & !bit(op) == 0, "{:?}: `{name}` waits for branches {before:b}", branch(op));
        after.push(before);
    }
    let found = (0..trace.ops.len()).fold(0, |found, op| found | bit(op));
    assert_eq!(found, (1 << branches) - 1, "every branch launches something");
}

/// The time limit of a test in its own process. Only a deadlock takes that long.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs a test in its own process, so that a crash, a hang or an unusable GPU does not fail other tests. The closure stands in the
/// test's function.
///
/// # Errors
/// The process fails, or is killed after five minutes.
pub fn isolated(test: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    isolated_in(assert_cmd::Command::new(std::env::current_exe()?), test)
}

/// The same in a process that can create files but not write to them, as on a full disk.
pub fn isolated_on_a_full_disk(test: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut shell = assert_cmd::Command::new("sh");
    // With the signal ignored, a write beyond the limit is an error.
    shell.args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\""]).arg(std::env::current_exe()?);
    isolated_in(shell, test)
}

fn isolated_in<F: FnOnce() -> anyhow::Result<()>>(mut alone: assert_cmd::Command, test: F) -> anyhow::Result<()> {
    const RUNNING: &str = "OPARA_ISOLATED_TEST";
    let name = test_around::<F>();
    if std::env::var(RUNNING).is_ok_and(|running| running == name) {
        return test();
    }
    let output = alone.args([name, "--exact", "--nocapture"]).env(RUNNING, name).timeout(LIMIT).output()?;
    let printed = String::from_utf8_lossy(&output.stdout);
    println!("{printed}");
    eprintln!("{}", String::from_utf8_lossy(&output.stderr));
    let status = output.status;
    anyhow::ensure!(status.success(), "in a process of its own, killed after {LIMIT:?} if it hangs: {status}");
    // A name that no test has would pass.
    anyhow::ensure!(printed.contains("1 passed"), "there is no test `{name}`");
    Ok(())
}

/// The name of the test that a closure stands in: the closure's path, without the program before it.
fn test_around<F>() -> &'static str {
    let path = std::any::type_name::<F>();
    let path = path.split_once("::").map_or(path, |(_, path)| path);
    path.split_once("::{{closure}}").map_or(path, |(path, _)| path)
}

/// Two executors of one module with 6 columns are called alternately; one of them lends its outputs to the other.
pub fn alternate_and_borrow<M>(module: M, device: &Device) -> anyhow::Result<()>
where
    M: Fn(&Tensor) -> Result<Tensor> + Clone + Send + Sync + 'static,
{
    let rows = |i: usize, n: usize| waves(i, (n, 6))?.to_device(device);
    let x = rows(0, 4)?;
    let (a, b) = (OparaExecutor::new(module.clone(), &x)?, OparaExecutor::new(module.clone(), &x)?);
    for i in 0..4 {
        let x = [rows(i, 4)?];
        let once = module(&x[0])?;
        let twice = module(&once)?;
        assert_same(&[a.forward(&x[0])?, b.forward(&once)?], &[once.clone(), twice.clone()], i);
        let other = [rows(i, 5 + i)?];
        a.call_zero_copy(&x, |borrowed| -> anyhow::Result<()> {
            b.call_zero_copy(borrowed, |borrowed| assert_same(borrowed, std::slice::from_ref(&twice), i))?;
            assert_same(&a.call(&other)?, &[module(&other[0])?], format_args!("another shape while {i} is borrowed"));
            assert_same(borrowed, std::slice::from_ref(&once), i);
            Ok(())
        })??;
    }
    Ok(())
}

/// The result of `f`, and the events of this level or higher that it logs on this thread, one line per event.
pub fn logged<T>(level: tracing::Level, f: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(Vec<String>, T)> {
    #[derive(Clone)]
    struct Lines(tracing::Level, std::sync::Arc<std::sync::Mutex<Vec<String>>>);
    impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Lines {
        fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
            if *event.metadata().level() <= self.0 {
                let mut line = String::new();
                event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
                    line += &format!("{field}={value:?} ");
                });
                self.1.lock().expect("no panic holds this lock").push(line);
            }
        }
    }
    // With only one subscriber, tracing caches the interest of the first thread that reaches an event.
    static ANOTHER: std::sync::OnceLock<tracing::Dispatch> = std::sync::OnceLock::new();
    ANOTHER.get_or_init(|| tracing::Dispatch::new(tracing_subscriber::registry()));
    let lines = Lines(level, Default::default());
    let result = tracing::subscriber::with_default(tracing_subscriber::registry().with(lines.clone()), f)?;
    let logged = std::mem::take(&mut *lines.1.lock().expect("no panic holds this lock"));
    Ok((logged, result))
}
