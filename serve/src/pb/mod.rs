//! The messages, the service and the client of the Open Inference Protocol over gRPC. Generated from `proto/` by `gen/`.

#![allow(missing_docs, clippy::all, reason = "it is generated")]

include!("inference.rs");

/// The descriptions of these messages and services, encoded, as reflection tells them.
pub const DESCRIPTIONS: &[u8] = include_bytes!("inference.bin");
