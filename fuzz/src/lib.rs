//! What the fuzz targets do with an input: each module's `run` reads it as a stranger's file or request. An answer and a typed error are
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

use candle::{DType, Device};
use opara_weights::Checkpoint;

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

/// Requests all tensors of a checkpoint, as a model does.
pub(crate) fn read_weights(checkpoint: &Checkpoint) -> bool {
    for dtype in [DType::F32, DType::F16, DType::U8] {
        let Ok(loaded) = checkpoint.load(dtype, &Device::Cpu) else { return false };
        let names = loaded.surplus();
        for pair in names.windows(2) {
            let _ = loaded.is_copy(&pair[0], &pair[1]);
        }
        for name in names {
            let _ = loaded.vb.get_unchecked(&name);
        }
        let _ = loaded.check(|_| false);
    }
    true
}

/// A file of some kilobytes that takes more than this is a finding: the program ends, since no memory is left.
#[global_allocator]
static MEMORY: cap::Cap<std::alloc::System> = cap::Cap::new(std::alloc::System, 512 << 20);
