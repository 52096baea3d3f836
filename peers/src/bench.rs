//! One model on the device, and all that can run it.

use anyhow::{anyhow, Result};
use candle::{DType, Device};
use opara_examples::Native;
use opara_peers::results::{Contestant, Key};

use crate::cell::Race;
use crate::own::{self, Subject};
use crate::peer::Framework;

/// Seed of weights.
pub const SEED: u64 = 0;

/// One model in one type, and all that can run it.
pub struct Bench<'a> {
    model: Native,
    dtype: DType,
    device: &'a Device,
    frameworks: &'a mut [Framework],
    /// Loaded with the first cell.
    subject: Option<Subject>,
}

impl<'a> Bench<'a> {
    /// The model, which is loaded when it first runs.
    pub fn new(model: Native, dtype: DType, device: &'a Device, frameworks: &'a mut [Framework]) -> Self {
        Self { model, dtype, device, frameworks, subject: None }
    }

    /// Makes the contestants that are wanted ready, lets `f` run them, and returns what came of them. What goes wrong with
    /// one is its outcome.
    ///
    /// # Errors
    /// A model that cannot be made or run eagerly.
    pub fn race(
        &mut self,
        key: &Key,
        wanted: impl Fn(&str) -> bool,
        f: impl FnOnce(&mut Race),
    ) -> Result<Vec<Contestant>> {
        eprintln!("{key}");
        // Loading is work for the host and for the GPU: all load, and what is timed comes after.
        let loading: Vec<Result<()>> = self.frameworks.iter().map(|framework| framework.load(key, SEED)).collect();
        let subject = match &self.subject {
            Some(subject) => subject,
            None => self.subject.insert(Subject::load(self.model, SEED, self.dtype, self.device, wanted(own::CANDLE))?),
        };
        let input = self.model.example(key.batch, self.dtype, self.device)?;
        let expected = subject.eager(&input)?;
        let loaded = self.frameworks.iter_mut().zip(loading).map(|(framework, loading)| {
            let loaded = loading.and_then(|()| framework.loaded());
            // An error in one cell may have left the process without a working device.
            loaded.or_else(|_| {
                framework.restart().and_then(|()| framework.load(key, SEED)).and_then(|()| framework.loaded())
            })
        });
        let loaded: Vec<Result<()>> = loaded.collect();

        let mut race = Race::new(expected, tolerance(self.dtype));
        for name in own::names().filter(|name| wanted(name)) {
            race.enter(name.clone(), subject.prepare(&name, &input));
        }
        let files = tempfile::tempdir()?;
        for (framework, loaded) in self.frameworks.iter().zip(&loaded) {
            for (name, mode) in framework.modes().filter(|(name, _)| wanted(name)) {
                let ready = match loaded {
                    Ok(()) => framework.prepare(mode, files.path()),
                    Err(error) => Err(anyhow!("{error:#}")),
                };
                race.enter(name, ready);
            }
        }
        f(&mut race);
        Ok(race.outcomes())
    }
}

/// How far outputs may lie from those of eager execution, as a part of the largest value: other kernels round otherwise,
/// and cuDNN's choose TF32 or not.
fn tolerance(dtype: DType) -> f32 {
    match dtype {
        DType::F32 => 2e-3,
        _ => 2e-2,
    }
}
