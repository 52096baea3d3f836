//! Launches of `double_binary.cu`.

use crate::cuda::driver::kernels::{kernels, strided};

kernels! {
    /// An operation on two operands, each with strides over three dimensions and a step from one column to the next.
    Binary<T> = "opara_elementwise_double_" for [f64] {
        outer: host, numel: usize, columns: u32, middle: u32, inner: u32, of_x: usize [3], x_step: u32, of_y: usize [3],
        y_step: u32,
        x: in T [strided([outer, middle, inner, columns], [of_x[0], of_x[1], of_x[2], x_step], 1)],
        y: in T [strided([outer, middle, inner, columns], [of_y[0], of_y[1], of_y[2], y_step], 1)],
        out: out T [numel],
    }
}
