//! Launches of `attention_gradient.cu`.

use candle::{bail, CudaDevice, DType, Result, WithDType};
use cudarc::driver::{CudaView, CudaViewMut, DeviceRepr, LaunchConfig};

use super::tiles::Tiles;
use crate::cuda::driver::kernels::{kernels, ptx, strided, wide, Capabilities};
use crate::cuda::operator::head_rows::HeadRows;

kernels! {
    /// The gradients of queries; and of each query the logarithm of the sum of its exponentials, and behind those the sums of result times
    /// gradient.
    OfQueries<T, B> = "opara_attention_gradient_queries_" for [f16 bf16] needs [Warpgroups] {
        batch: host, kv_heads: host, of_all_tiles: host, numel: usize, rows: usize, queries: u32, keys: u32, heads: u32, sharing: u32, of_keys: u32,
        of_values: u32, scale: f32,
        of_q: u32 [3], of_k: u32 [3], of_v: u32 [3], of_bias: u32 [3], of_y: u32 [3], of_g: u32 [3], of_tiles: u32 [2],
        q: wide in T [strided([batch, heads, queries], of_q, of_keys)],
        k: wide in T [strided([batch, kv_heads, keys], of_k, of_keys)],
        v: wide in T [strided([batch, kv_heads, keys], of_v, of_values)],
        bias: guarded B [strided([batch, heads, queries], of_bias, keys)],
        tiles: guarded u8 [of_all_tiles],
        y: wide in T [strided([batch, heads, queries], of_y, of_values)],
        g: wide in T [strided([batch, heads, queries], of_g, of_values)],
        of_rows: cache f32 [2 * rows],
        to_q: out T [numel],
    }

    /// The gradients of keys and values, by what the other kernel says of queries.
    OfKeys<T, B> = "opara_attention_gradient_keys_" for [f16 bf16] needs [Warpgroups] {
        batch: host, kv_heads: host, of_all_tiles: host, numel: usize, numel_of_values: usize, rows: usize, queries: u32, keys: u32,
        heads: u32, sharing: u32, of_keys: u32, of_values: u32, scale: f32,
        of_q: u32 [3], of_k: u32 [3], of_v: u32 [3], of_bias: u32 [3], of_g: u32 [3], of_tiles: u32 [2],
        q: wide in T [strided([batch, heads, queries], of_q, of_keys)],
        k: wide in T [strided([batch, kv_heads, keys], of_k, of_keys)],
        v: wide in T [strided([batch, kv_heads, keys], of_v, of_values)],
        bias: guarded B [strided([batch, heads, queries], of_bias, keys)],
        tiles: guarded u8 [of_all_tiles],
        g: wide in T [strided([batch, heads, queries], of_g, of_values)],
        of_rows: in f32 [2 * rows],
        to_k: out T [numel],
        to_v: cache T [numel_of_values],
    }
}

/// Queries and keys of a block, and its threads.
const SIDE: usize = 64;
const THREADS: u32 = 128;

/// Blocks of a cluster, which have other heads of queries of the same keys each.
const HEADS_OF_CLUSTER: usize = 4;

/// The elements of the longest rows that a kernel takes, of which it has the fewest: what is left of each row counts as zeros.
fn width(sizes: [usize; 2], dtype: DType) -> Option<usize> {
    let are_wide = sizes.iter().all(|&size| size > 0 && size.is_multiple_of(wide(dtype)));
    [32, 64, 96, 128].into_iter().find(|&width| are_wide && sizes.iter().all(|&size| size <= width))
}

/// Are there kernels for heads of these sizes, of queries and keys and of values, that run on the device?
///
/// # Errors
/// A failed driver call.
pub(super) fn runs(device: &CudaDevice, dtype: DType, sizes: [usize; 2]) -> Result<bool> {
    let is_known = OfQueries::<(), ()>::is_for(dtype) && width(sizes, dtype).is_some();
    Ok(is_known && OfQueries::<(), ()>::runs_on(&Capabilities::of(device, ptx::ATTENTION_GRADIENT)?))
}

/// Operands, and where their heads lie.
pub(super) struct Operands<'a, T, B> {
    pub q: (&'a CudaView<'a, T>, HeadRows),
    pub k: (&'a CudaView<'a, T>, HeadRows),
    pub v: (&'a CudaView<'a, T>, HeadRows),
    /// The result, and its gradient.
    pub y: (&'a CudaView<'a, T>, HeadRows),
    pub g: (&'a CudaView<'a, T>, HeadRows),
    /// With strides over batches, heads and queries.
    pub bias: Option<(&'a CudaView<'a, B>, [usize; 3])>,
    pub scale: f32,
}

/// Gradients, each `(batch, tokens, heads, size)`.
pub(super) struct Gradients<'a, T> {
    pub q: CudaViewMut<'a, T>,
    pub k: CudaViewMut<'a, T>,
    /// Written, as the numbers of queries, beside another result.
    pub v: &'a CudaView<'a, T>,
    /// Two numbers a query and head.
    pub of_rows: &'a CudaView<'a, f32>,
}

/// Looks at the bias, if there is one, and launches both kernels.
///
/// # Errors
/// Shapes that do not agree, slices that are too short, or a failed launch.
pub(super) fn gradients<T: DeviceRepr + WithDType, B: DeviceRepr>(
    device: &CudaDevice,
    Operands { q, k, v, y, g, bias, scale }: Operands<T, B>,
    to: Gradients<T>,
) -> Result<()> {
    let ([batch, heads, queries, of_keys], [_, kv_heads, keys, _]) = (q.1.dims(), k.1.dims());
    let of_values = v.1.dims()[3];
    let are_shared = kv_heads > 0 && heads.is_multiple_of(kv_heads);
    let of_result = [batch, heads, queries, of_values];
    let agree = k.1.dims() == [batch, kv_heads, keys, of_keys]
        && v.1.dims() == [batch, kv_heads, keys, of_values]
        && y.1.dims() == of_result
        && g.1.dims() == of_result;
    let Some(width) = width([of_keys, of_values], T::DTYPE).filter(|_| agree && are_shared) else {
        bail!("no gradient of attention of q {:?}, k {:?} and v {:?}", q.1.dims(), k.1.dims(), v.1.dims())
    };
    let kind = match bias {
        Some(_) if size_of::<B>() != size_of::<T>() => "in_f32_",
        Some(_) => "biased_",
        None => "",
    };
    let variant = format!("{kind}{width}_{}", T::DTYPE.as_str());
    // Two tiles of the block's rows, and two times two of the others: for each 64 numbers of a row a line of 128 bytes.
    let shared_mem_bytes = (6 * SIDE * width.div_ceil(64) * 128) as u32;
    let of = |rows: usize, heads: usize| LaunchConfig {
        grid_dim: (rows.div_ceil(SIDE) as u32, heads as u32, batch as u32),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes,
    };
    let Gradients { q: to_q, k: to_k, v: to_v, of_rows } = to;
    let (rows, sharing) = (batch * heads * queries, heads / kv_heads);
    let (of_q, of_k, of_v) = (q.1.strides(), k.1.strides(), v.1.strides());
    let (of_bias, bias) = (bias.map_or([0; 3], |(_, strides)| strides), bias.map(|(bias, _)| bias));
    let (of_y, of_g, numel) = (y.1.strides(), g.1.strides(), rows * of_keys);
    let of_bias_elements = if size_of::<B>() == size_of::<f32>() { "f32" } else { T::DTYPE.as_str() };
    let looked = bias
        .map(|bias| Tiles::of(device, bias, of_bias, [batch, heads, queries, keys], of_bias_elements))
        .transpose()?;
    let (of_tiles, of_all_tiles) = looked.as_ref().map_or(([0; 2], 0), |tiles| (tiles.strides, tiles.all));
    let tiles = looked.as_ref().map(|tiles| tiles.kinds.as_view());
    let (q, k, v, y, g) = (q.0, k.0, v.0, y.0, g.0);
    OfQueries {
        batch,
        kv_heads,
        of_all_tiles,
        numel,
        rows,
        queries,
        keys,
        heads,
        sharing,
        of_keys,
        of_values,
        scale,
        of_q,
        of_k,
        of_v,
        of_bias,
        of_y,
        of_g,
        of_tiles,
        q,
        k,
        v,
        bias,
        tiles: tiles.as_ref(),
        y,
        g,
        of_rows,
        to_q,
    }
    .launch(device, &variant, ptx::ATTENTION_GRADIENT, of(queries, heads))?;
    // Blocks of a cluster take heads of queries beside each other, whose gradients they add in one order.
    let (shares, of_keys_variant) = match sharing.is_multiple_of(HEADS_OF_CLUSTER) {
        true => (HEADS_OF_CLUSTER, format!("clusters_{variant}")),
        false => (1, variant),
    };
    let (numel, numel_of_values) = (batch * kv_heads * keys * of_keys, batch * kv_heads * keys * of_values);
    OfKeys {
        batch,
        kv_heads,
        of_all_tiles,
        numel,
        numel_of_values,
        rows,
        queries,
        keys,
        heads,
        sharing,
        of_keys,
        of_values,
        scale,
        of_q,
        of_k,
        of_v,
        of_bias,
        of_g,
        of_tiles,
        q,
        k,
        v,
        bias,
        tiles: tiles.as_ref(),
        g,
        of_rows,
        to_k,
        to_v,
    }
    .launch(device, &of_keys_variant, ptx::ATTENTION_GRADIENT, of(keys, kv_heads * shares))
}
