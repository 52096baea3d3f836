//! Launches of `optimizer.cu`.

use crate::cuda::driver::kernels::kernels;

kernels! {
    /// Goes one step on.
    Tick = "opara_elementwise_optimizer_tick_" for [f64] {
        count: u32, sums: guarded f64 [count],
        control: added f64 [21],
    }

    /// Sums of squares of several tensors: a sum for each block. Blocks before `ends` are a tensor's.
    SquareSums<T> = "opara_reduction_square_sums_" for [f16 bf16 f32 f64] {
        numels: table usize [64], ends: table usize [64],
        gradients: table in T [64, numels, 1],
        blocks: grid [0],
        sums: out f64 [blocks],
    }

    /// Sums of gradients over the batches of a step, and averages of values.
    Blend<T> = "opara_elementwise_optimizer_blend_" for [f16 bf16 f32 f64] {
        is_average: i32, kept: f64,
        numels: table usize [64], ends: table usize [64],
        control: in f64 [21],
        from: table in T [64, numels, 1],
        to: table added T [64, numels, 1],
    }

    /// Values rounded to copies of 16 bits.
    Round<T> = "opara_elementwise_optimizer_round_" for [f16 bf16] {
        numels: table usize [64], ends: table usize [64],
        values: table in f32 [64, numels, 1],
        copies: table out T [64, numels, 1],
    }

    /// Gradient descent.
    Descent<T> = "opara_elementwise_optimizer_descent_" for [f16 bf16 f32 f64] {
        numels: table usize [64], ends: table usize [64], decays: table f64 [64], rates: table f64 [64],
        control: in f64 [21],
        gradients: table in T [64, numels, 1],
        values: table added T [64, numels, 1],
    }

    /// Gradient descent with momentum.
    Momentum<T> = "opara_elementwise_optimizer_momentum_" for [f16 bf16 f32 f64] {
        is_nesterov: i32, momentum: f64,
        numels: table usize [64], ends: table usize [64], decays: table f64 [64], rates: table f64 [64],
        control: in f64 [21],
        gradients: table in T [64, numels, 1],
        values: table added T [64, numels, 1],
        moments: table cache T [64, numels, 1],
    }

    /// Adam, or AdamW.
    Adam<T> = "opara_elementwise_optimizer_adam_" for [f16 bf16 f32 f64] {
        is_decoupled: i32, beta1: f64, beta2: f64, eps: f64,
        numels: table usize [64], ends: table usize [64], decays: table f64 [64], rates: table f64 [64],
        control: in f64 [21],
        gradients: table in T [64, numels, 1],
        values: table added T [64, numels, 1],
        moments: table cache T [64, numels, 2],
    }

    /// Lion.
    Lion<T> = "opara_elementwise_optimizer_lion_" for [f16 bf16 f32 f64] {
        beta1: f64, beta2: f64,
        numels: table usize [64], ends: table usize [64], decays: table f64 [64], rates: table f64 [64],
        control: in f64 [21],
        gradients: table in T [64, numels, 1],
        values: table added T [64, numels, 1],
        moments: table cache T [64, numels, 1],
    }
}
