//! Kernels of candle's that the compiler has built into the program: C++, of which there is no PTX text to prove anything with.
//!
//! One is known by its identifier and by the size of each parameter. No other code of a program that links candle can define a kernel of
//! the same `extern "C"` name; kernels that are templates are told from others of their name by the parameters.

use super::effects::Before::*;
use super::effects::Effects;
use super::effects::Extent::*;
use super::effects::Factor::*;
use super::shipped::{row, KernelEntry};
use super::Family::{self, *};
use super::Means::{self, *};

/// in, out, columns, padded columns; a row for each of the grid's y, blocks of 32 elements in 36 bytes
const ROUNDED: Effects =
    Effects::writes(1, Elements(&[Grid(1), Block(1), Argument(3), Over(32), Times(36)])).of_bytes(1);
/// in, weights, ids of tokens, ids or offsets of experts, factors, out, ...; rows of `out` that no id names stay
const EXPERTS: Effects = Effects::writes(5, Rest).before(PartlyKept);
/// One structure, `Flash_fwd_params`, whose words count as arguments. The result is word 14; the logarithms of sums, which nobody reads, are
/// word 20
const ATTENTION: Effects = Effects::writes(14, Rest).updates(20);

/// The identifiers behind their namespaces, or what they begin with if that ends in `_`. A longer one comes before its beginnings.
pub const LINKED: &[KernelEntry] = &[
    // mmvq_gguf.cu
    row("mmvq_gguf_quantize_q8_1_", Other, LinkedRounding, ROUNDED).linked(&[8, 8, 4, 4]),
    // mmvq_gguf.cu: matrix, vectors, out, columns, rows, ...; as many rows of `out` as the name says last
    row("mmvq_gguf_", Matmul, LinkedRows, Effects::writes(2, Rest)).linked(&[8, 8, 8, 4, 4, 4, 4]).computes(),
    // mmq_quantize.cu: in, ids, out, ...
    row("quantize_mmq_q8_1", Other, LinkedRoundingOfMany, Effects::writes(2, Rest))
        .linked(&[8, 8, 8, 8, 8, 8, 8, 8, 4, 4]),
    // mmq_gguf.cuh: out is completed by what blocks have left in the last one, the workspace: ids, bounds, out, workspace, ...
    row("mul_mat_q_stream_k_fixup", Matmul, LinkedRest, Effects::writes(2, Rest).before(AddedTo))
        .linked(&[8, 8, 8, 8, 4, 4, 4, 8, 4, 8, 4, 8, 4]),
    // mmq_gguf.cuh: matrix, vectors, ids, bounds, out, workspace, ...
    row("mul_mat_q", Matmul, LinkedMatrix, Effects::writes(4, Rest).updates(5))
        .linked(&[8, 8, 8, 8, 8, 8, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4])
        .computes(),
    // gguf.cuh of the mixtures of experts
    row("quantize_q8_1", Other, Rounding, ROUNDED).linked(&[8, 8, 4, 4]),
    // moe_gguf.cu, moe_wmma_gguf.cu, moe_wmma.cu
    row("vllm_rs::moe_gemm_gguf_kernel", Matmul, LinkedExperts, EXPERTS)
        .linked(&[8, 8, 8, 8, 8, 8, 4, 4, 4, 4, 4, 4])
        .computes(),
    row("moe_gemm_gguf_prefill_kernel", Matmul, LinkedExpertBlocks, EXPERTS)
        .linked(&[8, 8, 8, 8, 8, 8, 4, 4, 4, 4, 4, 4])
        .computes(),
    row("vllm_rs::moe_gemm_grouped_kernel", Matmul, LinkedExpertRows, EXPERTS)
        .linked(&[8, 8, 8, 8, 8, 8, 4, 4, 4, 4, 4])
        .computes(),
    // moe_utils.cuh: ids of experts, counts, tokens
    row("count_tokens_per_expert_kernel", Other, Count, Effects::writes(1, Rest).before(AddedTo)).linked(&[8, 8, 4]),
    // flash_fwd_launch_template.h of candle-flash-attn
    row("flash_fwd_kernel", Family::Attention, Means::Attention, ATTENTION).linked(&[464]).computes(),
    // The same with keys in pages
    row("flash_fwd_splitkv_kernel", Family::Attention, Means::Attention, ATTENTION).linked(&[464]).computes(),
    // moe_utils.cuh: counts, offsets, experts
    row("expert_prefix_sum_kernel", Other, Bounds, Effects::writes(1, Rest)).linked(&[8, 8, 4]),
];

impl KernelEntry {
    /// The row of a kernel of this identifier that the program is linked with.
    pub fn of_linked(identifier: &str) -> Option<&'static Self> {
        let is_of = |row: &&Self| match row.prefix.ends_with('_') {
            true => identifier.starts_with(row.prefix),
            false => identifier == row.prefix,
        };
        LINKED.iter().find(is_of)
    }
}
