//! Other frameworks' ways to run a model.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
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
        let mut worker = Worker::start(&launch.python, &script, name, launch.cache.as_deref())?;
        let hello = worker.ask(&json!({"do": "hello"}))?;
        Ok(Self { name, launch: launch.clone(), worker: Rc::new(RefCell::new(worker)), hello })
    }

    /// Starts it in a new process.
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    pub fn restart(&mut self) -> Result<()> {
        *self = Self::start(&self.launch, self.name)?;
        Ok(())
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
