//! The fuzz targets: each module's `run` reads an input as a stranger's file or request. An answer and a typed error are
//! both fine; a panic, a hang, and memory out of proportion are findings.

mod config;
mod folder;
mod gguf;
pub mod mutation;
mod parts;
mod pickle;
mod request;
mod safetensors;
pub mod seeds;
mod sentences;
mod start;
mod template;
mod tokenizer;
mod trace;
mod weights;

pub use start::start;

/// Runs a target on one input, and says whether it was read.
pub type Target = fn(&[u8]) -> bool;

/// All targets by name.
pub const TARGETS: [(&str, Target); 9] = [
    ("config", config::run),
    ("gguf", gguf::run),
    ("pickle", pickle::run),
    ("request", request::run),
    ("safetensors", safetensors::run),
    ("sentences", sentences::run),
    ("template", template::run),
    ("tokenizer", tokenizer::run),
    ("trace", trace::run),
];

/// A file of some kilobytes that takes more than this is a finding: the program ends, since no memory is left.
#[global_allocator]
static MEMORY: cap::Cap<std::alloc::System> = cap::Cap::new(std::alloc::System, 512 << 20);
