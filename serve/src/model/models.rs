//! The models of a server, by name.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::{Failure, Kind, Model, Result};

/// Makes a model: reads its files, builds its plans. Blocks.
pub type Loader = Arc<dyn Fn() -> anyhow::Result<Arc<dyn Model>> + Send + Sync>;

/// Where a model stands.
#[derive(Clone)]
#[non_exhaustive]
pub enum State {
    /// It was not loaded yet, or was taken out of service.
    Unloaded,
    /// It takes requests.
    Loaded(Arc<dyn Model>),
    /// It could not be loaded.
    Failed(String),
}

struct Slot {
    loader: Loader,
    state: RwLock<State>,
    /// Held while the model is loaded.
    loading: Mutex<()>,
}

/// The models that the configuration names. No request adds a name or says where files are.
pub struct Models {
    slots: BTreeMap<String, Slot>,
    is_draining: AtomicBool,
}

impl Models {
    /// These models, none of them loaded.
    pub fn new(loaders: impl IntoIterator<Item = (String, Loader)>) -> Self {
        let slot = |loader| Slot { loader, state: RwLock::new(State::Unloaded), loading: Mutex::new(()) };
        let slots = loaders.into_iter().map(|(name, loader)| (name, slot(loader))).collect();
        Self { slots, is_draining: AtomicBool::new(false) }
    }

    /// All names, with their states.
    pub fn states(&self) -> impl Iterator<Item = (&str, State)> {
        self.slots.iter().map(|(name, slot)| (name.as_str(), slot.state.read().clone()))
    }

    /// The state of one.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    pub fn state(&self, name: &str) -> Result<State> {
        Ok(self.slot(name)?.state.read().clone())
    }

    /// The model of this name, to be called.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; [`Kind::Unavailable`] if it is not loaded.
    pub fn get(&self, name: &str) -> Result<Arc<dyn Model>> {
        match self.state(name)? {
            State::Loaded(model) => Ok(model),
            State::Unloaded => Err(Failure::new(Kind::Unavailable, format!("model {name:?} is not loaded"))),
            State::Failed(_) => Err(Failure::new(Kind::Unavailable, format!("model {name:?} could not be loaded"))),
        }
    }

    /// Loads a model, and puts it in the place of the one of this name. Requests go on meanwhile, on the one before, which
    /// answers all that it has taken. Both take memory for that time. Blocks.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; [`Kind::Internal`] if it cannot be loaded: the one before stays.
    pub fn load(&self, name: &str) -> Result<()> {
        let slot = self.slot(name)?;
        let _loading = slot.loading.lock();
        match (slot.loader)() {
            Ok(model) => {
                *slot.state.write() = State::Loaded(model);
                Ok(())
            }
            Err(error) => {
                let reason = format!("{error:#}");
                tracing::error!(model = name, %reason, "a model could not be loaded");
                let mut state = slot.state.write();
                if !matches!(*state, State::Loaded(_)) {
                    *state = State::Failed(reason);
                }
                Err(Failure::new(Kind::Internal, format!("model {name:?} could not be loaded: see the server's log")))
            }
        }
    }

    /// Takes a model out of service. Requests that it has taken are answered.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    pub fn unload(&self, name: &str) -> Result<()> {
        let slot = self.slot(name)?;
        let _loading = slot.loading.lock();
        *slot.state.write() = State::Unloaded;
        Ok(())
    }

    /// Whether the server takes requests: all models are loaded and well, and it does not drain.
    pub fn is_ready(&self) -> bool {
        let is_ready = |(_, state): (&str, State)| matches!(state, State::Loaded(model) if model.is_ready());
        !self.is_draining.load(Ordering::Relaxed) && self.states().all(is_ready)
    }

    /// Whether a new process would do better: a model's devices are lost to this one.
    pub fn is_lost(&self) -> bool {
        self.states().any(|(_, state)| matches!(state, State::Loaded(model) if model.is_lost()))
    }

    /// From now on the server is not ready, so that no new requests are sent to it. Those that come are still answered.
    pub fn announce_drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }

    /// Takes all models out of service, and returns when every request is answered. Blocks.
    pub fn drain(&self) {
        self.announce_drain();
        for (_, state) in self.states() {
            if let State::Loaded(model) = state {
                model.drain();
            }
        }
    }

    fn slot(&self, name: &str) -> Result<&Slot> {
        self.slots.get(name).ok_or_else(|| Failure::new(Kind::NotFound, format!("there is no model {name:?}")))
    }
}

impl State {
    /// Its name in the protocol's index of the repository, and the reason for it.
    pub(crate) fn told(&self) -> (&'static str, String) {
        match self {
            State::Loaded(model) if model.is_ready() => ("READY", String::new()),
            State::Loaded(_) => ("UNAVAILABLE", "its devices are lost, or it is being taken out of service".into()),
            State::Unloaded => ("UNAVAILABLE", "not loaded".into()),
            State::Failed(reason) => ("UNAVAILABLE", reason.clone()),
        }
    }
}
