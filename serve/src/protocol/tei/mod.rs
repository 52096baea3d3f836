//! The routes of text-embeddings-inference: vectors, weights of words, scores, and tokens.
//!
//! It serves one model. Here the field `model` names one where several have answers of the kind that a route gives.

mod answer;
mod embed;
mod info;
mod inputs;
mod refusal;
mod score;
mod tokens;

use axum::routing::{get, post};
use axum::Router;

pub(crate) use self::refusal::refusal;
use super::service::Service;

/// Its paths.
pub(crate) const PATHS: [&str; 10] = [
    "/decode",
    "/embed",
    "/embed_all",
    "/embed_sparse",
    "/health",
    "/info",
    "/predict",
    "/rerank",
    "/similarity",
    "/tokenize",
];

/// All of its paths.
pub fn router(service: Service) -> Router {
    Router::new()
        .route("/decode", post(tokens::decode))
        .route("/embed", post(embed::vectors))
        .route("/embed_all", post(embed::all_tokens))
        .route("/embed_sparse", post(embed::words))
        .route("/health", get(info::health))
        .route("/info", get(info::info))
        .route("/predict", post(score::predict))
        .route("/rerank", post(score::rerank))
        .route("/similarity", post(embed::similarity))
        .route("/tokenize", post(tokens::tokenize))
        .with_state(service)
}
