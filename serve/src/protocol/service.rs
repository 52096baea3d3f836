//! What all protocols share: models, limits, counters, and the call of a model.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::request::Parts;
use axum::http::Extensions;

use crate::batch::Registry;
use crate::embed::{Answers, TextOptions};
use crate::generate::Answer;
use crate::model::{Context, Embeddings, Failure, Kind, Model, Models, Result, State, Tensor, Texts, Writing};

use super::MODEL_VERSION;

/// Bounds on requests.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of a body or of a message of gRPC.
    pub body_bytes: usize,
    /// How long a body may take to arrive.
    pub body_time: Duration,
    /// Rows of a request.
    pub rows: usize,
    /// Requests that may be under way.
    pub requests: usize,
    /// How long a request may take from its arrival to its answer. Requests may ask for less.
    pub request_time: Duration,
    /// How long a stream may be without a message.
    pub idle_time: Duration,
    /// Whether fields of requests that are not supported are ignored, with a warning.
    pub allows_unread: bool,
}

/// What all protocols share. Clones share it.
#[derive(Clone)]
pub struct Service {
    /// The models.
    pub models: Arc<Models>,
    /// The counters.
    pub registry: Arc<Registry>,
    /// The bounds.
    pub limits: Limits,
    /// Whether clients may load and unload models.
    pub may_control: bool,
}

/// Who sent a request, as the server found out; put into its extensions.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Client {
    /// Clients take turns.
    pub turn: u64,
    /// Whose the key is; 0 where none is needed.
    pub tenant: u64,
}

impl Service {
    /// Who asks, as a request's extensions say, and until when. `timeout` is the client's, in microseconds.
    ///
    /// # Errors
    /// A timeout of zero.
    pub(crate) fn context(&self, of: &Extensions, timeout: Option<u64>) -> Result<Context> {
        let time = match timeout {
            Some(0) => return Err(Failure::invalid("a timeout of 0 leaves no time for an answer")),
            Some(micros) => Duration::from_micros(micros).min(self.limits.request_time),
            None => self.limits.request_time,
        };
        let Client { turn, tenant } = of.get().copied().unwrap_or_default();
        let place = of.get().cloned().unwrap_or_default();
        Ok(Context { client: turn, tenant, place, deadline: Instant::now() + time })
    }

    /// The model of a request. An empty version means the one that there is.
    pub(crate) fn model(&self, name: &str, version: &str) -> Result<Arc<dyn Model>> {
        let model = self.models.get(name)?;
        match version {
            "" | MODEL_VERSION => Ok(model),
            _ => Err(Failure::new(Kind::NotFound, format!("model {name:?} has version {MODEL_VERSION} and no other"))),
        }
    }

    /// The outputs that are asked for, all where none is named.
    pub(crate) async fn infer(
        &self,
        (name, version): (&str, &str),
        (inputs, options): (Vec<Tensor>, TextOptions),
        outputs: &[&str],
        context: Context,
    ) -> Result<Vec<Tensor>> {
        let model = self.model(name, version)?;
        let known = model.outputs();
        if let Some(unknown) = outputs.iter().find(|output| known.iter().all(|spec| spec.name != **output)) {
            return Err(Failure::invalid(format!("model {name:?} has no output {unknown:?}")));
        }
        inputs.iter().filter_map(|tensor| tensor.shape.first()).try_for_each(|&rows| self.check_rows(rows))?;
        let all = model.infer(inputs, options, context).await?;
        if outputs.is_empty() {
            return Ok(all);
        }
        Ok(all.into_iter().filter(|tensor| outputs.contains(&tensor.name.as_str())).collect())
    }

    /// The vectors of texts.
    pub(crate) async fn embed(
        &self,
        name: &str,
        texts: Texts,
        options: TextOptions,
        context: Context,
    ) -> Result<Embeddings> {
        self.check_rows(texts.len())?;
        self.model(name, "")?.embed(texts, options, context).await
    }

    /// The model of this name, or the only one, whose answers are of a kind that `fits`; `kind` is that kind for errors.
    pub(crate) fn reader(
        &self,
        name: Option<&str>,
        fits: fn(&Answers) -> bool,
        kind: &str,
    ) -> Result<(String, Arc<dyn Model>)> {
        let is_fit = |model: &Arc<dyn Model>| model.reader().is_some_and(|reader| fits(reader.answers));
        let other = |message: String| Failure::new(Kind::OtherModel, message);
        if let Some(name) = name {
            let model = self.model(name, "")?;
            return match is_fit(&model) {
                true => Ok((name.to_owned(), model)),
                false => Err(other(format!("model {name:?} is not {kind}"))),
            };
        }
        let mut loaded: Vec<_> = self.loaded().filter(|(_, model)| is_fit(model)).collect();
        match loaded.len() {
            0 => Err(other(format!("no model is {kind}"))),
            1 => Ok(loaded.swap_remove(0)),
            _ => {
                let names: Vec<&str> = loaded.iter().map(|(name, _)| name.as_str()).collect();
                Err(Failure::invalid(format!("several models are {kind}: name one in `model` ({})", names.join(", "))))
            }
        }
    }

    /// The models that take requests, by name.
    pub(crate) fn loaded(&self) -> impl Iterator<Item = (String, Arc<dyn Model>)> + '_ {
        self.models.states().filter_map(|(name, state)| match state {
            State::Loaded(model) => Some((name.to_owned(), model)),
            _ => None,
        })
    }

    /// Texts behind prompts, as they come. The texts of the first prompt have the first indices.
    pub(crate) async fn generate(&self, name: &str, writing: Writing, context: Context) -> Result<Vec<Answer>> {
        self.check_rows(writing.prompts.len().saturating_mul(writing.each))?;
        self.model(name, "")?.generate(writing, context).await
    }

    /// Loads a model on a thread that may block.
    pub(crate) async fn load(&self, name: String) -> Result<()> {
        self.may_control()?;
        let models = self.models.clone();
        let loaded = tokio::task::spawn_blocking(move || models.load(&name)).await;
        loaded.unwrap_or_else(|_| Err(Failure::new(Kind::Internal, "loading the model panicked")))
    }

    /// Takes a model out of service.
    pub(crate) async fn unload(&self, name: String) -> Result<()> {
        self.may_control()?;
        let models = self.models.clone();
        let unloaded = tokio::task::spawn_blocking(move || models.unload(&name)).await;
        unloaded.unwrap_or_else(|_| Err(Failure::new(Kind::Internal, "unloading the model panicked")))
    }

    fn may_control(&self) -> Result<()> {
        match self.may_control {
            true => Ok(()),
            false => Err(Failure::new(Kind::Forbidden, "this server does not let clients load and unload models")),
        }
    }

    /// The body of a request over HTTP/1 or HTTP/2, within the limits.
    pub(crate) async fn body(&self, parts: &Parts, body: axum::body::Body) -> Result<bytes::Bytes> {
        if let Some(encoding) = parts.headers.get("content-encoding").filter(|value| *value != "identity") {
            return Err(Failure::new(Kind::Encoding, format!("bodies encoded by {encoding:?} are not taken")));
        }
        let body_bytes = self.limits.body_bytes;
        let too_large = || Failure::new(Kind::TooLarge, format!("the body exceeds {body_bytes} bytes"));
        let announced = parts.headers.get("content-length").and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if announced.is_some_and(|bytes| bytes > body_bytes as u64) {
            return Err(too_large());
        }
        axum::body::to_bytes(body, body_bytes).await.map_err(|error| {
            let is_large = cause::<http_body_util::LengthLimitError>(&error).is_some();
            let failure = || Failure::invalid("the body ended early, or is not what its content-encoding says");
            if is_large {
                too_large()
            } else {
                cause(&error).cloned().unwrap_or_else(failure)
            }
        })
    }

    /// Counts a request by how it ended.
    pub(crate) fn count<T>(&self, protocol: &'static str, result: &Result<T>) {
        let outcome = result.as_ref().map_or_else(Failure::outcome, |_| "ok");
        self.registry.count(protocol, outcome);
        if let Err(failure) = result {
            // Without its message, which may quote the request.
            tracing::debug!(protocol, outcome = failure.outcome(), "a request failed");
        }
    }

    /// Refuses a request of more rows than are taken.
    ///
    /// # Errors
    /// [`Kind::TooLarge`].
    pub(crate) fn check_rows(&self, rows: usize) -> Result<()> {
        let limit = self.limits.rows;
        if rows <= limit {
            return Ok(());
        }
        Err(Failure::new(Kind::TooLarge, format!("the request has {rows} rows, and at most {limit} are taken")))
    }
}

/// The error of this type that is behind an error.
fn cause<E: std::error::Error + 'static>(error: &axum::Error) -> Option<&E> {
    let first = std::error::Error::source(error);
    std::iter::successors(first, |error| error.source()).find_map(|error| error.downcast_ref())
}
