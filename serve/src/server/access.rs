//! Who may call, and how many at a time.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{ensure, Context, Result};
use axum::body::{Body, HttpBody};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{header, HeaderMap};
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt;
use subtle::ConstantTimeEq;
use tokio::sync::Semaphore;

use crate::model::{Failure, Kind};
use crate::protocol::{oip_grpc, oip_http, openai, Client};

/// Paths that need no key: probes have none.
const OPEN: [&str; 4] = [
    "/v2/health/live",
    "/v2/health/ready",
    "/inference.GRPCInferenceService/ServerLive",
    "/inference.GRPCInferenceService/ServerReady",
];

/// Who may call.
#[derive(Clone)]
pub(super) struct Access {
    /// None where everybody may.
    keys: Option<Arc<Vec<String>>>,
    places: Arc<Semaphore>,
    /// Makes numbers of clients that nobody can aim at.
    hasher: RandomState,
}

impl Access {
    /// Keys from a file, one a line.
    pub fn new(keys: Option<&Path>, places: usize) -> Result<Self> {
        let keys = keys.map(|path| read(path).with_context(|| path.display().to_string())).transpose()?;
        let places = Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS)));
        Ok(Self { keys: keys.map(Arc::new), places, hasher: RandomState::new() })
    }

    /// The client of a request: its key where keys are needed, else its address.
    fn client(&self, request: &Request) -> Result<Client, Failure> {
        let address = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip());
        let Some(keys) = &self.keys else { return Ok(Client(self.hasher.hash_one(address))) };
        if OPEN.contains(&request.uri().path()) {
            return Ok(Client(0));
        }
        let denied = || Failure::new(Kind::Unauthorized, "a valid key is needed: Authorization: Bearer KEY");
        let given = bearer(request.headers()).ok_or_else(denied)?;
        // All keys are compared, so that the time tells nothing.
        let found = keys.iter().fold(None, |found, key| match bool::from(key.as_bytes().ct_eq(given.as_bytes())) {
            true => Some(key),
            false => found,
        });
        found.map(|key| Client(self.hasher.hash_one(key))).ok_or_else(denied)
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

/// Refuses who may not call, and what is too much; names the client to those behind.
pub(super) async fn admit(State(access): State<Access>, mut request: Request, next: Next) -> Response {
    match access.client(&request) {
        Ok(client) => request.extensions_mut().insert(client),
        Err(failure) => return refuse(&request, &failure),
    };
    if OPEN.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let Ok(place) = access.places.try_acquire_owned() else {
        let mut failure = Failure::new(Kind::Full, "too many requests are under way");
        failure.retry_after = Some(std::time::Duration::from_secs(1));
        return refuse(&request, &failure);
    };
    let response = next.run(request).await;
    match response.body().size_hint().exact() {
        Some(_) => response,
        // A stream is under way until it ends or its client goes.
        None => response.map(|body| {
            Body::new(body.map_frame(move |frame| {
                let _held = &place;
                frame
            }))
        }),
    }
}

/// A failure as the protocol of the request says it.
pub(super) fn refuse(request: &Request, failure: &Failure) -> Response {
    let content_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    match request.uri().path() {
        _ if content_type.is_some_and(|value| value.starts_with("application/grpc")) => {
            oip_grpc::status(failure).into_http()
        }
        path if path.starts_with("/v1/") => openai::refusal(failure),
        _ => oip_http::refusal(failure),
    }
}
