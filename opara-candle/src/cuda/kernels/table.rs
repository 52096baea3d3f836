//! The effects of all known kernels: kernels of candle 0.11, and this library's own from `ops`.
//!
//! An entry of the catalogue of kernels ([`KernelEntry`]) names its effects; kernels with the same arguments share them. The effects of
//! this library's kernels come from their declarations.
//!
//! candle's effects were read from its sources (`candle-kernels/src/*.cu`) and from the launches in candle-core and
//! candle-nn; candle-transformers has no kernels of its own. `proof` checks against the kernels' PTX which argument is
//! written, with which element type, and whether it is read.

use std::sync::OnceLock;

use super::effects::{maps, writes, Before::*, Effects, Extent::*, Factor::*};
use crate::cuda::driver::kernels::declared::Declared;
use crate::ops::DECLARED;
use opara_plan::kernel_catalog::KernelEntry;

const X: usize = 0;
const Y: usize = 1;
const Z: usize = 2;

/// Effects of candle's kernels.
const CANDLE: &[Effects] = &[
    // affine.cu: numel, num_dims, info, in, out, mul, add
    maps("affine_", &[3], 4).before(InPlaceOf(3)),
    // cast.cu: numel, num_dims, info, in, out
    maps("cast_", &[3], 4),
    // fill.cu: buffer, value, numel
    writes("fill_", 0, Elements(&[Argument(2)])),
    // fill.cu: source, target, rows, columns, source stride, target stride
    writes("copy2d_", 1, Rows),
    // fill.cu: numel, num_dims, info, value, out; the strides belong to `out`
    writes("const_set_", 4, Elements(&[Argument(0)])).before(KeptBetween(2)),
    // ternary.cu: numel, num_dims, info, condition, true, false, out
    writes("where_", 6, Elements(&[Argument(0)])),
    // indexing.cu, index_select: numel, num_dims, info, ids, in, out, left, in's dim, ids' dim, right
    writes("is_", 5, Elements(&[Argument(0)])),
    // indexing.cu: numel, ids, in, out, left, in's dim, ids' dim, right
    writes("gather_", 3, Elements(&[Argument(0)])),
    // indexing.cu, index_add: ids, ids' dim, in, out, left, in's dim, out's dim, right
    writes("ia_", 3, Elements(&[Argument(4), Argument(6), Argument(7)])).before(AddedTo),
    // indexing.cu, scatter_add and scatter: ids, in, out, left, in's dim, out's dim, right
    writes("sa_", 2, Elements(&[Argument(3), Argument(5), Argument(6)])).before(AddedTo),
    writes("s_", 2, Elements(&[Argument(3), Argument(5), Argument(6)])).before(PartlyKept),
    // reduce.cu, one row per block of the grid's x and thread of the block's x or y: in, out, [alpha, [beta,]] columns,
    // ...
    writes("softmax_", 1, Elements(&[Grid(X), Block(X), Argument(2)])).reads(&[0]).before(ReadBack),
    writes("rmsnorm_", 1, Elements(&[Grid(X), Block(Y), Argument(3)])).reads(&[0]),
    writes("layernorm_", 1, Elements(&[Grid(X), Block(Y), Argument(4)])).reads(&[0]),
    // reduce.cu: in, cos, sin, out, then b·h, t·d or the four sizes
    writes("rope_thd_", 3, Elements(&[Argument(4), Argument(5), Argument(6), Argument(7)])).reads(&[0]),
    writes("rope_", 3, Elements(&[Argument(4), Argument(5)])).reads(&[0]),
    // reduce.cu: numel (`small`: of the output), elements per sum, num_dims, info, in, out; one sum per block
    writes("fast_sum_small_", 5, Elements(&[Argument(0)])),
    writes("fast_argmin_", 5, Elements(&[Grid(X)])).of_bytes(4),
    writes("fast_argmax_", 5, Elements(&[Grid(X)])).of_bytes(4),
    writes("fast_", 5, Elements(&[Grid(X)])),
    // reduce.cu, atomically: numel, num_dims, num_sum_dims, info, in, out
    writes("sum_", 5, Rest).before(AddedTo),
    // sort.cu, one row per block, writes indices: in, out, columns, padded columns
    writes("asort_", 1, Elements(&[Grid(X), Argument(2)])).of_bytes(4).reads(&[0]),
    // conv.cu: ..., info, in, [kernel,] out; the sizes are in `info`
    writes("conv_transpose1d_", 9, Rest),
    writes("conv_transpose2d_", 10, Rest),
    writes("conv1d_", 8, Rest),
    writes("conv2d_", 9, Rest),
    writes("avg_pool2d_", 7, Rest),
    writes("max_pool2d_", 7, Rest),
    writes("upsample_nearest2d_", 6, Rest),
    writes("upsample_bilinear2d_", 9, Rest),
    // conv.cu: threads, l_out, l_k, stride, padding, dilation, info, in, out; a thread writes l_k elements
    writes("im2col1d_", 8, Elements(&[Argument(0), Argument(2)])),
    // conv.cu: numel of the output, ..., out
    writes("im2col_", 10, Elements(&[Argument(0)])),
    writes("col2im1d_", 7, Elements(&[Argument(0)])),
    // quantized.cu: in, out, then the number of blocks of 32 or of elements; the `K` formats have 256 elements per
    // block, and no count
    writes("dequantize_block_q4_0_", 1, Elements(&[Argument(2), Times(32)])),
    writes("dequantize_block_q4_1_", 1, Elements(&[Argument(2), Times(32)])),
    writes("dequantize_block_q8_0_", 1, Elements(&[Argument(2), Times(32)])),
    writes("dequantize_block_q5_0_", 1, Elements(&[Argument(2)])),
    writes("dequantize_block_q5_1_", 1, Elements(&[Argument(2)])),
    writes("dequantize_block_", 1, Elements(&[Grid(X), Times(256)])),
    // quantized.cu, f32 output for every type: in, ids, out, columns, bytes of a row
    writes("get_rows_", 2, Elements(&[Grid(X), Argument(3)])).of_bytes(4),
    // quantized.cu, f32: matrix, vector, out, columns[, rows]
    writes("dequantize_mul_mat_vec_", 2, Elements(&[Grid(X), Block(Y)])).of_bytes(4),
    // quantized.cu, f32: matrix, vectors, out, ...; a block may compute two rows, the last of which may be past the end
    writes("mul_mat_vec_", 2, Rest).of_bytes(4),
    // quantized.cu, f32: x, y, out, x's columns, x's rows, y's columns, y's rows, out's rows
    writes("mul_mat_q", 2, Elements(&[Argument(5), Argument(7)])).of_bytes(4),
    // quantized.cu, blocks of 32 elements in 36 bytes: in, out, columns, padded columns
    writes("quantize_q8_1", 1, Elements(&[Grid(Y), Block(Y), Argument(3), Over(32), Times(36)])).of_bytes(1),
    // quantized.cu, f32: weights, in, ids, out, n, k, batch, topk, ...
    writes("indexed_moe_forward_", 3, Elements(&[Grid(Y), Grid(Z), Argument(4)])).of_bytes(4),
    // binary.cu: numel, num_dims, info, lhs, rhs, out
    maps("badd_", &[3, 4], 5),
    maps("bsub_", &[3, 4], 5),
    maps("bmul_", &[3, 4], 5),
    maps("bdiv_", &[3, 4], 5),
    maps("bminimum_", &[3, 4], 5),
    maps("bmaximum_", &[3, 4], 5),
    // binary.cu, comparisons: one byte per element
    maps("eq_", &[3, 4], 5).of_bytes(1),
    maps("ne_", &[3, 4], 5).of_bytes(1),
    maps("lt_", &[3, 4], 5).of_bytes(1),
    maps("le_", &[3, 4], 5).of_bytes(1),
    maps("gt_", &[3, 4], 5).of_bytes(1),
    maps("ge_", &[3, 4], 5).of_bytes(1),
    // unary.cu: numel, num_dims, info, parameter, in, out
    maps("uelu_", &[4], 5).before(InPlaceOf(4)),
    maps("upowf_", &[4], 5).before(InPlaceOf(4)),
    // unary.cu: numel, num_dims, info, in, out
    maps("u", &[3], 4).before(InPlaceOf(3)),
];

/// This library's kernels, with their effects.
fn own() -> &'static [(&'static Declared, Effects)] {
    static OWN: OnceLock<Vec<(&Declared, Effects)>> = OnceLock::new();
    OWN.get_or_init(|| DECLARED.iter().copied().flatten().map(|kernel| (kernel, Effects::of(kernel))).collect())
}

/// What is declared of this library's kernel of this name, with its effects: by the longest prefix.
pub(super) fn declared(name: &str) -> Option<&'static (&'static Declared, Effects)> {
    own().iter().filter(|(kernel, _)| name.starts_with(kernel.prefix)).max_by_key(|(kernel, _)| kernel.prefix.len())
}

/// The effects of a kernel that is known to be candle's or this library's.
pub(super) fn effects_of(name: &str) -> Option<&'static Effects> {
    if let Some((_, effects)) = declared(name) {
        return Some(effects);
    }
    let entry = KernelEntry::of(name)?;
    CANDLE.iter().find(|effects| effects.name == entry.effects)
}

/// All known effects.
#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = &'static Effects> {
    CANDLE.iter().chain(own().iter().map(|(_, effects)| effects))
}
