//! Layers over [`ops`](crate::ops), with candle-nn's names, shapes and constructors, and a cache for decoders.

mod batch_norm;
mod conv;
mod embedding;
mod kv_cache;
mod linear;
mod lora;
mod norm;
mod weights;

pub use batch_norm::{batch_norm, BatchNorm};
pub use conv::{conv2d, conv2d_no_bias, conv2d_norm, Conv2d};
pub use embedding::{embedding, Embedding};
pub use kv_cache::KvCache;
pub use linear::{linear, linear_no_bias, Linear, PackedLinear};
pub use lora::{lora, LoraLinear};
pub use norm::{layer_norm, rms_norm, LayerNorm, RmsNorm};
