//! The kernels of candle 0.11, by the prefixes of their names.

use super::Family::{self, *};
use super::FusedAs::{self, Affine, Binary, Cast, Copy, LayerNorm, RmsNorm, RowMax, RowMin, RowSum, Unary};
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
    /// The operation of a fused kernel in their place; `None` if they are not fused.
    pub fused_as: Option<FusedAs>,
    /// The name of their entry in the CUDA backend's table of effects. Kernels with the same signature share an entry.
    pub effects: &'static str,
    /// Does the prefix alone identify them? All other names must end in a type.
    is_untyped: bool,
}

const fn row(prefix: &'static str, family: Family) -> KernelEntry {
    let (class, traffic) = (Class::Memory, Traffic::Accesses);
    KernelEntry { prefix, family, class, traffic, fused_as: None, effects: prefix, is_untyped: false }
}

impl KernelEntry {
    const fn computes(mut self) -> Self {
        self.class = Class::Compute;
        self
    }

    const fn gathers(mut self) -> Self {
        self.traffic = Traffic::Gather;
        self
    }

    const fn fuses(mut self, fused_as: FusedAs) -> Self {
        self.fused_as = Some(fused_as);
        self
    }

    const fn effects(mut self, of: &'static str) -> Self {
        self.effects = of;
        self
    }

    const fn untyped(mut self) -> Self {
        self.is_untyped = true;
        self
    }

    /// The row of a kernel of candle's.
    pub fn of(name: &str) -> Option<&'static Self> {
        ENTRIES.iter().find(|row| name.starts_with(row.prefix))
    }

    /// The row of any kernel, also of a library's: the prefix counts only if the name ends in a type.
    pub fn of_any(name: &str) -> Option<&'static Self> {
        Self::of(name).filter(|row| row.is_untyped || ELEMENT_TYPES.iter().any(|(ending, _)| name.ends_with(ending)))
    }
}

/// The table. A longer prefix comes before its own prefixes.
pub const ENTRIES: &[KernelEntry] = &[
    // affine.cu, cast.cu, fill.cu, ternary.cu
    row("affine_", ElementWise).fuses(Affine),
    row("cast_", ElementWise).fuses(Cast),
    row("fill_", ElementWise),
    row("copy2d_", Layout),
    row("const_set_", ElementWise),
    row("where_", ElementWise),
    // indexing.cu: index_select, gather, index_add, scatter_add, scatter
    row("is_", Gather).gathers(),
    row("gather_", Gather).gathers(),
    row("ia_", Gather),
    row("sa_", Gather),
    row("s_", Gather),
    // reduce.cu
    row("softmax_", Softmax).fuses(FusedAs::Softmax),
    row("rmsnorm_", Normalisation).fuses(RmsNorm),
    row("layernorm_", Normalisation).fuses(LayerNorm),
    row("rope_thd_", ElementWise),
    row("rope_", ElementWise),
    row("fast_sum_small_", Reduction),
    row("fast_sum_", Reduction).fuses(RowSum).effects("fast_"),
    row("fast_max_", Reduction).fuses(RowMax).effects("fast_"),
    row("fast_min_", Reduction).fuses(RowMin).effects("fast_"),
    row("fast_argmin_", Reduction),
    row("fast_argmax_", Reduction),
    row("fast_", Reduction),
    row("sum_", Reduction),
    // sort.cu
    row("asort_", Other),
    // conv.cu
    row("conv_transpose1d_", Convolution).computes(),
    row("conv_transpose2d_", Convolution).computes(),
    row("conv1d_", Convolution).computes(),
    row("conv2d_", Convolution).computes(),
    row("avg_pool2d_", Pooling),
    row("max_pool2d_", Pooling),
    row("upsample_nearest2d_", Other),
    row("upsample_bilinear2d_", Other),
    row("im2col1d_", Layout),
    row("im2col_", Layout),
    row("col2im1d_", Layout),
    // quantized.cu
    row("dequantize_block_q4_0_", Other),
    row("dequantize_block_q4_1_", Other),
    row("dequantize_block_q8_0_", Other),
    row("dequantize_block_q5_0_", Other),
    row("dequantize_block_q5_1_", Other),
    row("dequantize_block_", Other),
    row("get_rows_", Gather).gathers().untyped(),
    row("dequantize_mul_mat_vec_", Matmul).computes().untyped(),
    row("mul_mat_vec_", Matmul).computes().untyped(),
    row("mul_mat_q", Matmul).computes().untyped(),
    row("quantize_q8_1", Other).untyped(),
    row("indexed_moe_forward_", Matmul).computes().untyped(),
    // binary.cu
    row("badd_", ElementWise).fuses(Binary("add")),
    row("bsub_", ElementWise).fuses(Binary("sub")),
    row("bmul_", ElementWise).fuses(Binary("mul")),
    row("bdiv_", ElementWise).fuses(Binary("div")),
    row("bminimum_", ElementWise).fuses(Binary("min")),
    row("bmaximum_", ElementWise).fuses(Binary("max")),
    row("eq_", ElementWise),
    row("ne_", ElementWise),
    row("lt_", ElementWise),
    row("le_", ElementWise),
    row("gt_", ElementWise),
    row("ge_", ElementWise),
    // unary.cu: with a parameter, then without; the other unary kernels are not fused.
    row("uelu_", ElementWise),
    row("upowf_", ElementWise),
    row("ucopy_", Layout).fuses(Copy).effects("u"),
    row("usqr_", ElementWise).fuses(Unary("sqr")).effects("u"),
    row("usqrt_", ElementWise).fuses(Unary("sqrt")).effects("u"),
    row("uneg_", ElementWise).fuses(Unary("neg")).effects("u"),
    row("uabs_", ElementWise).fuses(Unary("abs")).effects("u"),
    row("urecip_", ElementWise).fuses(Unary("recip")).effects("u"),
    row("urelu_", ElementWise).fuses(Unary("relu")).effects("u"),
    row("uexp_", ElementWise).fuses(Unary("exp")).effects("u"),
    row("ulog_", ElementWise).fuses(Unary("log")).effects("u"),
    row("usin_", ElementWise).fuses(Unary("sin")).effects("u"),
    row("ucos_", ElementWise).fuses(Unary("cos")).effects("u"),
    row("utanh_", ElementWise).fuses(Unary("tanh")).effects("u"),
    row("usilu_", ElementWise).fuses(Unary("silu")).effects("u"),
    row("ugelu_erf_", ElementWise).fuses(Unary("gelu_erf")).effects("u"),
    row("ugelu_", ElementWise).fuses(Unary("gelu")).effects("u"),
    row("usigmoid_", ElementWise).fuses(Unary("sigmoid")).effects("u"),
    row("u", ElementWise),
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
        assert_eq!(KernelEntry::of_any("uexp_f16").map(|row| row.fused_as), Some(Some(Unary("exp"))));
        assert_eq!(KernelEntry::of_any("unrolled_elementwise_kernel"), None);
        assert_eq!(KernelEntry::of_any("mul_mat_vec_q4_0_q8_1_cuda1").map(|row| row.family), Some(Matmul));
    }
}
