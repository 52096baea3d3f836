//! Launches of `activation.cu`.

use crate::cuda::driver::kernels::kernels;

kernels! {
    /// `activation(x + bias)`.
    BiasAct<T> = "opara_elementwise_bias_act_" for [f16 bf16 f32 f64] {
        numel: u32, columns: u32, activation: i32,
        x: vector in T [numel],
        bias: vector opt T [columns],
        y: out T [numel],
    }

    /// `gradient * activation'(x)`.
    ActivationSlope<T> = "opara_elementwise_activation_slope_" for [f16 bf16 f32] {
        numel: u32, activation: i32,
        x: vector in T [numel],
        gradient: vector in T [numel],
        y: out T [numel],
    }
}
