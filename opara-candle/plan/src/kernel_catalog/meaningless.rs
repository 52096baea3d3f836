//! Kernels of candle's crates that have no meaning, and why. They are replayed like kernels that nobody knows.

/// Kernels of one name that have no meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meaningless {
    /// The beginning of the name, or the identifier in the mangled name of a C++ kernel.
    pub name: &'static str,
    /// A second part of the name, if the row is about some kernels of this name only; otherwise empty.
    part: &'static str,
    /// Why they have none.
    pub why: &'static str,
}

/// All of them.
pub const MEANINGLESS: &[Meaningless] = &[
    of("sum_", "", "candle launches it nowhere: `fast_sum_` computes sums"),
    of("indexed_moe_forward_", "q8_0_", "it reads an expert's weight at an eighth of where candle lays it"),
    of("moe_gemm_grouped_kernel", "6__half", "it takes the bits of a half that it writes for a number"),
    of("flash_fwd_splitkv_combine_kernel", "", "candle-flash-attn launches it nowhere: it splits no keys"),
    of("moe_align_block_size_kernel", "", FOR_TILES),
    of("count_and_sort_expert_tokens_kernel", "", FOR_TILES),
];

const FOR_TILES: &str =
    "it prepares a kernel of cuTile's, which another compiler makes when it is first used (candle's feature `cutile`)";

const fn of(name: &'static str, part: &'static str, why: &'static str) -> Meaningless {
    Meaningless { name, part, why }
}

impl Meaningless {
    /// The row of a kernel of this name.
    pub fn of(name: &str) -> Option<&'static Self> {
        // Compilers put the length of an identifier in front of it.
        let has = |identifier: &str| name.contains(&format!("{}{identifier}", identifier.len()));
        let is_of = |row: &&Self| name.starts_with(row.name) || name.starts_with("_Z") && has(row.name);
        MEANINGLESS.iter().filter(is_of).find(|row| name.contains(row.part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_what_has_no_meaning() {
        let names = |name| Meaningless::of(name).map(|row| row.name);
        assert_eq!(names("sum_f32"), Some("sum_"));
        assert_eq!(names("indexed_moe_forward_q8_0_q8_1"), Some("indexed_moe_forward_"));
        assert_eq!(names("_ZN7vllm_rs23moe_gemm_grouped_kernelI6__halfLi16E"), Some("moe_gemm_grouped_kernel"));
        for known in [
            "fast_sum_f32",
            "_Z24expert_prefix_sum_kernelPKi",
            "indexed_moe_forward_q4k_q8_1",
            "_ZN7vllm_rs23moe_gemm_grouped_kernelI13__nv_bfloat16Li16E",
        ] {
            assert_eq!(names(known), None);
        }
    }
}
