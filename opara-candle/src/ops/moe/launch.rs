//! Launches of `moe.cu`.

use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig};

use crate::cuda::driver::kernels::{blocks, kernels, ptx, wide};
use crate::ops::Activation;

kernels! {
    /// Pairs of rows and experts ordered by expert, and tiles of them: expert, first and count each.
    Groups = "opara_gather_expert_rows_" for [u32] {
        pairs: u32, experts: u32, tile: u32, tiles: u32,
        ids: in u32 [pairs],
        y: out u32 [pairs + 3 * tiles],
    }

    /// `activation(x * gateᵀ) * (x * upᵀ)` of each pair, with its expert's weight.
    Gated<T> = "opara_matmul_experts_gated_" for [f16 bf16 f32] {
        experts: host, tiles: grid [1], pairs: u32, columns: u32, inner: u32, sharing: u32, activation: i32,
        groups: in u32 [pairs + 3 * tiles],
        x: wide in T [pairs / sharing * inner],
        weight: wide in T [experts * 2 * columns * inner],
        y: out T [pairs * columns],
    }

    /// `x * weightᵀ` of each pair.
    Down<T> = "opara_matmul_experts_down_" for [f16 bf16 f32] {
        experts: host, tiles: grid [1], pairs: u32, columns: u32, inner: u32,
        groups: in u32 [pairs + 3 * tiles],
        x: wide in T [pairs * inner],
        weight: wide in T [experts * columns * inner],
        y: out f32 [pairs * columns],
    }

    /// Sums over the experts of each row.
    Sums<T> = "opara_elementwise_expert_sums_" for [f16 bf16 f32] {
        numel: u32, columns: u32, chosen: u32, experts: u32,
        ids: in u32 [numel / columns * chosen],
        weights: in f32 [numel / columns * chosen],
        parts: in f32 [numel * chosen],
        y: out T [numel],
    }
}

/// `MAX_EXPERTS`, `WARPS` and `LOADS` of the kernels.
const MAX_EXPERTS: usize = 1024;
const WARPS: usize = 8;
const LOADS: usize = 4;

/// Sizes of a layer of experts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub dtype: DType,
    /// Rows of `x`, and their length.
    pub rows: usize,
    pub hidden: usize,
    pub experts: usize,
    /// Experts of a row.
    pub chosen: usize,
    /// Results of an expert's gate.
    pub inner: usize,
}

impl Sizes {
    /// Is there a kernel for these?
    pub fn are_known(&self) -> bool {
        let Self { dtype, rows, hidden, experts, chosen, inner } = *self;
        let is_some = [rows, hidden, experts, chosen, inner].iter().all(|size| *size > 0);
        let longest = hidden.max(2 * inner);
        let is_countable = (rows * chosen).checked_mul(longest).is_some_and(|all| all <= i32::MAX as usize);
        let are_wide = [hidden, inner].iter().all(|size| size.is_multiple_of(wide(dtype)));
        Gated::<()>::is_for(dtype)
            && is_some
            && is_countable
            && are_wide
            && experts <= MAX_EXPERTS
            && self.tiles() <= 65_535
    }

    pub fn pairs(&self) -> usize {
        self.rows * self.chosen
    }

    /// Pairs of a tile: one where few experts have several, so that no room is kept for others.
    fn tile(&self) -> usize {
        if 2 * self.pairs() <= self.experts {
            1
        } else {
            8
        }
    }

    /// The number of tiles that is enough for any choice of experts.
    fn tiles(&self) -> usize {
        self.pairs().min(self.experts + self.pairs() / self.tile())
    }

    /// Numbers that order the pairs.
    pub fn groups(&self) -> usize {
        self.pairs() + 3 * self.tiles()
    }

    fn product(&self, columns: usize, results: usize) -> (String, LaunchConfig) {
        let blocks = columns.div_ceil(WARPS * results) as u32;
        let config = LaunchConfig {
            grid_dim: (blocks, self.tiles() as u32, 1),
            block_dim: (32 * WARPS as u32, 1, 1),
            shared_mem_bytes: 0,
        };
        (format!("by{}_{}", self.tile(), self.dtype.as_str()), config)
    }
}

/// Orders the pairs of these experts.
///
/// # Errors
/// A failed launch.
pub(super) fn groups(device: &CudaDevice, of: &Sizes, ids: &CudaView<u32>, y: &mut CudaSlice<u32>) -> Result<()> {
    let (pairs, tile, tiles) = (of.pairs(), of.tile(), of.tiles());
    let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (MAX_EXPERTS as u32, 1, 1), shared_mem_bytes: 0 };
    Groups { pairs, experts: of.experts, tile, tiles, ids, y: y.as_view_mut() }.launch(device, "u32", ptx::MOE, config)
}

/// The gated unit of each pair.
///
/// # Errors
/// A failed launch.
pub(super) fn gated<T: DeviceRepr>(
    device: &CudaDevice,
    (of, activation): (&Sizes, Activation),
    groups: &CudaView<u32>,
    [x, weight]: [&CudaView<T>; 2],
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let Sizes { experts, hidden, inner, chosen, .. } = *of;
    let (variant, config) = of.product(inner, LOADS / 2);
    Gated {
        experts,
        tiles: of.tiles(),
        pairs: of.pairs(),
        columns: inner,
        inner: hidden,
        sharing: chosen,
        activation: activation.code(),
        groups,
        x,
        weight,
        y: y.as_view_mut(),
    }
    .launch(device, &variant, ptx::MOE, config)
}

/// The product of each pair with its expert's last weight.
///
/// # Errors
/// A failed launch.
pub(super) fn down<T: DeviceRepr>(
    device: &CudaDevice,
    of: &Sizes,
    groups: &CudaView<u32>,
    [x, weight]: [&CudaView<T>; 2],
    y: &mut CudaSlice<f32>,
) -> Result<()> {
    let Sizes { experts, hidden, inner, .. } = *of;
    let (variant, config) = of.product(hidden, LOADS);
    let (tiles, pairs) = (of.tiles(), of.pairs());
    Down { experts, tiles, pairs, columns: hidden, inner, groups, x, weight, y: y.as_view_mut() }.launch(
        device,
        &variant,
        ptx::MOE,
        config,
    )
}

/// The sum over each row's experts.
///
/// # Errors
/// More elements than the kernel counts, or a failed launch.
pub(super) fn sums<T: DeviceRepr>(
    device: &CudaDevice,
    of: &Sizes,
    ids: &CudaView<u32>,
    [weights, parts]: [&CudaView<f32>; 2],
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let Sizes { dtype, rows, hidden, experts, chosen, .. } = *of;
    let numel = rows * hidden;
    if numel > i32::MAX as usize {
        bail!("{rows} rows of {hidden} elements are more than the kernel counts")
    }
    Sums { numel, columns: hidden, chosen, experts, ids, weights, parts, y: y.as_view_mut() }.launch(
        device,
        dtype.as_str(),
        ptx::MOE,
        blocks(numel),
    )
}
