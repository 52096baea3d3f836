//! Launches of `tables.cu`.

use crate::cuda::driver::kernels::kernels;

kernels! {
    /// Columns of matrices as rows: each tensor is matrices of so many rows and columns, one behind the other.
    Turn<T> = "opara_layout_turn_" for [f16 bf16 f32] {
        numels: table usize [64], ends: table usize [64], rows: table usize [64], columns: table usize [64],
        from: table in T [64, numels, 1],
        to: table out T [64, numels, 1],
    }

    /// Moving averages of several tensors.
    Average<T> = "opara_elementwise_average_" for [f32] {
        numels: table usize [64], ends: table usize [64], kept: table f64 [64], taken: table f64 [64],
        from: table in T [64, numels, 1],
        to: table added T [64, numels, 1],
    }
}
