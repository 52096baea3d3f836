//! Forward passes of plain candle code while other threads upload and read back, on devices created in three ways. No
//! executor is used.

use std::io::{stdout, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use candle::{Device, Tensor};
use serde::Serialize;

/// Threads that run beside the forward passes.
const THREADS: usize = 5;
/// Layers and width of the network.
const LAYERS: usize = 24;
const WIDTH: usize = 256;

type Make = fn() -> Result<Device>;

const DEVICES: [(&str, Make); 3] = [
    ("opara_candle::cuda_device(0)", || Ok(opara_candle::cuda_device(0)?)),
    ("Device::new_cuda_with_stream(0)", || Ok(Device::new_cuda_with_stream(0)?)),
    ("Device::new_cuda(0)", || Ok(Device::new_cuda(0)?)),
];

/// The measurement of one device.
#[derive(Serialize)]
struct Row {
    device: &'static str,
    passes_per_second: f64,
    worst_pass_ms: f64,
    uploads_per_second: f64,
}

/// Measures each device for a third of `length` and prints a table or JSON.
///
/// # Errors
/// An error of candle, or a machine without a GPU.
pub fn compare(length: Duration, as_json: bool) -> Result<()> {
    let rows = DEVICES.iter().map(|(name, make)| measure(name, &make()?, length / 3)).collect::<Result<Vec<_>>>()?;
    let mut out = stdout().lock();
    if as_json {
        writeln!(out, "{}", serde_json::to_string_pretty(&rows)?)?;
        return Ok(());
    }
    writeln!(out, "{:<36}{:>12}{:>16}{:>14}", "device", "passes/s", "worst pass, ms", "uploads/s")?;
    for Row { device, passes_per_second, worst_pass_ms, uploads_per_second } in rows {
        writeln!(out, "{device:<36}{passes_per_second:>12.1}{worst_pass_ms:>16.2}{uploads_per_second:>14.0}")?;
    }
    Ok(())
}

fn measure(name: &'static str, device: &Device, length: Duration) -> Result<Row> {
    let weight = Tensor::rand(-0.1f32, 0.1, (WIDTH, WIDTH), device)?;
    let x = Tensor::rand(-1f32, 1., (32, WIDTH), device)?;
    let pass = || -> Result<()> {
        let layer = |x: Tensor, _: usize| candle_nn::ops::softmax_last_dim(&x.matmul(&weight)?.tanh()?);
        (0..LAYERS).try_fold(x.clone(), layer)?.sum_all()?.to_scalar::<f32>()?;
        Ok(())
    };
    pass()?;
    let (done, uploads) = (AtomicBool::new(false), AtomicU64::new(0));
    let upload = || -> Result<()> {
        let numbers: Vec<f32> = (0..4096).map(|i| i as f32).collect();
        while !done.load(Ordering::Relaxed) {
            let got = Tensor::from_slice(&numbers, numbers.len(), device)?.to_vec1::<f32>()?;
            ensure!(got == numbers, "an upload is wrong");
            uploads.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(upload)).collect();
        let passes = || -> Result<(u64, f64)> {
            let (mut passes, mut worst) = (0, Duration::ZERO);
            let began = Instant::now();
            while began.elapsed() < length {
                let start = Instant::now();
                pass()?;
                (passes, worst) = (passes + 1, worst.max(start.elapsed()));
            }
            Ok((passes, worst.as_secs_f64() * 1e3))
        };
        let began = Instant::now();
        let passes = passes();
        let seconds = began.elapsed().as_secs_f64();
        done.store(true, Ordering::Relaxed);
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread that uploads does not panic"))?;
        let ((passes, worst_pass_ms), uploads) = (passes?, uploads.load(Ordering::Relaxed));
        Ok(Row {
            device: name,
            passes_per_second: passes as f64 / seconds,
            worst_pass_ms,
            uploads_per_second: uploads as f64 / seconds,
        })
    })
}
