//! Launches of `dropout.cu`.

use crate::cuda::driver::kernels::kernels;

kernels! {
    /// Elements whose numbers are `below` become zeros, and the others are multiplied with a factor.
    Dropout<T> = "opara_elementwise_dropout_" for [f16 bf16 f32 f64] {
        numel: u32, seed: u32 [2], site: u32, below: u32, factor: f32,
        step: in f64 [1],
        x: vector in T [numel],
        y: out T [numel],
    }
}
