//! The kernels of candle 0.11, by the prefixes of their names: one row declares all that is known of them.
//!
//! Arguments and effects were read from candle's sources (`candle-kernels/src/*.cu`) and from the launches in candle-core and candle-nn;
//! candle-transformers has no kernels of its own. The CUDA backend checks against the kernels' PTX which argument is written, with which
//! element type, and whether it is read.

use super::effects::Before::*;
use super::effects::Effects;
use super::effects::Extent::*;
use super::effects::Factor::*;
use super::Family::{self, *};
use super::Means::{self, *};
use super::{Class, Traffic};

/// The kernels whose names share a prefix.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KernelEntry {
    /// The prefix. The element types follow it.
    pub prefix: &'static str,
    /// Their family.
    pub family: Family,
    /// The resource that limits them.
    pub class: Class,
    /// The memory that they move.
    pub traffic: Traffic,
    /// What they compute.
    pub means: Means,
    /// Can a fused kernel take their place?
    pub is_fused: bool,
    /// The bytes that they write.
    pub effects: Effects,
    /// Bytes of each parameter, of kernels that the program is linked with.
    pub parameters: Option<&'static [usize]>,
    /// Does the prefix alone identify them? All other names must end in a type.
    is_untyped: bool,
}

/// A row of kernels that write `extent` through the argument `output`.
pub(super) const fn row(prefix: &'static str, family: Family, means: Means, effects: Effects) -> KernelEntry {
    let (class, traffic) = (Class::Memory, Traffic::Accesses);
    KernelEntry { prefix, family, class, traffic, means, is_fused: false, effects, parameters: None, is_untyped: false }
}

impl KernelEntry {
    pub(super) const fn computes(self) -> Self {
        Self { class: Class::Compute, ..self }
    }

    const fn gathers(self) -> Self {
        Self { traffic: Traffic::Gather, ..self }
    }

    const fn fused(self) -> Self {
        Self { is_fused: true, ..self }
    }

    const fn untyped(self) -> Self {
        Self { is_untyped: true, ..self }
    }

    pub(super) const fn linked(self, parameters: &'static [usize]) -> Self {
        Self { parameters: Some(parameters), ..self }
    }

    /// The row of a kernel of candle's that is compiled to PTX.
    pub fn of(name: &str) -> Option<&'static Self> {
        ENTRIES.iter().find(|row| name.starts_with(row.prefix))
    }

    /// The row of any kernel, also of a library's: the prefix counts only if the name ends in a type.
    pub fn of_any(name: &str) -> Option<&'static Self> {
        Self::of(name).filter(|row| row.is_untyped || ELEMENT_TYPES.iter().any(|(ending, _)| name.ends_with(ending)))
    }
}

const X: usize = 0;
const Y: usize = 1;
const Z: usize = 2;

/// numel, num_dims, info, in, out
const UNARY: Effects = Effects::maps(&[3], 4).before(InPlaceOf(3));
/// numel, num_dims, info, parameter, in, out
const WITH_NUMBER: Effects = Effects::maps(&[4], 5).before(InPlaceOf(4));
/// numel, num_dims, info, lhs, rhs, out
const BINARY: Effects = Effects::maps(&[3, 4], 5);
/// The same; one byte per element
const COMPARISON: Effects = BINARY.of_bytes(1);
/// numel, elements per row, num_dims, info, in, out; one row per block
const ROWS: Effects = writes(5, Elements(&[Grid(X)]));
/// in, out, columns, padded columns; one row per block, indices
const ORDER: Effects = writes(1, Elements(&[Grid(X), Argument(2)])).of_bytes(4).reads(&[0]);
/// ids, in, out, left, in's dim, out's dim, right
const PLACES: Effects = writes(2, Elements(&[Argument(3), Argument(5), Argument(6)]));
/// in, cos, sin, out, b·h, t·d, ...
const ROTARY: Effects = writes(3, Elements(&[Argument(4), Argument(5)])).reads(&[0]);
/// in, out, blocks of 32
const BLOCKS_OF_32: Effects = writes(1, Elements(&[Argument(2), Times(32)]));
/// in, out, elements
const BLOCKS: Effects = writes(1, Elements(&[Argument(2)]));

const fn writes(output: usize, extent: super::effects::Extent) -> Effects {
    Effects::writes(output, extent)
}

const fn unary(prefix: &'static str, name: &'static str) -> KernelEntry {
    row(prefix, ElementWise, Unary(name), UNARY)
}

const fn binary(prefix: &'static str, name: &'static str) -> KernelEntry {
    row(prefix, ElementWise, Binary(name), BINARY).fused()
}

const fn comparison(prefix: &'static str, name: &'static str) -> KernelEntry {
    row(prefix, ElementWise, Comparison(name), COMPARISON)
}

/// The kernels in PTX. A longer prefix comes before its own prefixes.
pub const ENTRIES: &[KernelEntry] = &[
    // affine.cu, cast.cu: numel, num_dims, info, in, out[, mul, add]
    row("affine_", ElementWise, Affine, UNARY).fused(),
    row("cast_", ElementWise, Cast, Effects::maps(&[3], 4)).fused(),
    // fill.cu: buffer, value, numel
    row("fill_", ElementWise, Fill, writes(0, Elements(&[Argument(2)]))),
    // fill.cu: source, target, rows, columns, source stride, target stride
    row("copy2d_", Layout, CopyRows, writes(1, Rows)),
    // fill.cu: numel, num_dims, info, value, out; the strides belong to `out`
    row("const_set_", ElementWise, FillView, writes(4, Elements(&[Argument(0)])).before(KeptBetween(2))),
    // ternary.cu: numel, num_dims, info, condition, true, false, out
    row("where_", ElementWise, Where, writes(6, Elements(&[Argument(0)]))),
    // indexing.cu, index_select: numel, num_dims, info, ids, in, out, left, in's dim, ids' dim, right
    row("is_", Family::Gather, IndexSelect, writes(5, Elements(&[Argument(0)]))).gathers(),
    // indexing.cu: numel, ids, in, out, left, in's dim, ids' dim, right
    row("gather_", Family::Gather, Means::Gather, writes(3, Elements(&[Argument(0)]))).gathers(),
    // indexing.cu, index_add: ids, ids' dim, in, out, left, in's dim, out's dim, right
    row("ia_", Family::Gather, IndexAdd, writes(3, Elements(&[Argument(4), Argument(6), Argument(7)])).before(AddedTo)),
    row("sa_", Family::Gather, ScatterAdd, PLACES.before(AddedTo)),
    row("s_", Family::Gather, Scatter, PLACES.before(PartlyKept)),
    // reduce.cu, one row per block of the grid's x and thread of the block's x or y: in, out, [alpha, [beta,]] columns,
    // ...
    row(
        "softmax_",
        Family::Softmax,
        Means::Softmax,
        writes(1, Elements(&[Grid(X), Block(X), Argument(2)])).reads(&[0]).before(ReadBack),
    )
    .fused(),
    row("rmsnorm_", Normalisation, RmsNorm, writes(1, Elements(&[Grid(X), Block(Y), Argument(3)])).reads(&[0])).fused(),
    row("layernorm_", Normalisation, LayerNorm, writes(1, Elements(&[Grid(X), Block(Y), Argument(4)])).reads(&[0]))
        .fused(),
    row(
        "rope_thd_",
        ElementWise,
        RotaryByTokens,
        writes(3, Elements(&[Argument(4), Argument(5), Argument(6), Argument(7)])).reads(&[0]),
    ),
    row("rope_i_", ElementWise, RotaryOfNeighbours, ROTARY),
    row("rope_", ElementWise, Rotary, ROTARY),
    // reduce.cu: `small` has numel of the output
    row("fast_sum_small_", Reduction, FewSum, writes(5, Elements(&[Argument(0)]))),
    row("fast_sum_", Reduction, RowSum, ROWS).fused(),
    row("fast_max_", Reduction, RowMax, ROWS).fused(),
    row("fast_min_", Reduction, RowMin, ROWS).fused(),
    row("fast_argmin_", Reduction, ArgMin, ROWS.of_bytes(4)),
    row("fast_argmax_", Reduction, ArgMax, ROWS.of_bytes(4)),
    // reduce.cu, atomically: numel, num_dims, num_sum_dims, info, in, out
    row("sum_", Reduction, Unused, writes(5, Rest).before(AddedTo)),
    // sort.cu
    row("asort_asc_", Other, SortUp, ORDER),
    row("asort_desc_", Other, SortDown, ORDER),
    // conv.cu: ..., info, in, [kernel,] out; the sizes are in `info`
    row("conv_transpose1d_", Family::Convolution, TransposedConvolution(1), writes(9, Rest)).computes(),
    row("conv_transpose2d_", Family::Convolution, TransposedConvolution(2), writes(10, Rest)).computes(),
    row("conv1d_", Family::Convolution, Means::Convolution(1), writes(8, Rest)).computes(),
    row("conv2d_", Family::Convolution, Means::Convolution(2), writes(9, Rest)).computes(),
    row("avg_pool2d_", Pooling, MeanPool, writes(7, Rest)),
    row("max_pool2d_", Pooling, MaxPool, writes(7, Rest)),
    row("upsample_nearest2d_", Other, UpsampleNearest, writes(6, Rest)),
    row("upsample_bilinear2d_", Other, UpsampleBilinear, writes(9, Rest)),
    // conv.cu: threads, l_out, l_k, stride, padding, dilation, info, in, out; a thread writes l_k elements
    row("im2col1d_", Layout, Unfold(1), writes(8, Elements(&[Argument(0), Argument(2)]))),
    // conv.cu: numel of the output, ..., out
    row("im2col_", Layout, Unfold(2), writes(10, Elements(&[Argument(0)]))),
    row("col2im1d_", Layout, Fold, writes(7, Elements(&[Argument(0)]))),
    // quantized.cu; the `K` formats have 256 elements per block, and no count
    row("dequantize_block_q4_0_", Other, Dequantize, BLOCKS_OF_32),
    row("dequantize_block_q4_1_", Other, Dequantize, BLOCKS_OF_32),
    row("dequantize_block_q8_0_", Other, Dequantize, BLOCKS_OF_32),
    row("dequantize_block_q5_0_", Other, Dequantize, BLOCKS),
    row("dequantize_block_q5_1_", Other, Dequantize, BLOCKS),
    row("dequantize_block_", Other, Dequantize, writes(1, Elements(&[Grid(X), Times(256)]))),
    // quantized.cu, f32 output for every type: in, ids, out, columns, bytes of a row
    row("get_rows_", Family::Gather, TableRows, writes(2, Elements(&[Grid(X), Argument(3)])).of_bytes(4))
        .gathers()
        .untyped(),
    // quantized.cu, f32: matrix, vector, out, columns[, rows]
    row("dequantize_mul_mat_vec_", Matmul, BlockVector, writes(2, Elements(&[Grid(X), Block(Y)])).of_bytes(4))
        .computes()
        .untyped(),
    // quantized.cu, f32: matrix, vectors, out, ...; a block may compute two rows, the last of which may be past the end
    row("mul_mat_vec_", Matmul, BlockRows, writes(2, Rest).of_bytes(4)).computes().untyped(),
    // quantized.cu, f32: x, y, out, x's columns, x's rows, y's columns, y's rows, out's rows
    row("mul_mat_q", Matmul, BlockMatrix, writes(2, Elements(&[Argument(5), Argument(7)])).of_bytes(4))
        .computes()
        .untyped(),
    // quantized.cu, blocks of 32 elements in 36 bytes: in, out, columns, padded columns
    row(
        "quantize_q8_1",
        Other,
        Rounding,
        writes(1, Elements(&[Grid(Y), Block(Y), Argument(3), Over(32), Times(36)])).of_bytes(1),
    )
    .untyped(),
    // quantized.cu, f32: weights, in, ids, out, n, k, batch, topk, ...
    row(
        "indexed_moe_forward_",
        Matmul,
        BlockExperts,
        writes(3, Elements(&[Grid(Y), Grid(Z), Argument(4)])).of_bytes(4),
    )
    .computes()
    .untyped(),
    // binary.cu
    binary("badd_", "add"),
    binary("bsub_", "sub"),
    binary("bmul_", "mul"),
    binary("bdiv_", "div"),
    binary("bminimum_", "min"),
    binary("bmaximum_", "max"),
    comparison("eq_", "eq"),
    comparison("ne_", "ne"),
    comparison("lt_", "lt"),
    comparison("le_", "le"),
    comparison("gt_", "gt"),
    comparison("ge_", "ge"),
    // unary.cu: with a parameter, then without
    row("uelu_", ElementWise, Elu, WITH_NUMBER),
    row("upowf_", ElementWise, Power, WITH_NUMBER),
    row("ucopy_", Layout, Copy, UNARY).fused(),
    unary("usqr_", "sqr").fused(),
    unary("usqrt_", "sqrt").fused(),
    unary("uneg_", "neg").fused(),
    unary("uabs_", "abs").fused(),
    unary("urecip_", "recip").fused(),
    unary("urelu_", "relu").fused(),
    unary("uexp_", "exp").fused(),
    unary("ulog_", "log").fused(),
    unary("usin_", "sin").fused(),
    unary("ucos_", "cos").fused(),
    unary("utanh_", "tanh").fused(),
    unary("usilu_", "silu").fused(),
    unary("ugelu_erf_", "gelu_erf").fused(),
    unary("ugelu_", "gelu").fused(),
    unary("usigmoid_", "sigmoid").fused(),
    unary("uerf_", "erf"),
    unary("unormcdf_", "normcdf"),
    unary("uceil_", "ceil"),
    unary("ufloor_", "floor"),
    unary("uround_", "round"),
    unary("usign_", "sign").fused(),
];

/// Element types as they occur in names, with their sizes in bytes.
pub const ELEMENT_TYPES: &[(&str, u64)] = &[
    ("_fp8_e4m3", 1),
    ("_f8_e4m3", 1),
    ("_bf16", 2),
    ("_f16", 2),
    ("_f32", 4),
    ("_f64", 8),
    ("_u8", 1),
    ("_i16", 2),
    ("_i32", 4),
    ("_u32", 4),
    ("_i64", 8),
    // Units of copies.
    ("_v128", 16),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_can_be_reached() {
        for (at, row) in ENTRIES.iter().enumerate() {
            let hidden_by = ENTRIES[..at].iter().find(|before| row.prefix.starts_with(before.prefix));
            assert_eq!(hidden_by, None, "`{}` is never reached", row.prefix);
        }
    }

    #[test]
    fn a_name_without_a_type_does_not_match_a_short_prefix() {
        assert_eq!(KernelEntry::of_any("uexp_f16").map(|row| row.means), Some(Unary("exp")));
        assert_eq!(KernelEntry::of_any("s_elementwise_kernel"), None);
        assert_eq!(KernelEntry::of_any("mul_mat_vec_q4_0_q8_1_cuda1").map(|row| row.family), Some(Matmul));
    }
}
