//! Who may call, and how many at a time.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{ensure, Context, Result};
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{header, HeaderMap};
use axum::middleware::Next;
use axum::response::Response;
use subtle::ConstantTimeEq;
use tokio::sync::Semaphore;

use crate::model::{Failure, Kind, Place};
use crate::protocol::{oip_grpc, oip_http, openai, tei, Client, Limits, MessagePlaces};

use super::activity::Held;
use super::answer::Answer;
use super::arrival::{Arrival, Messages, Say};

/// Paths that need no key: probes have none.
const OPEN: [&str; 7] = [
    "/health",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/v2/health/live",
    "/v2/health/ready",
    "/inference.GRPCInferenceService/ServerLive",
    "/inference.GRPCInferenceService/ServerReady",
];

/// Calls of gRPC that take one message after another.
const STREAMS: [&str; 3] = [
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    "/inference.GRPCInferenceService/ModelStreamInfer",
];

/// Who may call.
#[derive(Clone)]
pub(super) struct Access {
    /// None where everybody may.
    keys: Option<Arc<Vec<String>>>,
    places: Arc<Semaphore>,
    limits: Limits,
    /// Makes numbers of clients that nobody can aim at.
    hasher: RandomState,
}

impl Access {
    /// Keys from a file, one a line.
    pub fn new(keys: Option<&Path>, limits: Limits) -> Result<Self> {
        let keys = keys.map(|path| read(path).with_context(|| path.display().to_string())).transpose()?;
        let places = Arc::new(Semaphore::new(limits.requests.min(Semaphore::MAX_PERMITS)));
        Ok(Self { keys: keys.map(Arc::new), places, limits, hasher: RandomState::new() })
    }

    /// The client of a request: its key where keys are needed, else its address.
    fn client(&self, request: &Request) -> Result<Client, Failure> {
        let address = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip());
        let Some(keys) = &self.keys else { return Ok(Client { turn: self.hasher.hash_one(address), tenant: 0 }) };
        if OPEN.contains(&request.uri().path()) {
            return Ok(Client::default());
        }
        let denied = || Failure::new(Kind::Unauthorized, "a valid key is needed: Authorization: Bearer KEY");
        let given = bearer(request.headers()).ok_or_else(denied)?;
        // All keys are compared, so that the time tells nothing.
        let found = keys.iter().fold(None, |found, key| match bool::from(key.as_bytes().ct_eq(given.as_bytes())) {
            true => Some(key),
            false => found,
        });
        let of = |key: &String| Client { turn: self.hasher.hash_one(key), tenant: self.hasher.hash_one(key) };
        found.map(of).ok_or_else(denied)
    }

    /// Finds out who asks, and takes a place.
    fn enter(&self, request: &mut Request, held: &mut Held) -> Result<(), Failure> {
        let client = self.client(request)?;
        request.extensions_mut().insert(client);
        if OPEN.contains(&request.uri().path()) {
            return Ok(());
        }
        let place = Place::of(&self.places).ok_or_else(MessagePlaces::full)?;
        if STREAMS.contains(&request.uri().path()) {
            // Messages take places from now on.
            let messages = Arc::new(MessagePlaces::new(self.places.clone()));
            request.extensions_mut().insert(messages.clone());
            held.messages = Some(messages);
            return Ok(());
        }
        request.extensions_mut().insert(place.clone());
        held.place = place;
        Ok(())
    }

    /// The request with bounds on the time of its body.
    fn timed(&self, request: Request, held: &Held) -> Request {
        let Limits { body_time, idle_time, .. } = self.limits;
        let say: Say =
            if is_grpc(&request) { |failure| axum::Error::new(oip_grpc::status(&failure)) } else { axum::Error::new };
        let messages = held.messages.clone().map(|places| Messages::new(places, idle_time));
        request.map(|body| Body::new(Arrival::new(body, body_time, messages, say)))
    }
}

fn read(path: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(path)?;
    let keys: HashSet<&str> = text.lines().map(str::trim).filter(|key| !key.is_empty()).collect();
    ensure!(!keys.is_empty(), "there are no keys in it");
    Ok(keys.into_iter().map(String::from).collect())
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, key) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
}

/// Refuses who may not call, and what is too much; names the client to those behind. Holds the request's place until its answer is
/// sent, and bounds the time that its body takes.
pub(super) async fn admit(State(access): State<Access>, mut request: Request, next: Next) -> Response {
    let mut held = Held { underway: request.extensions_mut().remove(), ..Held::default() };
    let version = request.version();
    let response = match access.enter(&mut request, &mut held) {
        Ok(()) => next.run(access.timed(request, &held)).await,
        Err(failure) => refuse(&request, &failure),
    };
    response.map(|body| Body::new(Answer::new(body, held, version)))
}

/// A failure as the protocol of the request says it.
pub(super) fn refuse(request: &Request, failure: &Failure) -> Response {
    match request.uri().path() {
        _ if is_grpc(request) => oip_grpc::status(failure).into_http(),
        path if path.starts_with("/v1/") => openai::refusal(failure),
        path if tei::PATHS.contains(&path) => tei::refusal(failure),
        _ => oip_http::refusal(failure),
    }
}

pub(super) fn is_grpc(request: &Request) -> bool {
    let content_type = request.headers().get(header::CONTENT_TYPE);
    content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}
