//! Modules that are neither `Send` nor `Sync`: created, run and dropped on a capture thread, replayed from any thread.

use std::rc::Rc;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Mutex;
use std::thread;

use candle::{DType, Device, Module, Result, Tensor};
use candle_nn::{seq, Activation, Sequential, VarBuilder};
use opara_candle::{nn, ops, scope, BuiltIn, Error, Mode, OnUncapturable, OparaExecutor};
use rayon::prelude::*;

const CPU: &Device = &Device::Cpu;

const WIDTH: usize = 64;

fn weights() -> VarBuilder<'static> {
    opara_weights::seeded(5, DType::F32, CPU)
}

/// Layers of this crate in a container that is not `Send`.
fn mlp(vb: VarBuilder) -> Result<Sequential> {
    Ok(seq().add(nn::linear(WIDTH, 96, vb.pp("up"))?).add(ops::gelu).add(nn::linear(96, WIDTH, vb.pp("down"))?))
}

/// The same with candle's own layers.
fn plain_mlp(vb: VarBuilder) -> Result<Sequential> {
    let (up, down) = (candle_nn::linear(WIDTH, 96, vb.pp("up"))?, candle_nn::linear(96, WIDTH, vb.pp("down"))?);
    Ok(seq().add(up).add(Activation::GeluPytorchTanh).add(down))
}

fn rows(n: usize) -> Result<Tensor> {
    (Tensor::arange(0f32, (n * WIDTH) as f32, CPU)? * (n + 1) as f64)?.sin()?.reshape((n, WIDTH))
}

#[track_caller]
fn assert_same_bits(a: &Tensor, b: &Tensor) {
    let bits = |t: &Tensor| -> Result<Vec<u32>> {
        Ok(t.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
    };
    assert_eq!(a.dims(), b.dims());
    assert!(bits(a).unwrap() == bits(b).unwrap());
}

/// A module as a function.
fn called(module: impl Module) -> impl Fn(&[Tensor]) -> candle::Result<Vec<Tensor>> {
    move |inputs| Ok(vec![module.forward(&inputs[0])?])
}

#[test]
fn a_sequential_is_replayed_bit_equal() -> anyhow::Result<()> {
    let eager = mlp(weights())?;
    for scheduler in BuiltIn::FIXED {
        let fast =
            OparaExecutor::builder().scheduler(scheduler).build_local(|| Ok(called(mlp(weights())?)), &[rows(2)?])?;
        let report = fast.report();
        assert_eq!((report.mode(), report.counts().ops, report.is_verified()), (Mode::Threads, 3, true), "{report}");
        for n in [2, 7, 2] {
            assert_same_bits(&fast.forward(&rows(n)?)?, &eager.forward(&rows(n)?)?);
        }
    }
    Ok(())
}

#[test]
fn a_sequential_of_plain_layers_runs_eagerly() -> anyhow::Result<()> {
    let fast = OparaExecutor::new_local(|| plain_mlp(weights()), &rows(2)?)?;
    let report = fast.report();
    assert_eq!(report.mode(), Mode::Eager);
    assert!(report.reason().is_some_and(|reason| reason.contains("output 0")));
    let expected = plain_mlp(weights())?.forward(&rows(2)?)?;
    assert_same_bits(&fast.forward(&rows(2)?)?, &expected);
    assert_same_bits(&fast.call_zero_copy(&[rows(2)?], |outputs| outputs[0].clone())?, &expected);
    let refused = OparaExecutor::builder()
        .on_uncapturable(OnUncapturable::Error)
        .build_local(|| Ok(called(plain_mlp(weights())?)), &[rows(2)?]);
    assert!(matches!(refused, Err(Error::UntracedOutput { output: 0 })));
    Ok(())
}

#[test]
fn functions_of_several_tensors() -> anyhow::Result<()> {
    let make = || {
        let model = Rc::new(mlp(weights())?);
        Ok(move |x: &[Tensor]| Ok(vec![ops::add(&model.forward(&x[0])?, &x[1])?, model.forward(&x[1])?]))
    };
    let inputs = [rows(2)?, rows(3)?.narrow(0, 0, 2)?];
    let expected = make()?(&inputs)?;
    let fast = OparaExecutor::builder().build_local(make, &inputs)?;
    assert_eq!((fast.report().mode(), fast.report().counts().ops), (Mode::Threads, 7));
    fast.call(&inputs)?.iter().zip(&expected).for_each(|(got, expected)| assert_same_bits(got, expected));
    Ok(())
}

#[test]
fn a_module_that_cannot_be_created_is_an_error() -> anyhow::Result<()> {
    let error = OparaExecutor::new_local(|| mlp(weights().set_dtype(DType::U8)), &rows(2)?).unwrap_err();
    assert!(matches!(error, Error::Candle(_)), "{error}");
    let make = || if rows(2)?.dim(0)? == 2 { panic!("no such model") } else { mlp(weights()) };
    let error = OparaExecutor::new_local(make, &rows(2)?).unwrap_err();
    assert!(matches!(&error, Error::Panicked { message } if message == "no such model"), "{error}");
    OparaExecutor::new_local(|| mlp(weights()), &rows(2)?)?;
    Ok(())
}

#[test]
fn a_panic_on_a_new_shape_is_an_error() -> anyhow::Result<()> {
    let make = || {
        let model = Rc::new(mlp(weights())?);
        Ok(move |x: &Tensor| if x.dim(0)? == 5 { panic!("five rows") } else { model.forward(x) })
    };
    let fast = OparaExecutor::new_local(make, &rows(2)?)?;
    let error = fast.forward(&rows(5)?).unwrap_err();
    assert!(error.to_string().contains("five rows"), "{error}");
    for n in [2, 3] {
        assert_same_bits(&fast.forward(&rows(n)?)?, &mlp(weights())?.forward(&rows(n)?)?);
    }
    Ok(())
}

#[test]
fn calls_from_several_threads() -> anyhow::Result<()> {
    let replayed = OparaExecutor::new_local(|| mlp(weights()), &rows(2)?)?;
    let eager = OparaExecutor::new_local(|| plain_mlp(weights()), &rows(2)?)?;
    assert_eq!((replayed.report().mode(), eager.report().mode()), (Mode::Threads, Mode::Eager));
    thread::scope(|scope| {
        let call = |n| {
            let (replayed, eager) = (&replayed, &eager);
            scope.spawn(move || -> Result<()> {
                let expected = (mlp(weights())?.forward(&rows(n)?)?, plain_mlp(weights())?.forward(&rows(n)?)?);
                for _ in 0..10 {
                    assert_same_bits(&replayed.forward(&rows(n)?)?, &expected.0);
                    assert_same_bits(&eager.forward(&rows(n)?)?, &expected.1);
                }
                Ok(())
            })
        };
        let threads: Vec<_> = (1..5).map(call).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("the thread panicked"))
    })?;
    Ok(())
}

#[test]
fn all_rayon_threads_may_wait_for_one_module() -> anyhow::Result<()> {
    // Large enough for candle to spread its matmul over rayon's threads.
    let make = || {
        let vb = weights();
        Ok(seq().add(candle_nn::linear(WIDTH, 512, vb.pp("a"))?).add(candle_nn::linear(512, 512, vb.pp("b"))?))
    };
    let fast = OparaExecutor::new_local(make, &rows(512)?)?;
    let expected = make()?.forward(&rows(512)?)?;
    let calls = 2 * rayon::current_num_threads();
    let outputs = (0..calls).into_par_iter().map(|_| fast.forward(&rows(512)?)).collect::<Result<Vec<_>>>()?;
    outputs.iter().for_each(|output| assert_same_bits(output, &expected));
    Ok(())
}

/// Reports the thread that drops it.
struct ReportsDrop(Sender<Option<String>>);

impl Drop for ReportsDrop {
    fn drop(&mut self) {
        let _ = self.0.send(thread::current().name().map(Into::into));
    }
}

#[test]
fn a_module_is_dropped_on_its_thread_while_others_run() -> anyhow::Result<()> {
    let (tell, told) = channel();
    let make = move || {
        let (tells, model) = (ReportsDrop(tell), mlp(weights())?);
        Ok(move |x: &Tensor| {
            let _ = &tells;
            model.forward(x)
        })
    };
    let dropped = OparaExecutor::new_local(make, &rows(2)?)?;

    let ((enter, entered), (leave, left)) = (channel(), channel::<()>());
    let slow = OparaExecutor::new_local(
        move || {
            Ok(move |x: &Tensor| {
                if x.dim(0)? == 3 {
                    enter.send(()).ok();
                    left.recv().ok();
                }
                ops::tanh(x)
            })
        },
        &rows(2)?,
    )?;
    thread::scope(|scope| -> anyhow::Result<()> {
        let caller = scope.spawn(|| slow.forward(&rows(3)?));
        entered.recv()?;
        drop(dropped);
        // The module has a thread of its own, so its drop does not wait for the module that is still running.
        assert_eq!(told.recv()?.as_deref(), Some("opara-capture"));
        assert_same_bits(&slow.forward(&rows(2)?)?, &rows(2)?.tanh()?);
        drop(leave);
        assert_same_bits(&caller.join().expect("the caller panicked")?, &rows(3)?.tanh()?);
        Ok(())
    })?;
    Ok(())
}

/// Panics in its destructor.
struct PanicsOnDrop(Receiver<()>);

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        assert!(self.0.try_recv().is_ok(), "nobody said goodbye");
    }
}

#[test]
fn a_panic_in_a_modules_destructor_is_contained() -> anyhow::Result<()> {
    let (_silent, goodbye) = channel();
    let make = move || {
        let grudge = PanicsOnDrop(goodbye);
        Ok(move |x: &Tensor| {
            let _ = &grudge;
            ops::tanh(x)
        })
    };
    drop(OparaExecutor::new_local(make, &rows(2)?)?);
    OparaExecutor::new_local(|| mlp(weights()), &rows(2)?)?.forward(&rows(2)?)?;
    Ok(())
}

/// Calls an executor in its destructor.
struct CallsOnDrop(OparaExecutor, Sender<Result<Tensor>>);

impl Drop for CallsOnDrop {
    fn drop(&mut self) {
        let _ = self.1.send(rows(2).and_then(|x| self.0.forward(&x)));
    }
}

#[test]
fn a_module_may_call_another_while_it_is_dropped() -> anyhow::Result<()> {
    let (say, said) = channel();
    let make = move || {
        let last_words = CallsOnDrop(OparaExecutor::new_local(|| mlp(weights()), &rows(2)?)?, say);
        Ok(move |x: &Tensor| last_words.0.forward(x))
    };
    drop(OparaExecutor::new_local(make, &rows(2)?)?);
    assert_same_bits(&said.recv()??, &mlp(weights())?.forward(&rows(2)?)?);
    Ok(())
}

#[test]
fn executors_inside_a_module_on_a_capture_thread() -> anyhow::Result<()> {
    let x = rows(2)?;
    let shared = OparaExecutor::new_local(|| mlp(weights().pp("shared")), &x)?;
    let make = move || {
        let sent = OparaExecutor::new(|x: &Tensor| ops::sqr(&ops::tanh(x)?), &rows(2)?)?;
        let loaded = OparaExecutor::new_local(|| mlp(weights()), &rows(2)?)?;
        assert_eq!((sent.report().mode(), loaded.report().mode()), (Mode::Threads, Mode::Threads));
        Ok(move |x: &Tensor| ops::add(&loaded.forward(&sent.forward(x)?)?, &shared.forward(x)?))
    };
    let sent = |x: &Tensor| x.tanh()?.sqr();
    let expected =
        |x: &Tensor| mlp(weights())?.forward(&sent(x)?)?.broadcast_add(&mlp(weights().pp("shared"))?.forward(x)?);
    let outer = OparaExecutor::new_local(make, &x)?;
    assert_eq!((outer.report().mode(), outer.report().counts().ops), (Mode::Threads, 2 + 3 + 3 + 1));
    for n in [2, 3] {
        assert_same_bits(&outer.forward(&rows(n)?)?, &expected(&rows(n)?)?);
    }
    Ok(())
}

#[test]
fn an_eager_module_shares_an_executor_with_other_threads() -> anyhow::Result<()> {
    let shared = std::sync::Arc::new(OparaExecutor::new_local(|| mlp(weights()), &rows(1)?)?);
    let inner = shared.clone();
    let outer = OparaExecutor::new_local(move || Ok(move |x: &Tensor| inner.forward(&x.tanh()?)?.sqr()), &rows(1)?)?;
    assert_eq!(outer.report().mode(), Mode::Eager);
    let eager = mlp(weights())?;
    let expected = (2..50).map(|n| eager.forward(&rows(n)?.tanh()?)?.sqr()).collect::<Result<Vec<_>>>()?;
    let outputs = thread::scope(|scope| {
        // Every call has a new shape, for which the shared executor locks and waits for the thread.
        let other = scope.spawn(|| (2..50).rev().try_for_each(|n| shared.forward(&rows(n)?).map(drop)));
        let outputs = (2..50).map(|n| outer.forward(&rows(n)?)).collect::<Result<Vec<_>>>();
        other.join().expect("the other caller panicked").and(outputs)
    })?;
    outputs.iter().zip(&expected).for_each(|(output, expected)| assert_same_bits(output, expected));
    Ok(())
}

#[test]
fn a_recording_continues_on_the_modules_thread() -> anyhow::Result<()> {
    let inner = OparaExecutor::new_local(|| mlp(weights()), &rows(2)?)?;
    let outer = move |x: &Tensor| {
        let _scope = scope("outer");
        ops::add(&inner.forward(x)?, x)
    };
    let outer = OparaExecutor::new(outer, &rows(2)?)?;
    let trace = outer.trace(&[rows(2)?])?;
    let labels: Vec<&str> = trace.ops.iter().map(|op| op.label.as_str()).collect();
    assert_eq!(labels, ["outer/up/linear", "outer/gelu", "outer/down/linear", "outer/add"]);
    assert_same_bits(&outer.forward(&rows(3)?)?, &(mlp(weights())?.forward(&rows(3)?)? + rows(3)?)?);
    Ok(())
}

#[test]
fn an_executor_built_inside_a_forward_pass() -> anyhow::Result<()> {
    let builds = |x: &Tensor| OparaExecutor::new_local(|| mlp(weights()), x)?.forward(x);
    let fast = OparaExecutor::new_local(move || Ok(builds), &rows(2)?)?;
    assert_same_bits(&fast.forward(&rows(2)?)?, &mlp(weights())?.forward(&rows(2)?)?);
    Ok(())
}

#[test]
fn many_executors_are_built_and_dropped_on_several_threads() -> anyhow::Result<()> {
    let errors = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for n in 1..5 {
            let errors = &errors;
            scope.spawn(move || {
                let build = || OparaExecutor::new_local(|| mlp(weights()), &rows(n)?)?.forward(&rows(n)?);
                errors.lock().unwrap().extend((0..5).filter_map(|_| build().err()));
            });
        }
    });
    assert!(errors.into_inner()?.is_empty());
    Ok(())
}
