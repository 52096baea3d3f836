//! How many answers are wrong where threads share a module that replaces a table: by candle alone, and through an executor.
//!
//!     cargo run --release --features cudnn --example shared_table -- --runs 100
//!
//! Each thread has inputs of its own shape, so that its calls replace the table of another thread, which frees that. On a device with one
//! stream the memory is free behind what reads it. On one with a stream for each thread (`Device::new_cuda`) it is free at once in the
//! order of the thread that frees it, which may write something else there while a launch of the other thread still reads it. That is
//! candle's, with an executor and without: a table that threads share has to be kept until all that read it have waited for the device.

use std::process::ExitCode;
use std::sync::{Barrier, Mutex};

use anyhow::Result;
use candle::{DType, Device, Module, Tensor};
use clap::Parser;
use opara_candle::{cuda_device, ops, OparaExecutor};
use opara_examples::exit_code;

/// Counts wrong answers of threads that share a table.
#[derive(Parser)]
struct Args {
    /// Times that the threads are started.
    #[arg(long, default_value_t = 20)]
    runs: usize,

    #[arg(long, default_value_t = 4)]
    threads: usize,

    /// Calls of each thread.
    #[arg(long, default_value_t = 40)]
    calls: usize,

    /// Products of 1,024 rows and columns that a call launches before it reads the table: they keep the device behind the host.
    #[arg(long, default_value_t = 4)]
    products: usize,
}

/// Message for taking a lock.
const FREE: &str = "no thread panicked";

/// The table for so many rows.
fn table(rows: usize, device: &Device) -> candle::Result<Tensor> {
    Tensor::arange(0f32, 6. * rows as f32, device)?.reshape((rows, 6))
}

/// Adds the table for the rows of its input, of which it keeps the last one.
fn module(
    device: &Device,
    products: usize,
) -> candle::Result<impl Fn(&Tensor) -> candle::Result<Tensor> + Send + Sync> {
    let (kept, weight) = (Mutex::new(None::<Tensor>), Tensor::zeros((1024, 1024), DType::F32, device)?);
    Ok(move |x: &Tensor| {
        let mut kept = kept.lock().expect(FREE);
        if kept.as_ref().is_none_or(|kept| kept.dims() != x.dims()) {
            *kept = Some(table(x.dim(0)?, x.device())?);
        }
        for _ in 0..products {
            ops::matmul(&weight, &weight)?;
        }
        ops::add(x, kept.as_ref().expect("it was made above"))
    })
}

/// Wrong answers of one run.
fn wrong(args: &Args, device: &Device, call: impl Fn(&Tensor) -> Result<Tensor> + Sync) -> Result<usize> {
    let together = Barrier::new(args.threads);
    let of_thread = |thread: usize| -> Result<usize> {
        let x = Tensor::full(0.5f32, (3 + thread, 6), device)?;
        let expected = (&x + table(3 + thread, device)?)?.to_vec2::<f32>()?;
        device.synchronize()?;
        together.wait();
        let answers = (0..args.calls).map(|_| call(&x)).collect::<Result<Vec<_>>>()?;
        device.synchronize()?;
        let answers = answers.iter().map(Tensor::to_vec2::<f32>).collect::<candle::Result<Vec<_>>>()?;
        Ok(answers.iter().filter(|answer| **answer != expected).count())
    };
    std::thread::scope(|scope| {
        let of_thread = &of_thread;
        let threads: Vec<_> = (0..args.threads).map(|thread| scope.spawn(move || of_thread(thread))).collect();
        threads.into_iter().map(|thread| thread.join().expect(FREE)).sum()
    })
}

fn run(args: &Args) -> Result<()> {
    let answers = args.runs * args.threads * args.calls;
    for (streams, device) in [("one stream", cuda_device(0)?), ("a stream for each thread", Device::new_cuda(0)?)] {
        let (mut of_candle, mut of_executor) = (0, 0);
        for _ in 0..args.runs {
            let plain = module(&device, args.products)?;
            of_candle += wrong(args, &device, |x| Ok(plain(x)?))?;
            let example = Tensor::zeros((2, 6), DType::F32, &device)?;
            let module = module(&device, args.products)?;
            // Makes the first table: one that a build makes counts as state.
            module(&example)?;
            let fast = OparaExecutor::new(module, &example)?;
            of_executor += wrong(args, &device, |x| Ok(fast.forward(x)?))?;
        }
        println!("{streams}: of {answers} answers candle gave {of_candle} wrong, and executors {of_executor}");
    }
    Ok(())
}

fn main() -> ExitCode {
    exit_code(run(&Args::parse()))
}
