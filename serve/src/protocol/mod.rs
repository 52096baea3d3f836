//! The protocols: each turns its requests into tensors or texts, and answers and failures into its own messages.

mod fields;
pub mod health;
mod message_places;
pub mod oip_grpc;
pub mod oip_http;
mod oip_json;
pub mod openai;
mod raw;
mod service;
pub mod tei;

pub(crate) use message_places::MessagePlaces;
pub(crate) use service::Client;
pub use service::{Limits, Service};

/// Name and version in the metadata of the server.
pub const NAME: &str = "opara-serve";
/// The version of this crate.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Extensions of the Open Inference Protocol that are offered.
pub const EXTENSIONS: [&str; 2] = ["binary_tensor_data", "model_repository"];
/// Parameters of loading and unloading that change nothing: models of this server do not depend on each other.
const HARMLESS_TO_MODELS: &[&str] = &["unload_dependents"];
/// The one version that every model has.
pub const MODEL_VERSION: &str = "1";
