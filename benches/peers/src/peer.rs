//! The contestants of other frameworks.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{anyhow, Context, Result};
use candle::Device;
use opara_peers::results::{Kernel, Key, Series};
use serde::Deserialize;
use serde_json::{json, Value};

use crate::way::{Ready, Way};
use crate::worker::Worker;

/// The frameworks, by their names in the workers' script and in results.
pub const FRAMEWORKS: [&str; 2] = ["torch", "onnxruntime"];

/// Start of workers; flatten it into a subcommand's arguments.
#[derive(Debug, Clone, clap::Args)]
pub struct Launch {
    /// The Python interpreter with the frameworks (benches/peers/python/requirements.txt).
    #[arg(long, default_value = "python3")]
    python: String,

    /// Folder of the workers' scripts.
    #[arg(long, default_value = "benches/peers/python")]
    scripts: PathBuf,

    /// Folder of exported models and compiled code, kept between runs; default: none is kept.
    #[arg(long)]
    cache: Option<PathBuf>,

    /// Seconds after which a framework that does not answer is given up: compilers tune for minutes.
    #[arg(long, default_value_t = 900)]
    patience: u64,
}

impl Launch {
    /// Is there a cache folder?
    pub fn has_cache(&self) -> bool {
        self.cache.is_some()
    }
}

/// A framework, with the worker that runs it.
pub struct Framework {
    name: &'static str,
    launch: Launch,
    worker: Rc<RefCell<Worker>>,
    hello: Hello,
}

/// A worker's description of itself.
#[derive(Debug, Clone, Deserialize)]
struct Hello {
    versions: BTreeMap<String, String>,
    modes: Vec<String>,
}

impl Framework {
    /// Starts the framework's worker.
    ///
    /// # Errors
    /// The framework is not installed.
    pub fn start(launch: &Launch, name: &'static str) -> Result<Self> {
        let script = launch.scripts.join("worker.py");
        let patience = Duration::from_secs(launch.patience);
        let mut worker = Worker::start(&launch.python, &script, name, launch.cache.as_deref(), patience)?;
        let hello = worker.ask(&json!({"do": "hello"}))?;
        Ok(Self { name, launch: launch.clone(), worker: Rc::new(RefCell::new(worker)), hello })
    }

    /// Versions of the framework and of its parts.
    pub fn versions(&self) -> &BTreeMap<String, String> {
        &self.hello.versions
    }

    /// Its modes, each with its name in results.
    pub fn modes(&self) -> impl Iterator<Item = (String, &str)> {
        self.hello.modes.iter().map(|mode| (format!("{} {mode}", self.name), mode.as_str()))
    }

    /// Starts to load a model; [`loaded`](Self::loaded) waits until it is loaded.
    ///
    /// # Errors
    /// The worker has ended.
    pub fn load(&self, key: &Key, seed: u64) -> Result<()> {
        let Key { model, dtype, batch } = key;
        let load = json!({"do": "load", "model": model, "dtype": dtype, "batch": batch, "seed": seed});
        self.worker.borrow_mut().send(&load)
    }

    /// Waits until the model is loaded.
    ///
    /// # Errors
    /// An error of the framework.
    pub fn loaded(&self) -> Result<()> {
        self.worker.borrow_mut().answer::<Value>().map(drop)
    }

    /// Loads a model again, in a new process.
    ///
    /// # Errors
    /// An error of [`start`](Self::start) or of the framework.
    pub fn reload(&mut self, key: &Key, seed: u64) -> Result<()> {
        *self = Self::start(&self.launch, self.name)?;
        self.load(key, seed)?;
        self.loaded()
    }

    /// Prepares modes for the loaded model, one after the other. If one hangs or crashes the process, it is given up,
    /// and the others are prepared in a new process.
    pub fn prepare_all<'m>(
        &mut self,
        key: &Key,
        seed: u64,
        modes: &[&'m str],
        folder: &Path,
    ) -> BTreeMap<&'m str, Result<Ready>> {
        let mut outcomes = BTreeMap::new();
        for &mode in modes {
            let outcome = self.prepare(mode, folder);
            if self.worker.borrow().has_ended() {
                let others: Vec<&str> = modes.iter().copied().filter(|&other| other != mode).collect();
                outcomes = match self.reload(key, seed) {
                    Ok(()) => self.prepare_all(key, seed, &others, folder),
                    Err(error) => others.into_iter().map(|other| (other, Err(anyhow!("{error:#}")))).collect(),
                };
                outcomes.insert(mode, outcome);
                break;
            }
            outcomes.insert(mode, outcome);
        }
        outcomes
    }

    /// Prepares a mode for the loaded model. `folder` is for files that are passed between processes.
    ///
    /// # Errors
    /// An error of the framework.
    pub fn prepare(&self, mode: &str, folder: &Path) -> Result<Ready> {
        #[derive(Deserialize)]
        struct Prepared {
            seconds: f64,
            peak_bytes: Option<u64>,
            note: Option<String>,
        }
        let file = folder.join("output.safetensors");
        let prepare = json!({"do": "prepare", "mode": mode, "output": file});
        let prepared: Prepared = self.worker.borrow_mut().ask(&prepare)?;
        let output = candle::safetensors::load(&file, &Device::Cpu)?.remove("output").context("there is no output")?;
        Ok(Ready {
            way: Box::new(PeerMode { worker: self.worker.clone(), mode: mode.into() }),
            output,
            setup_s: prepared.seconds,
            peak_bytes: prepared.peak_bytes,
            note: prepared.note,
        })
    }
}

/// One mode of a framework, ready to run.
struct PeerMode {
    worker: Rc<RefCell<Worker>>,
    mode: String,
}

impl Way for PeerMode {
    fn turn(&mut self, calls: usize, flush: bool) -> Result<Series> {
        self.worker.borrow_mut().ask(&json!({"do": "run", "mode": self.mode, "iters": calls, "flush": flush}))
    }

    fn spin(&mut self, time: Duration) -> Result<()> {
        let spin = json!({"do": "spin", "mode": self.mode, "seconds": time.as_secs_f64()});
        self.worker.borrow_mut().ask::<Value>(&spin).map(drop)
    }

    fn kernels(&mut self) -> Result<Vec<Kernel>> {
        #[derive(Deserialize)]
        struct Kernels {
            kernels: Vec<Kernel>,
        }
        let Kernels { kernels } = self.worker.borrow_mut().ask(&json!({"do": "kernels", "mode": self.mode}))?;
        Ok(kernels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker written in shell; one of its modes ends the process.
    const WORKER: &str = r#"
        while read -r line; do
            case "$line" in
                *hello*) echo '{"versions": {}, "modes": ["a", "ends", "b"]}' ;;
                *load*) echo '{}' ;;
                *ends*) exit 1 ;;
                *) cp "$0.output" "$(echo "$line" | sed 's/.*"output":"\([^"]*\)".*/\1/')"; echo '{"seconds": 1}' ;;
            esac
        done"#;

    #[test]
    fn a_mode_that_ends_the_process_does_not_affect_the_others() -> Result<()> {
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("worker.py"), WORKER)?;
        let output = candle::Tensor::new(&[1f32], &Device::Cpu)?;
        output.save_safetensors("output", folder.path().join("worker.py.output"))?;
        let launch = Launch { python: "sh".into(), scripts: folder.path().into(), cache: None, patience: 60 };
        let mut framework = Framework::start(&launch, "torch")?;
        let key = Key { model: "bert".into(), dtype: "f32".into(), batch: 1 };
        framework.load(&key, 0)?;
        framework.loaded()?;
        let outcomes = framework.prepare_all(&key, 0, &["a", "ends", "b"], folder.path());
        let told = outcomes.into_iter().map(|(mode, outcome)| match outcome {
            Ok(ready) => format!("{mode}: ready in {} s", ready.setup_s),
            Err(error) => format!("{mode}: {error}"),
        });
        let expected = ["a: ready in 1 s", "b: ready in 1 s", "ends: the worker has ended"];
        assert_eq!(told.collect::<Vec<_>>(), expected);
        Ok(())
    }
}
