//! The text models of a process.

use std::sync::Arc;

use datafusion::common::{exec_datafusion_err, DataFusionError, Result};
use opara_serve::embed::{EmbedError, Embedder};

/// The text models of a process by name. Clones share them.
#[derive(Clone)]
pub struct Models {
    named: Arc<[(String, Embedder)]>,
    when_lost: fn(),
}

impl Models {
    /// These models. The first is that of `embed(text)`.
    pub fn new(named: impl IntoIterator<Item = (String, Embedder)>) -> Self {
        Self { named: named.into_iter().collect(), when_lost: || () }
    }

    /// None: for processes that plan queries and run none, such as a scheduler.
    pub fn none() -> Self {
        Self::new([])
    }

    /// Calls this when a device is lost to the process, before the query gets the error. An executor ends itself, so that
    /// its work goes to others.
    pub fn when_lost(mut self, act: fn()) -> Self {
        self.when_lost = act;
        self
    }

    /// The model of this name, or the first.
    ///
    /// # Errors
    /// A name that none of them has; no models at all.
    pub fn get(&self, name: Option<&str>) -> Result<&Embedder> {
        let found = self.named.iter().find(|(own, _)| name.is_none_or(|name| name == own));
        found.map(|(_, embedder)| embedder).ok_or_else(|| match name {
            Some(name) if !self.named.is_empty() => {
                exec_datafusion_err!("there is no model '{name}', only {}", self.names().join(", "))
            }
            _ => exec_datafusion_err!("this process has no models: `embed` runs on executors, and on one machine"),
        })
    }

    /// Their names.
    pub fn names(&self) -> Vec<&str> {
        self.named.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// The error of a query whose model failed.
    pub(crate) fn failure(&self, error: EmbedError) -> DataFusionError {
        if matches!(&error, EmbedError::Engine(error) if error.is_fatal()) {
            tracing::error!(%error, "a device is lost");
            (self.when_lost)();
        }
        DataFusionError::Execution(format!("embed: {error}"))
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.named, &other.named)
    }
}

impl std::fmt::Debug for Models {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Models").field(&self.names()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use opara_serve::batch::EngineError;

    use super::*;

    #[test]
    fn only_a_lost_device_is_acted_on() {
        static LOST: AtomicUsize = AtomicUsize::new(0);
        let models = Models::none().when_lost(|| _ = LOST.fetch_add(1, SeqCst));
        models.failure(EngineError::new("out of memory").into());
        assert_eq!(LOST.load(SeqCst), 0);
        let error = models.failure(EngineError::fatal("the GPU fell off the bus").into());
        assert_eq!(LOST.load(SeqCst), 1);
        assert!(error.to_string().contains("fell off the bus"), "{error}");
    }
}
