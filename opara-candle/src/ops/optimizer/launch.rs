//! Launches of `optimizer.cu`.

use cudarc::driver::LaunchConfig;

use crate::cuda::driver::kernels::kernels;

kernels! {
    /// Goes one step on.
    Tick = "opara_elementwise_optimizer_tick_" for [f64] {
        count: u32, sums: guarded f64 [count],
        control: added f64 [16],
    }

    /// Sums of squares: a sum for each block.
    SquareSums<T> = "opara_reduction_square_sums_" for [f16 bf16 f32 f64] {
        numel: u32,
        gradient: in T [numel],
        sums: out f64 [64],
    }

    /// Gradient descent.
    Descent<T> = "opara_elementwise_optimizer_descent_" for [f16 bf16 f32 f64] {
        numel: u32, decay: f64, rate: f64,
        control: in f64 [16],
        gradient: vector in T [numel],
        value: vector added T [numel],
    }

    /// Gradient descent with momentum.
    Momentum<T> = "opara_elementwise_optimizer_momentum_" for [f16 bf16 f32 f64] {
        numel: u32, is_nesterov: i32, momentum: f64, decay: f64, rate: f64,
        control: in f64 [16],
        gradient: vector in T [numel],
        value: vector added T [numel],
        moments: vector cache T [numel],
    }

    /// Adam, or AdamW.
    Adam<T> = "opara_elementwise_optimizer_adam_" for [f16 bf16 f32 f64] {
        numel: u32, is_decoupled: i32, beta1: f64, beta2: f64, eps: f64, decay: f64, rate: f64,
        control: in f64 [16],
        gradient: vector in T [numel],
        value: vector added T [numel],
        moments: vector cache T [2 * numel],
    }

    /// Lion.
    Lion<T> = "opara_elementwise_optimizer_lion_" for [f16 bf16 f32 f64] {
        numel: u32, beta1: f64, beta2: f64, decay: f64, rate: f64,
        control: in f64 [16],
        gradient: vector in T [numel],
        value: vector added T [numel],
        moments: vector cache T [numel],
    }
}

/// Blocks of 256 threads.
pub(super) fn blocks_of_256(blocks: usize) -> LaunchConfig {
    LaunchConfig { grid_dim: (blocks as u32, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 }
}
