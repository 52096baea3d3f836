//! Threads with plain candle code while executors are built, as in an application: every result is right, no call
//! fails, and every module is captured. Tests skip without a GPU or the feature `cuda`, and say so.

use anyhow::ensure;
use candle::{DType, Device, Module, Result, Tensor};
use candle_nn::ops::softmax_last_dim;
use opara_candle::{Mode, OparaExecutor};

use crate::common::{beside, counts, devices, gpu, isolated, same_bits, waves, Meanwhile, Round};

const WIDTH: usize = 64;

/// Matmuls, a softmax and a sum, with candle's operators.
fn module(device: &Device) -> Result<impl Module + Clone + Send + Sync + 'static> {
    let weight = waves(9, (WIDTH, WIDTH))?.affine(0.1, 0.)?.to_device(device)?;
    Ok(move |x: &Tensor| softmax_last_dim(&x.matmul(&weight)?.tanh()?.matmul(&weight)?)? + x)
}

/// Inputs with these numbers of rows, with the eager answers.
fn cases(device: &Device, module: &impl Module, rows: impl Iterator<Item = usize>) -> Result<Vec<(Tensor, Tensor)>> {
    let case = |rows| {
        let x = waves(rows, (rows, WIDTH))?.to_device(device)?;
        Ok((x.clone(), module.forward(&x)?))
    };
    let cases = rows.map(case).collect::<Result<Vec<_>>>()?;
    device.synchronize()?;
    Ok(cases)
}

/// Calls an executor with each input, and compares each answer with eager execution.
fn call_all(fast: &OparaExecutor, cases: &[(Tensor, Tensor)]) -> anyhow::Result<()> {
    for (x, expected) in cases {
        let got = fast.forward(x)?;
        ensure!(same_bits(&got, expected)?, "{:?}:\n{got}\nis not\n{expected}", x.shape());
    }
    Ok(())
}

/// The same with shapes that must all be captured.
fn capture_all(fast: &OparaExecutor, cases: &[(Tensor, Tensor)]) -> anyhow::Result<()> {
    for case in cases {
        call_all(fast, std::slice::from_ref(case))?;
        let report = fast.report();
        ensure!((report.mode(), &report.reason()) == (Mode::Graph, &None), "{:?}: {report}", case.0.shape());
    }
    Ok(())
}

/// Numbers that differ in every round; their count varies, too.
fn numbers(round: usize) -> Vec<f32> {
    (0..WIDTH << (round % 8)).map(|i| (i * 31 + round * 17) as f32).collect()
}

/// Creates a tensor, reads it back and compares.
fn upload(device: &Device, round: usize) -> anyhow::Result<()> {
    let expected = numbers(round);
    let tensor = Tensor::from_vec(expected.clone(), expected.len(), device)?;
    let got = tensor.to_vec1::<f32>()?;
    let wrong = got.iter().zip(&expected).filter(|(got, expected)| got != expected).count();
    ensure!(wrong == 0, "{wrong} of {} numbers are wrong: {:?}", expected.len(), &got[..4]);
    Ok(())
}

/// Plain candle code with its right answers, which were computed while nothing else ran.
struct Plain {
    x: Tensor,
    weight: Tensor,
    product: Vec<f32>,
    softmax: Vec<f32>,
}

impl Plain {
    fn new(device: &Device) -> Result<Self> {
        let (x, weight) = (counts(1, (24, WIDTH), DType::F32)?, counts(2, (WIDTH, WIDTH), DType::F32)?);
        // Sums of these are exact in every order.
        let product = x.matmul(&weight)?.flatten_all()?.to_vec1()?;
        let (x, weight) = (x.to_device(device)?, weight.to_device(device)?);
        let softmax = softmax_last_dim(&x)?.flatten_all()?.to_vec1()?;
        Ok(Self { x, weight, product, softmax })
    }

    /// Computes, reads back and compares.
    fn compute(&self) -> anyhow::Result<()> {
        let product = self.x.matmul(&self.weight)?;
        let softmax = softmax_last_dim(&self.x)?;
        ensure!(product.flatten_all()?.to_vec1::<f32>()? == self.product, "a product is wrong:\n{product}");
        ensure!(softmax.flatten_all()?.to_vec1::<f32>()? == self.softmax, "a softmax is wrong:\n{softmax}");
        Ok(())
    }
}

#[test]
fn tensors_created_while_new_shapes_are_built_are_right() -> anyhow::Result<()> {
    isolated(|| {
        for device in devices()? {
            let module = module(&device)?;
            let cases = cases(&device, &module, 2..42)?;
            let fast = OparaExecutor::new(module, &cases[0].0)?;
            beside(|| capture_all(&fast, &cases), &[&|round| upload(&device, round)])?;
        }
        Ok(())
    })
}

/// A build that runs concurrently with others.
type Building = fn(&Device, &[(Tensor, Tensor)]) -> anyhow::Result<()>;

fn new_shapes(device: &Device, cases: &[(Tensor, Tensor)]) -> anyhow::Result<()> {
    capture_all(&OparaExecutor::new(module(device)?, &cases[0].0)?, cases)
}

fn evictions(device: &Device, cases: &[(Tensor, Tensor)]) -> anyhow::Result<()> {
    let fast = OparaExecutor::builder().max_shapes(2).build(module(device)?, &cases[0].0)?;
    // Shapes that keep coming back may run eagerly after a while.
    (0..3).try_for_each(|_| call_all(&fast, &cases[..6]))
}

fn new_executors(device: &Device, cases: &[(Tensor, Tensor)]) -> anyhow::Result<()> {
    for case in cases {
        capture_all(&OparaExecutor::new(module(device)?, &case.0)?, std::slice::from_ref(case))?;
    }
    Ok(())
}

/// Runs computing and uploading threads concurrently with all of `building`, each on its own thread.
fn assert_plain_code_is_right_during(building: &[Building]) -> anyhow::Result<()> {
    for device in devices()? {
        let plain = Plain::new(&device)?;
        let cases = cases(&device, &module(&device)?, 2..20)?;
        let (compute, upload) = (|_| plain.compute(), |round| upload(&device, round));
        let threads: [Round; 4] = [&compute, &compute, &compute, &upload];
        let build = || {
            std::thread::scope(|scope| {
                let (device, cases) = (&device, &cases);
                let builders: Vec<_> = building.iter().map(|build| scope.spawn(move || build(device, cases))).collect();
                builders.into_iter().try_for_each(|builder| builder.join().expect("no panic"))
            })
        };
        beside(build, &threads)?;
    }
    Ok(())
}

#[test]
fn plain_code_is_right_while_new_shapes_are_built() -> anyhow::Result<()> {
    isolated(|| assert_plain_code_is_right_during(&[new_shapes]))
}

#[test]
fn plain_code_is_right_during_evictions() -> anyhow::Result<()> {
    isolated(|| assert_plain_code_is_right_during(&[evictions]))
}

#[test]
fn plain_code_is_right_while_executors_are_built() -> anyhow::Result<()> {
    isolated(|| assert_plain_code_is_right_during(&[new_executors]))
}

#[test]
fn plain_code_is_right_during_all_of_these() -> anyhow::Result<()> {
    isolated(|| assert_plain_code_is_right_during(&[new_shapes, evictions, new_executors]))
}

/// An action of another thread on the device in the middle of a captured forward pass.
type Act = Box<dyn FnMut(usize) -> anyhow::Result<()> + Send>;

fn acts(device: &Device) -> Result<Vec<(&'static str, Act)>> {
    let act = |name, act: fn(&Device, usize) -> anyhow::Result<()>| {
        let device = device.clone();
        (name, Box::new(move |i| act(&device, i)) as Act)
    };
    let plain = Plain::new(device)?;
    let mut kept = (0..64).map(numbers).map(|v| Tensor::new(v, device)).collect::<Result<Vec<_>>>()?;
    device.synchronize()?;
    let drops = device.clone();
    Ok(vec![
        act("uploads and reads back", upload),
        ("computes", Box::new(move |_| plain.compute())),
        (
            "drops a tensor from before",
            Box::new(move |_| {
                // Makes the context current on this thread: cudarc does not do that for per-thread streams.
                drop(Tensor::zeros(1, DType::U8, &drops)?);
                ensure!(kept.pop().is_some(), "too few tensors");
                Ok(())
            }),
        ),
        act("allocates, fills and drops", |device, i| {
            Tensor::zeros(1 << (i % 20), DType::F32, device)?.exp()?;
            Ok(())
        }),
        act("draws random numbers", |device, _| {
            let drawn = Tensor::rand(1f32, 2., 1000, device)?.to_vec1::<f32>()?;
            ensure!(drawn.iter().all(|v| (1. ..=2.).contains(v)), "{:?}", &drawn[..4]);
            Ok(())
        }),
        act("waits for the stream", |device, _| Ok(device.synchronize()?)),
    ])
}

#[test]
fn actions_of_another_thread_during_a_capture_are_not_captured() -> anyhow::Result<()> {
    isolated(|| {
        for device in devices()? {
            let plain = module(&device)?;
            let cases = cases(&device, &plain, 2..5)?;
            for (name, act) in acts(&device)? {
                let other = Meanwhile::new(act);
                let (asks, of) = (other.clone(), plain.clone());
                let asking = move |x: &Tensor| {
                    let y = of.forward(x)?;
                    asks.ask();
                    of.forward(&y)
                };
                let expected = |(x, y): &(Tensor, Tensor)| Ok((x.clone(), plain.forward(y)?));
                let expected = cases.iter().map(expected).collect::<Result<Vec<_>>>()?;
                let fast = OparaExecutor::new(asking, &cases[0].0)?;
                let outcome = capture_all(&fast, &expected);
                let requests = other.finish().map_err(|error| error.context(name))?;
                outcome.map_err(|error| error.context(name))?;
                // At least one eager pass and one captured pass per shape.
                ensure!(requests >= 2 * cases.len(), "{name}: {requests} requests");
            }
        }
        Ok(())
    })
}

/// Creating a device creates cuBLAS and cuRAND handles, which both wait for the whole GPU.
#[test]
fn new_devices_draws_and_waits_on_other_threads_do_not_break_captures() -> anyhow::Result<()> {
    isolated(|| {
        for device in devices()? {
            let module = module(&device)?;
            let cases = cases(&device, &module, 2..32)?;
            let fast = OparaExecutor::new(module, &cases[0].0)?;
            let draw = |device: &Device| -> anyhow::Result<()> {
                let drawn = Tensor::rand(1f32, 2., (32, 32), device)?.flatten_all()?.to_vec1::<f32>()?;
                ensure!(drawn.iter().all(|v| (1. ..=2.).contains(v)), "{:?}", &drawn[..4]);
                Ok(())
            };
            let make = |_| draw(&Device::new_cuda_with_stream(0)?);
            let draw = |_| draw(&device);
            let wait = |_| Ok(device.synchronize()?);
            beside(|| capture_all(&fast, &cases), &[&make, &draw, &wait])?;
        }
        Ok(())
    })
}

/// A captured module that waits or draws is refused; a concurrent capture of another module is not affected.
#[test]
fn a_module_that_waits_or_draws_does_not_break_the_capture_of_another() -> anyhow::Result<()> {
    isolated(|| {
        let Some(device) = gpu() else { return Ok(()) };
        let module = module(&device)?;
        let cases = cases(&device, &module, 2..32)?;
        let fast = OparaExecutor::new(module, &cases[0].0)?;
        let x = cases[0].0.clone();
        let refused = |function: fn(&Tensor) -> Result<Tensor>| -> anyhow::Result<()> {
            let fast = OparaExecutor::new(function, &x)?;
            let report = fast.report();
            ensure!(report.mode() == Mode::Eager && report.reason().is_some(), "{report}");
            ensure!(fast.forward(&x)?.dims() == x.dims());
            Ok(())
        };
        let waits = |_| {
            refused(|x| {
                let y = x.relu()?;
                x.device().synchronize()?;
                y.sqr()
            })
        };
        let draws = |_| refused(|x| x + Tensor::rand(0f32, 1., x.shape(), x.device())?);
        beside(|| capture_all(&fast, &cases), &[&waits, &draws])
    })
}
