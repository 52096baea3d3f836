//! `peers compile`: compiles and exports models for the frameworks in advance, in parallel.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{ensure, Result};
use opara_peers::results::Key;
use tempfile::TempDir;

use crate::bench::SEED;
use crate::parts::Parts;
use crate::peer::{Framework, Launch, FRAMEWORKS};

/// Fills the frameworks' cache of compiled code and exported models, several processes at a time.
///
/// `measure` with the same cache then uses them: it takes less time, and its set-up times are as at a second start.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    parts: Parts,

    /// Processes at a time.
    #[arg(long, default_value_t = 4)]
    jobs: usize,

    #[command(flatten)]
    launch: Launch,
}

impl Args {
    /// Fills the cache.
    ///
    /// # Errors
    /// No cache to fill. An error in one process is printed, and the others continue.
    pub fn run(&self) -> Result<()> {
        ensure!(self.launch.has_cache(), "--cache is required: the folder for compiled code");
        let models = self.parts.models();
        let keys: Vec<Key> = models.flat_map(|(model, dtype)| self.parts.keys(model, dtype)).collect();
        let frameworks = FRAMEWORKS.into_iter().filter(|framework| self.parts.wants_any_of(framework));
        let all: Vec<(&Key, &'static str)> =
            frameworks.flat_map(|framework| keys.iter().map(move |key| (key, framework))).collect();
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..self.jobs.max(1) {
                scope.spawn(|| {
                    while let Some((key, framework)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                        match self.compile(key, framework) {
                            Ok(seconds) => eprintln!("{key}, {framework}: {seconds:.0} s"),
                            Err(error) => eprintln!("{key}, {framework}: {error:#}"),
                        }
                    }
                });
            }
        });
        Ok(())
    }

    /// The seconds that it took.
    fn compile(&self, key: &Key, framework: &'static str) -> Result<f64> {
        let framework = Framework::start(&self.launch, framework)?;
        let modes: Vec<&str> =
            framework.modes().filter(|(name, _)| self.parts.wants(name)).map(|(_, mode)| mode).collect();
        if modes.is_empty() {
            return Ok(0.);
        }
        framework.load(key, SEED)?;
        framework.loaded()?;
        let files = TempDir::new()?;
        modes.iter().map(|mode| Ok(framework.prepare(mode, files.path())?.setup_s)).sum()
    }
}
