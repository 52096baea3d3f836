//! A user's lock that is held around a call of one executor and taken inside the module of another that runs eagerly: this library must
//! hold none of its locks while a module runs. And threads of rayon's pool, all of which may wait for builds. On the CPU and on a GPU. GPU
//! tests skip without a GPU or the feature `cuda`, and say so.

use std::sync::mpsc::{channel, Sender};
use std::sync::{Arc, Mutex};

use anyhow::ensure;
use candle::{DType, Device, Module, Result, Tensor};
use opara_candle::{ops, Mode, Numerics, OparaExecutor};
use rayon::prelude::*;

use crate::common::{gpu, isolated, same_bits, waves, CPU};

/// Message for taking a lock.
const FREE: &str = "no panic holds this lock";

/// How the executors are built.
#[derive(Clone, Copy, PartialEq)]
enum Made {
    Here,
    OnTheirThread,
}

fn rows(device: &Device, n: usize) -> Result<Tensor> {
    waves(n, (n, 6))?.to_device(device)
}

fn captured(x: &Tensor) -> Result<Tensor> {
    ops::add(&ops::tanh(x)?, &ops::sqr(x)?)
}

/// Reads its input back while it holds the lock, so it cannot be captured.
fn locking(lock: Arc<Mutex<()>>, entered: Sender<()>) -> impl Fn(&Tensor) -> Result<Tensor> + Send + Sync {
    move |x| {
        // After the call under test, nothing receives any more.
        let _ = entered.send(());
        let _held = lock.lock().expect(FREE);
        let mean = x.mean_all()?.to_scalar::<f32>()?;
        x.affine(mean.into(), 0.)
    }
}

fn executor<M>(made: Made, module: M, x: &Tensor) -> anyhow::Result<OparaExecutor>
where
    M: Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static,
{
    Ok(match made {
        Made::Here => OparaExecutor::new(module, x)?,
        Made::OnTheirThread => OparaExecutor::new_local(move || Ok(module), x)?,
    })
}

/// One thread holds the lock and calls an executor with a new shape, while another thread is in the module in a call
/// with `eager_rows` rows, and waits for the lock.
fn call_both(device: &Device, made: Made, eager_rows: usize) -> anyhow::Result<()> {
    let lock = Arc::new(Mutex::new(()));
    let (enter, entered) = channel();
    let plain = locking(lock.clone(), channel().0);
    let fast = executor(made, captured, &rows(device, 2)?)?;
    let eager = executor(made, locking(lock.clone(), enter), &rows(device, 2)?)?;
    ensure!((fast.report().mode() != Mode::Eager, eager.report().mode()) == (true, Mode::Eager));
    let x = rows(device, eager_rows)?;
    let expected = plain(&x)?;
    entered.try_iter().for_each(drop);
    std::thread::scope(|scope| {
        let held = lock.lock().expect(FREE);
        let other = scope.spawn(|| eager.forward(&x));
        entered.recv()?;
        let new = rows(device, 3)?;
        let answer = fast.forward(&new);
        drop(held);
        let other = other.join().expect("no panic")?;
        ensure!(same_bits(&answer?, &captured(&new)?)?, "the call that the lock is held around");
        ensure!(same_bits(&other, &expected)?, "the call that takes the lock inside");
        Ok(())
    })
}

/// Once with a known shape, which only runs the module, and once with a new shape, which is built.
fn call_both_with_old_and_new_shapes(device: &Device, made: Made) -> anyhow::Result<()> {
    call_both(device, made, 2)?;
    call_both(device, made, 4)
}

#[test]
fn a_lock_around_a_call_and_inside_a_module_on_the_cpu() -> anyhow::Result<()> {
    isolated(|| call_both_with_old_and_new_shapes(CPU, Made::Here))
}

#[test]
fn a_lock_around_a_call_and_inside_a_module_on_its_thread_on_the_cpu() -> anyhow::Result<()> {
    isolated(|| call_both_with_old_and_new_shapes(CPU, Made::OnTheirThread))
}

#[test]
fn a_lock_around_a_call_and_inside_a_module_on_a_gpu() -> anyhow::Result<()> {
    isolated(|| {
        let Some(device) = gpu() else { return Ok(()) };
        call_both_with_old_and_new_shapes(&device, Made::Here)
    })
}

#[test]
fn a_lock_around_a_call_and_inside_a_module_on_its_thread_on_a_gpu() -> anyhow::Result<()> {
    isolated(|| {
        let Some(device) = gpu() else { return Ok(()) };
        call_both_with_old_and_new_shapes(&device, Made::OnTheirThread)
    })
}

#[test]
fn all_rayon_threads_may_build() -> anyhow::Result<()> {
    isolated(|| {
        let Some(device) = gpu() else { return Ok(()) };
        let on_gpu = |n: usize, rows: usize| waves(n, (rows, 64))?.to_device(&device)?.to_dtype(DType::F16);
        let (x, weight, bias) = (on_gpu(1, 32)?, on_gpu(2, 64)?, on_gpu(3, 1)?);
        // A product that is rewritten, and launches that are fused.
        let module = move |x: &Tensor| x.matmul(&weight.t()?)?.broadcast_add(&bias)?.gelu()?.tanh()?.exp();
        let builder = || OparaExecutor::builder().numerics(Numerics::Accurate).cache_folder(None);
        let build = |_| builder().build(module.clone(), &x);
        let builds = (0..2 * rayon::current_num_threads()).into_par_iter().map(build);
        let executors = builds.collect::<opara_candle::Result<Vec<_>>>()?;
        let expected = module(&x)?.to_dtype(DType::F32)?;
        for executor in &executors {
            let apart = (executor.forward(&x)?.to_dtype(DType::F32)? - &expected)?.abs()?.max_all()?;
            ensure!(apart.to_scalar::<f32>()? < 0.02, "{apart}");
        }
        let is_compiled_ahead = |fast: &OparaExecutor| fast.report().build_ms().contains_key("rewrite compile");
        ensure!(executors.iter().all(is_compiled_ahead), "{}", executors[0].report());
        Ok(())
    })
}
