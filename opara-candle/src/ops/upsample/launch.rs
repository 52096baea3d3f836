//! Launches of `upsample.cu`.

use crate::cuda::driver::kernels::kernels;

kernels! {
    /// The pixels of a larger plane. `down` and `right` are pixels of `x` from one of `y` to the next.
    Upsample<T> = "opara_upsample_" for [f16 bf16 f32] {
        batch: host, numel: usize, channels: u32, h: u32, w: u32, rows: u32, columns: u32, down: f64, right: f64,
        x: vector in T [batch * channels * h * w],
        y: out T [numel],
    }
}
