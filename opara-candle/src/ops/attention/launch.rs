//! Launches of `attention.cu`.

use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig};

use super::scores::Bias;
use super::tiles::Tiles;
use crate::cuda::driver::kernels::{kernels, ptx, strided, wide, Capabilities};
use crate::cuda::operator::head_rows::HeadRows;

kernels! {
    /// Attention of many queries; queries of `sharing` heads share keys and values.
    Attention<T, B> = "opara_attention_" for [f16 bf16 f32] needs [TensorCores] {
        batch: host, kv_heads: host, of_bias_row: host, numel: usize, queries: u32, keys: u32, heads: u32, sharing: u32, of_keys: u32,
        of_values: u32, y_pitch: u32, scale: f32,
        of_q: u32 [3], of_k: u32 [3], of_v: u32 [3], of_bias: u32 [3],
        q: wide in T [strided([batch, heads, queries], of_q, of_keys)],
        k: wide in T [strided([batch, kv_heads, keys], of_k, of_keys)],
        v: wide in T [strided([batch, kv_heads, keys], of_v, of_values)],
        bias: opt B [strided([batch, heads, queries], of_bias, of_bias_row)],
        y: out T [numel],
        does: u32, cap: f32,
    }

    /// The same on warpgroups.
    Warpgroups<T, B> = "opara_attention_warpgroups_" for [f16 bf16] needs [Warpgroups] {
        batch: host, kv_heads: host, of_bias_row: host, of_all_tiles: host, numel: usize, queries: u32, keys: u32, heads: u32, sharing: u32, of_keys: u32,
        of_values: u32, y_pitch: u32, scale: f32,
        of_q: u32 [3], of_k: u32 [3], of_v: u32 [3], of_bias: u32 [3],
        q: wide in T [strided([batch, heads, queries], of_q, of_keys)],
        k: wide in T [strided([batch, kv_heads, keys], of_k, of_keys)],
        v: wide in T [strided([batch, kv_heads, keys], of_v, of_values)],
        bias: opt B [strided([batch, heads, queries], of_bias, of_bias_row)],
        y: out T [numel],
        does: u32, of_tiles: u32 [2],
        tiles: opt u8 [of_all_tiles],
    }

    /// Attention of queries that each see a range of the keys.
    Ranged<T> = "opara_attention_ranged_" for [f16 bf16 f32] needs [TensorCores] {
        batch: host, kv_heads: host, numel: usize, queries: u32, keys: u32, heads: u32, sharing: u32, of_keys: u32,
        of_values: u32, y_pitch: u32, scale: f32,
        of_q: u32 [3], of_k: u32 [3], of_v: u32 [3],
        q: wide in T [strided([batch, heads, queries], of_q, of_keys)],
        k: wide in T [strided([batch, kv_heads, keys], of_k, of_keys)],
        v: wide in T [strided([batch, kv_heads, keys], of_v, of_values)],
        ranges: wide in u32 [batch * queries * 2],
        y: out T [numel],
    }

    /// The same on warpgroups.
    WarpgroupsRanged<T> = "opara_attention_warpgroups_ranged_" for [f16 bf16] needs [Warpgroups] {
        batch: host, kv_heads: host, numel: usize, queries: u32, keys: u32, heads: u32, sharing: u32, of_keys: u32,
        of_values: u32, y_pitch: u32, scale: f32,
        of_q: u32 [3], of_k: u32 [3], of_v: u32 [3],
        q: wide in T [strided([batch, heads, queries], of_q, of_keys)],
        k: wide in T [strided([batch, kv_heads, keys], of_k, of_keys)],
        v: wide in T [strided([batch, kv_heads, keys], of_v, of_values)],
        ranges: wide in u32 [batch * queries * 2],
        y: out T [numel],
    }
}

/// Queries per block (`QUERIES`) and threads per block of `attention.cu`.
const QUERIES: usize = 64;
const THREADS: u32 = 128;

/// The launch shape of `attention.cu`.
fn blocks([batch, heads, queries]: [usize; 3]) -> LaunchConfig {
    let grid_dim = (queries.div_ceil(QUERIES) as u32, heads as u32, batch as u32);
    LaunchConfig { grid_dim, block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 }
}

/// The launch shape of `warpgroup_attention.cu` for rows of `width` elements at most.
fn warpgroups([batch, heads, queries]: [usize; 3], width: usize, has_bias: bool) -> LaunchConfig {
    // Each of a block's warpgroups has 64 queries.
    let groups = if width > 128 { 2 } else { 1 };
    let keys_of_tile = if width <= 64 && !has_bias { 128 } else { 64 };
    // Two tiles of keys and two of values, and the queries: for each 64 numbers of a row a line of 128 bytes.
    let lines = (4 * keys_of_tile + groups * 64) * width.div_ceil(64);
    LaunchConfig {
        grid_dim: (queries.div_ceil(64 * groups) as u32, heads as u32, batch as u32),
        block_dim: (128 * groups as u32, 1, 1),
        shared_mem_bytes: 128 * lines as u32,
    }
}

/// How scores are computed.
#[derive(Debug, Clone, Copy)]
pub(super) struct OfLaunch {
    /// What products are multiplied by.
    pub scale: f32,
    /// The factor of the hyperbolic tangent of that; 0 if there is none.
    pub cap: f32,
    /// What the bias does.
    pub bias: Bias,
    /// Whether 16-bit operands are as if they were converted to f32, and the result back. The bias is in f32 then.
    pub in_f32: bool,
    /// Whether `y` is `(batch, heads, queries, size of v)`.
    pub by_heads: bool,
}

/// Is there a kernel for heads of these sizes, of queries and keys and of values, that runs on the device?
///
/// # Errors
/// A failed driver call.
pub(super) fn attends(device: &CudaDevice, dtype: DType, sizes: [usize; 2]) -> Result<bool> {
    let is_known = width(dtype, sizes).is_some();
    Ok(is_known && Attention::<(), ()>::runs_on(&Capabilities::of(device, ptx::ATTENTION)?))
}

/// The elements of the longest rows that a kernel takes, of which it has the fewest: what is left of each row counts as zeros.
fn width(dtype: DType, sizes: [usize; 2]) -> Option<usize> {
    let widths: &[usize] = match dtype {
        DType::F16 | DType::BF16 => &[32, 40, 64, 80, 96, 128, 160],
        DType::F32 => &[32, 40, 64, 80],
        _ => return None,
    };
    let are_wide = sizes.iter().all(|&size| size > 0 && size.is_multiple_of(wide(dtype)));
    widths.iter().copied().find(|&width| are_wide && sizes.iter().all(|&size| size <= width))
}

/// The reason why attention runs as several launches, if the compiled code or the device lacks tensor cores.
///
/// # Errors
/// A failed driver call.
pub(in crate::ops) fn lacks(device: &CudaDevice) -> Result<Option<String>> {
    Ok(lacking(&Capabilities::of(device, ptx::ATTENTION)?))
}

fn lacking(of: &Capabilities) -> Option<String> {
    let said = format!(
        "attention runs as several launches: the fused kernel needs the tensor cores of sm_80 ({})",
        of.described()
    );
    (!Attention::<(), ()>::runs_on(of)).then_some(said)
}

/// Attention of `q`, `k` and `v`, each `(batch, heads, tokens, size)`, into `y` as `(batch, queries, heads, size of v)`, or by heads. `k` and `v` may
/// have a fraction of the heads. The bias comes with its strides over batches, heads and queries.
///
/// # Errors
/// Shapes that do not agree, slices that are too short, or a failed launch.
pub(super) fn attention<T: DeviceRepr, B: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    OfLaunch { scale, cap, bias: does, in_f32, by_heads }: OfLaunch,
    [q, k, v]: [(&CudaView<T>, HeadRows); 3],
    bias: Option<(&CudaView<B>, [usize; 3])>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let Sizes { batch, heads, kv_heads, queries, keys, of_keys, of_values, width } =
        Sizes::of(device, dtype, [q.1, k.1, v.1])?;
    let numel = batch * heads * queries * of_values;
    if numel == 0 {
        return Ok(());
    }
    let is_wide = size_of::<B>() != size_of::<T>();
    if is_wide != in_f32 {
        bail!("attention of {dtype:?} has no kernel for a bias of {} bytes", size_of::<B>())
    }
    let numbers = dtype.as_str();
    macro_rules! launch {
        ($kernel:ident { $($more:tt)* }, $variant:expr, $code:expr, $config:expr) => {
            $kernel {
                batch,
                kv_heads,
                of_bias_row: does.row(keys),
                numel,
                queries,
                keys,
                heads,
                sharing: heads / kv_heads,
                of_keys,
                of_values,
                y_pitch: if by_heads { of_values } else { heads * of_values },
                scale,
                of_q: q.1.strides(),
                of_k: k.1.strides(),
                of_v: v.1.strides(),
                of_bias: bias.map_or([0; 3], |(_, strides)| strides),
                q: q.0,
                k: k.0,
                v: v.0,
                bias: bias.map(|(bias, _)| bias),
                y: y.as_view_mut(),
                does: does as usize,
                $($more)*
            }
            .launch(device, &$variant, $code, $config)
        };
    }
    // Scores that a cap or a bias changes behind the products are the other kernel's, which older devices have for all.
    let is_plain = !in_f32 && cap == 0. && matches!(does, Bias::Added | Bias::Hides);
    let has_kernel = is_plain && Warpgroups::<(), ()>::is_for(dtype);
    if has_kernel && Warpgroups::<(), ()>::runs_on(&Capabilities::of(device, ptx::WARPGROUP_ATTENTION)?) {
        let variant = format!("{}{width}_{numbers}", if bias.is_some() { "biased_" } else { "" });
        let config = warpgroups([batch, heads, queries], width, bias.is_some());
        let sizes = [batch, heads, queries, keys];
        let look = |(bias, strides)| Tiles::of(device, bias, strides, sizes, numbers);
        let looked = bias.filter(|(_, strides)| Tiles::pay(*strides, sizes)).map(look).transpose()?;
        let (of_tiles, of_all_tiles) = looked.as_ref().map_or(([0; 2], 0), |tiles| (tiles.strides, tiles.all));
        let tiles = looked.as_ref().map(|tiles| tiles.kinds.as_view());
        let tiles = tiles.as_ref();
        return launch!(Warpgroups { of_all_tiles, of_tiles, tiles }, variant, ptx::WARPGROUP_ATTENTION, config);
    }
    let variant = format!("{}{width}_{numbers}", if in_f32 { "in_f32_" } else { "" });
    launch!(Attention { cap }, variant, ptx::ATTENTION, blocks([batch, heads, queries]))
}

/// [`attention`] of queries that each see a range of the keys, `(batch, queries, 2)`, into `y` as `(batch, queries, heads, size of v)`.
///
/// # Errors
/// As for [`attention`].
pub(super) fn ranged_attention<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    scale: f32,
    [q, k, v]: [(&CudaView<T>, HeadRows); 3],
    ranges: &CudaView<u32>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let Sizes { batch, heads, kv_heads, queries, keys, of_keys, of_values, width } =
        Sizes::of(device, dtype, [q.1, k.1, v.1])?;
    let numel = batch * heads * queries * of_values;
    if numel == 0 {
        return Ok(());
    }
    let variant = format!("{width}_{}", dtype.as_str());
    macro_rules! launch {
        ($kernel:ident, $code:expr, $config:expr) => {
            $kernel {
                batch,
                kv_heads,
                numel,
                queries,
                keys,
                heads,
                sharing: heads / kv_heads,
                of_keys,
                of_values,
                y_pitch: heads * of_values,
                scale,
                of_q: q.1.strides(),
                of_k: k.1.strides(),
                of_v: v.1.strides(),
                q: q.0,
                k: k.0,
                v: v.0,
                ranges,
                y: y.as_view_mut(),
            }
            .launch(device, &variant, $code, $config)
        };
    }
    let code = ptx::WARPGROUP_ATTENTION;
    let has_warpgroups =
        WarpgroupsRanged::<()>::is_for(dtype) && WarpgroupsRanged::<()>::runs_on(&Capabilities::of(device, code)?);
    match has_warpgroups {
        true => launch!(WarpgroupsRanged, code, warpgroups([batch, heads, queries], width, false)),
        false => launch!(Ranged, ptx::ATTENTION, blocks([batch, heads, queries])),
    }
}

/// Sizes of operands that agree.
struct Sizes {
    batch: usize,
    heads: usize,
    kv_heads: usize,
    queries: usize,
    keys: usize,
    of_keys: usize,
    of_values: usize,
    /// Elements of the rows that the kernel takes.
    width: usize,
}

impl Sizes {
    /// Those of queries, keys and values.
    ///
    /// # Errors
    /// Sizes that do not agree, or for which there is no kernel.
    fn of(device: &CudaDevice, dtype: DType, [q, k, v]: [HeadRows; 3]) -> Result<Self> {
        let ([batch, heads, queries, of_keys], [_, kv_heads, keys, _]) = (q.dims(), k.dims());
        let of_values = v.dims()[3];
        let are_shared = kv_heads > 0 && heads.is_multiple_of(kv_heads);
        let agree = k.dims() == [batch, kv_heads, keys, of_keys] && v.dims() == [batch, kv_heads, keys, of_values];
        let sizes = [of_keys, of_values];
        let is_there = agree && are_shared && attends(device, dtype, sizes)?;
        let Some(width) = width(dtype, sizes).filter(|_| is_there) else {
            bail!("no attention kernel for q {:?}, k {:?} and v {:?}", q.dims(), k.dims(), v.dims())
        };
        Ok(Self { batch, heads, kv_heads, queries, keys, of_keys, of_values, width })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::driver::kernels::capabilities::tests::capabilities;

    #[test]
    fn report_says_why_attention_is_not_fused() {
        let said = |target, device| lacking(&capabilities(target, device, 99 << 10));
        assert_eq!((said("sm_90a", 90), said("sm_80", 90), said("sm_86", 86)), (None, None, None));
        assert!(said("sm_75", 75).is_some_and(|said| said.contains("compiled for sm_75")));
    }
}
