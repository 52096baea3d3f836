//! The table of effects: for each kernel of candle 0.11 and of this library, the memory that it writes, and whether it
//! depends on the previous content.
//!
//! An entry of the kernel catalogue ([`KernelEntry`]) names its effects; kernels with the same signature share an entry.
//!
//! Sources: `candle-kernels/src/*.cu`, and the launches in candle-core and candle-nn; candle-transformers has no
//! kernels of its own. `proof` checks against the kernels' PTX which argument is written, with which element type, and
//! whether it is read.

use self::{Before::*, Extent::*, Factor::*};
use crate::kernel_catalog::{KernelEntry, ELEMENT_TYPES};

/// The effects of kernels with the same signature. All of them write through exactly one argument.
pub(super) struct Effects {
    /// The name that [`KernelEntry::effects`] refers to.
    pub name: &'static str,
    /// Index of the output argument.
    pub output: usize,
    /// Bytes of an output element, if the kernel's name does not end in its type.
    pub element: Option<u64>,
    pub extent: Extent,
    pub before: Before,
    /// Input arguments that are read element by element, as many elements as are written; contiguous without `strides`.
    pub inputs: &'static [usize],
    /// The argument that points to dimensions and strides; it is null if all operands are contiguous.
    pub strides: Option<usize>,
}

/// The bytes that are written, from the output pointer on.
pub(super) enum Extent {
    /// Contiguous elements; their number is the product of these factors.
    Elements(&'static [Factor]),
    /// The rows of a `copy2d`.
    Rows,
    /// Everything up to the end of the buffer, which candle allocates for this launch: the number of elements is in
    /// device memory, or not in the arguments at all.
    Rest,
}

/// A factor of the number of elements.
pub(super) enum Factor {
    /// The argument of this index.
    Argument(usize),
    /// Blocks of the grid along an axis.
    Grid(usize),
    /// Threads of a block along an axis.
    Block(usize),
    /// A constant.
    Times(u64),
    /// The reciprocal of a constant.
    Over(u64),
}

/// How the previous content of the extent is used.
pub(super) enum Before {
    /// Overwritten completely, and not read.
    Overwritten,
    /// Overwritten completely, and read only after that.
    ReadBack,
    /// Overwritten completely; read as the input if this argument is null (in place).
    InPlaceOf(usize),
    /// Not read; some bytes keep their value.
    PartlyKept,
    /// Not read. If this argument, which points to strides, is not null, bytes between the elements keep their value.
    KeptBetween(usize),
    /// Read: the kernel adds to it.
    AddedTo,
}

const X: usize = 0;
const Y: usize = 1;
const Z: usize = 2;

const fn writes(name: &'static str, output: usize, extent: Extent) -> Effects {
    Effects { name, output, element: None, extent, before: Overwritten, inputs: &[], strides: None }
}

/// Kernels with the arguments `numel, num_dims, info, ...` that compute each output element from one element of each
/// input.
const fn maps(name: &'static str, inputs: &'static [usize], output: usize) -> Effects {
    writes(name, output, Elements(&[Argument(0)])).reads(inputs).strides(2)
}

impl Effects {
    const fn of_bytes(mut self, element: u64) -> Self {
        self.element = Some(element);
        self
    }

    const fn before(mut self, before: Before) -> Self {
        self.before = before;
        self
    }

    const fn reads(mut self, inputs: &'static [usize]) -> Self {
        self.inputs = inputs;
        self
    }

    const fn strides(mut self, argument: usize) -> Self {
        self.strides = Some(argument);
        self
    }
}

/// All entries.
pub(super) const EFFECTS: &[Effects] = &[
    // affine.cu: numel, num_dims, info, in, out, mul, add
    maps("affine_", &[3], 4).before(InPlaceOf(3)),
    // cast.cu: numel, num_dims, info, in, out
    maps("cast_", &[3], 4),
    // fill.cu: buffer, value, numel
    writes("fill_", 0, Elements(&[Argument(2)])),
    // fill.cu: source, target, rows, columns, source stride, target stride
    writes("copy2d_", 1, Rows),
    // fill.cu: numel, num_dims, info, value, out; the strides are those of `out`
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
    // This library's cat.cu: elements, elements of a row, relu, out, then eight times a part, its summand and its
    // elements per row
    writes("opara_cat_sums_", 3, Elements(&[Argument(0)])),
    // This library's cat.cu: units, units of a row, out, then eight times a part and its units per row
    writes("opara_cat_v128", 2, Elements(&[Argument(0), Times(4)])).of_bytes(4),
    writes("opara_cat_", 2, Elements(&[Argument(0)])),
    // This library's pool.cu and depthwise.cu: numel, ..., in, [weight, bias,] out
    writes("opara_pool_", 18, Elements(&[Argument(0)])),
    writes("opara_depthwise_", 17, Elements(&[Argument(0)])),
    // This library's space_to_depth.cu: numel of the output, its sizes, the sizes and strides of the input, in, out
    writes("opara_space_to_depth_", 15, Elements(&[Argument(0)])),
    // This library's activation.cu: numel, columns, activation, in, bias, out; the bias may be null
    writes("opara_bias_act_", 5, Elements(&[Argument(0)])).reads(&[3]),
    // This library's heads.cu: numel, seq, heads, dim, pitch, scale, in, bias, out; the bias may be null
    writes("opara_split_heads_", 8, Elements(&[Argument(0)])),
    // This library's attention.cu: numel, queries, keys, heads, scale, strides of q, k, v and bias, q, k, v, bias, out;
    // the bias may be null
    writes("opara_attention_", 21, Elements(&[Argument(0)])),
    // This library's matmul.cu: rows, columns, inner, activation, x, weight, bias, out; the bias may be null
    writes("opara_product_", 7, Elements(&[Argument(0), Argument(1)])),
    // This library's embedding.cu: numel, columns, rows of the table, ids, table, out
    writes("opara_embedding_", 5, Elements(&[Argument(0)])),
    // This library's norm.cu: rows, columns, eps, in, bias, residual, scale, shift, out; bias and residual may be null
    writes("opara_layer_norm_", 8, Elements(&[Argument(0), Argument(1)])).reads(&[3, 5]),
    // This library's norm.cu: rows, columns, eps, in, scale, out
    writes("opara_rms_norm_", 5, Elements(&[Argument(0), Argument(1)])).reads(&[3]),
    // This library's norm.cu: rows, columns, eps, in, residual, scale, out; out holds the sums and then the normalised
    // sums
    writes("opara_add_rms_norm_", 6, Elements(&[Argument(0), Argument(1), Times(2)])),
    // This library's softmax.cu: rows, columns, sizes and strides of the bias, in, bias, out; the bias may be null
    writes("opara_softmax_", 9, Elements(&[Argument(0), Argument(1)])).reads(&[7]),
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

impl Effects {
    /// The effects of a kernel of candle's or this library's.
    pub fn of(name: &str) -> Option<&'static Self> {
        let row = KernelEntry::of(name)?;
        EFFECTS.iter().find(|effects| effects.name == row.effects)
    }

    /// Bytes of an element that the kernel with this name writes.
    pub fn written_element(&self, name: &str) -> Option<u64> {
        let last = || ELEMENT_TYPES.iter().find(|(ending, _)| name.ends_with(ending)).map(|&(_, size)| size);
        self.element.or_else(last)
    }

    /// Bytes of an element of the `inputs`: the first type in the name.
    pub fn read_element(&self, name: &str) -> Option<u64> {
        ELEMENT_TYPES.iter().filter_map(|&(part, size)| Some((name.find(part)?, size))).min().map(|(_, size)| size)
    }
}
