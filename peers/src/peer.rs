//! Other frameworks' ways to run a model.

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

/// Frameworks, as the workers' script and the results call them.
pub const FRAMEWORKS: [&str; 2] = ["torch", "onnxruntime"];

/// How workers are started; flatten it into a subcommand's arguments.
#[derive(Debug, Clone, clap::Args)]
pub struct Launch {
    /// The Python that has the frameworks (peers/python/requirements.txt).
    #[arg(long, default_value = "python3")]
    python: String,

    /// Folder of the workers' scripts.
    #[arg(long, default_value = "peers/python")]
    scripts: PathBuf,

    /// Folder that keeps exported models and compiled code from run to run; without it, they are made anew.
    #[arg(long)]
    cache: Option<PathBuf>,

    /// Seconds after which a framework that does not answer is given up: compilers tune for minutes.
    #[arg(long, default_value_t = 900)]
    patience: u64,
}

impl Launch {
    /// Whether anything is kept.
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

/// What a worker says of itself.
#[derive(Debug, Clone, Deserialize)]
struct Hello {
    versions: BTreeMap<String, String>,
    modes: Vec<String>,
}

impl Framework {
    /// Starts the framework.
    ///
    /// # Errors
    /// One that is not there.
    pub fn start(launch: &Launch, name: &'static str) -> Result<Self> {
        let script = launch.scripts.join("worker.py");
        let patience = Duration::from_secs(launch.patience);
        let mut worker = Worker::start(&launch.python, &script, name, launch.cache.as_deref(), patience)?;
        let hello = worker.ask(&json!({"do": "hello"}))?;
        Ok(Self { name, launch: launch.clone(), worker: Rc::new(RefCell::new(worker)), hello })
    }

    /// Versions of it and of what it is made of.
    pub fn versions(&self) -> &BTreeMap<String, String> {
        &self.hello.versions
    }

    /// Its modes, each with its name in results.
    pub fn modes(&self) -> impl Iterator<Item = (String, &str)> {
        self.hello.modes.iter().map(|mode| (format!("{} {mode}", self.name), mode.as_str()))
    }

    /// Begins to load a model; [`loaded`](Self::loaded) waits for the end.
    ///
    /// # Errors
    /// A worker that has ended.
    pub fn load(&self, key: &Key, seed: u64) -> Result<()> {
        let Key { model, dtype, batch } = key;
        let load = json!({"do": "load", "model": model, "dtype": dtype, "batch": batch, "seed": seed});
        self.worker.borrow_mut().send(&load)
    }

    /// Waits until the model is loaded.
    ///
    /// # Errors
    /// Those of the framework.
    pub fn loaded(&self) -> Result<()> {
        self.worker.borrow_mut().answer::<Value>().map(drop)
    }

    /// Loads a model anew, in a new process.
    ///
    /// # Errors
    /// Those of [`start`](Self::start) and of the framework.
    pub fn reload(&mut self, key: &Key, seed: u64) -> Result<()> {
        *self = Self::start(&self.launch, self.name)?;
        self.load(key, seed)?;
        self.loaded()
    }

    /// Makes modes ready to run the loaded model, one after the other. One that takes the process along, as it hangs or
    /// crashes, is given up, and the others are made ready in a new process.
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

    /// Makes a mode ready to run the loaded model. `folder` is for files that pass between processes.
    ///
    /// # Errors
    /// Those of the framework.
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

    /// A worker of shell: of its modes one ends the process.
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
    fn what_takes_the_process_along_leaves_the_others() -> Result<()> {
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
