//! One model on the device, with all contestants that can run it.

use anyhow::{anyhow, bail, Result};
use candle::{DType, Device};
use opara_examples::Native;
use opara_peers::results::{Contestant, Key};

use crate::cell::Benchmark;
use crate::own::{self, Subject};
use crate::peer::Framework;

/// Seed of the weights.
pub const SEED: u64 = 0;

/// One model in one dtype, with all contestants that can run it.
pub struct Bench<'a> {
    model: Native,
    dtype: DType,
    device: &'a Device,
    frameworks: &'a mut [Framework],
    /// Loaded for the first cell.
    subject: Option<Subject>,
}

impl<'a> Bench<'a> {
    /// The model is loaded when it first runs.
    pub fn new(model: Native, dtype: DType, device: &'a Device, frameworks: &'a mut [Framework]) -> Self {
        Self { model, dtype, device, frameworks, subject: None }
    }

    /// Prepares the wanted contestants, lets `f` run them, and returns their outcomes. An error of one contestant is
    /// its outcome.
    ///
    /// # Errors
    /// A model that cannot be built or run eagerly.
    pub fn benchmark(
        &mut self,
        key: &Key,
        wanted: impl Fn(&str) -> bool,
        f: impl FnOnce(&mut Benchmark),
    ) -> Result<Vec<Contestant>> {
        eprintln!("{key}");
        // Loading keeps host and GPU busy, so everything is loaded before anything is timed.
        let loading: Vec<Result<()>> = self.frameworks.iter().map(|framework| framework.load(key, SEED)).collect();
        let subject = match &self.subject {
            Some(subject) => subject,
            None => {
                let with_candle = own::OF_CANDLE.into_iter().any(&wanted);
                self.subject.insert(Subject::load(self.model, SEED, self.dtype, self.device, with_candle)?)
            }
        };
        let input = self.model.example(key.batch, self.dtype, self.device)?;
        let expected = subject.eager(&input)?;
        let loaded = self.frameworks.iter_mut().zip(loading).map(|(framework, loading)| {
            let loaded = loading.and_then(|()| framework.loaded());
            // An error in one cell may have left the process without a usable device.
            loaded.or_else(|_| framework.reload(key, SEED))
        });
        let loaded: Vec<Result<()>> = loaded.collect();

        let mut benchmark = Benchmark::new(expected, tolerance(self.dtype));
        for name in own::names().filter(|name| wanted(name)) {
            benchmark.enter(name.clone(), subject.prepare(&name, &input));
        }
        let files = tempfile::tempdir()?;
        for (framework, loaded) in self.frameworks.iter_mut().zip(loaded) {
            let owned = |(name, mode): (String, &str)| wanted(&name).then(|| (name, mode.to_string()));
            let modes: Vec<(String, String)> = framework.modes().filter_map(owned).collect();
            let names: Vec<&str> = modes.iter().map(|(_, mode)| mode.as_str()).collect();
            let mut ready = match &loaded {
                Ok(()) => framework.prepare_all(key, SEED, &names, files.path()),
                Err(error) => names.iter().map(|&mode| (mode, Err(anyhow!("{error:#}")))).collect(),
            };
            for (name, mode) in &modes {
                benchmark
                    .enter(name.clone(), ready.remove(mode.as_str()).unwrap_or_else(|| bail!("nobody made it ready")));
            }
        }
        f(&mut benchmark);
        Ok(benchmark.outcomes())
    }
}

/// Maximum difference from the eager outputs, relative to the largest value: other kernels round differently, and cuDNN
/// may or may not use TF32.
fn tolerance(dtype: DType) -> f32 {
    match dtype {
        DType::F32 => 2e-3,
        _ => 2e-2,
    }
}
