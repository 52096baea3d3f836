//! Launches of `softmax.cu`.

use crate::cuda::driver::kernels::kernels;

kernels! {
    /// Softmax of rows plus a bias, whose rows begin at strides over three dimensions; the kernel takes the inner two `dims`.
    Softmax<T> = "opara_softmax_" for [f16 bf16 f32 f64] {
        of_bias: host, rows: usize, columns: u32, dims: u32 [2], strides: u32 [3],
        x: vector in T [rows * columns],
        bias: vector opt T [of_bias],
        y: out T [rows * columns],
    }

    /// The gradient before a softmax whose result is `y`.
    SoftmaxGradient<T> = "opara_softmax_gradient_" for [f16 bf16 f32 f64] {
        rows: usize, columns: u32,
        y: vector in T [rows * columns],
        gradient: vector in T [rows * columns],
        x: out T [rows * columns],
    }
}
