//! The messages, the service and the client of the Open Inference Protocol over gRPC. `build.rs` generates them from `proto/`.

#![allow(missing_docs, clippy::all, reason = "it is generated")]

tonic::include_proto!("inference");

/// The descriptions of these messages and services, encoded, as reflection tells them.
pub const DESCRIPTIONS: &[u8] = tonic::include_file_descriptor_set!("inference");
