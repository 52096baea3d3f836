//! Kernels of candle's that the compiler has built into the program: C++, of which there is no PTX text to prove anything with.
//!
//! One is known by its identifier and by the size of each parameter. No other code of a program that links candle can define a kernel of
//! the same `extern "C"` name; kernels that are templates are told from others of their name by the parameters. The effects were read
//! from the sources of candle-kernels 0.11.

use super::effects::{writes, Before::*, Effects, Extent::*, Factor::*};
use crate::cuda::driver::Arguments;

/// Kernels whose identifiers begin alike.
pub(super) struct Compiled {
    /// All of the identifier, or what it begins with if that ends in `_`.
    identifier: &'static str,
    /// Bytes of each parameter, as digits.
    parameters: &'static str,
    pub effects: Effects,
}

const fn compiled(parameters: &'static str, effects: Effects) -> Compiled {
    Compiled { identifier: effects.name, parameters, effects }
}

/// A longer identifier comes before its beginnings.
pub(super) const COMPILED: &[Compiled] = &[
    // mmvq_gguf.cu, blocks of 32 elements in 36 bytes: in, out, columns, padded columns; a row for each of the grid's y
    compiled(
        "8844",
        writes("mmvq_gguf_quantize_q8_1_", 1, Elements(&[Grid(1), Block(1), Argument(3), Over(32), Times(36)]))
            .of_bytes(1),
    ),
    // mmvq_gguf.cu: matrix, vectors, out, columns, rows, ...; as many rows of `out` as the name says last
    compiled("8884444", writes("mmvq_gguf_", 2, Rest)),
    // mmq_quantize.cu: in, ids, out, ...
    compiled("8888888844", writes("quantize_mmq_q8_1", 2, Rest)),
    // mmq_gguf.cuh: out is completed by what blocks have left in the last one, the workspace: ids, bounds, out, workspace, ...
    compiled("8888444848484", writes("mul_mat_q_stream_k_fixup", 2, Rest).before(AddedTo)),
    // mmq_gguf.cuh: matrix, vectors, ids, bounds, out, workspace, ...
    compiled("88888844444444444444444", writes("mul_mat_q", 4, Rest).updates(5)),
    // gguf.cuh of the mixtures of experts: in, out, columns, padded columns
    compiled(
        "8844",
        writes("quantize_q8_1", 1, Elements(&[Grid(1), Block(1), Argument(3), Over(32), Times(36)])).of_bytes(1),
    ),
    // moe_gguf.cu, moe_wmma_gguf.cu, moe_wmma.cu: in, weights, ids of tokens, ids or offsets of experts, factors, out, ...; rows of `out`
    // that no id names stay
    compiled("888888444444", writes("moe_gemm_gguf_kernel", 5, Rest).before(PartlyKept)),
    compiled("888888444444", writes("moe_gemm_gguf_prefill_kernel", 5, Rest).before(PartlyKept)),
    compiled("88888844444", writes("moe_gemm_grouped_kernel", 5, Rest).before(PartlyKept)),
    // moe_utils.cuh: ids of experts, counts, tokens
    compiled("884", writes("count_tokens_per_expert_kernel", 1, Rest).before(AddedTo)),
    // moe_utils.cuh: counts, offsets, experts
    compiled("884", writes("expert_prefix_sum_kernel", 1, Rest)),
];

/// The effects of a kernel that the program was linked with, if it has these parameters.
pub(super) fn effects_of(name: &str, arguments: &Arguments) -> Option<&'static Effects> {
    let known = row_of(identifier(name)?)?;
    let widths = (0..arguments.count()).map(|at| arguments.argument(at).map_or(0, |(_, bytes)| bytes.len()));
    let expected = known.parameters.bytes().map(|digit| usize::from(digit - b'0'));
    widths.eq(expected).then_some(&known.effects)
}

/// The row of a kernel of this identifier.
fn row_of(identifier: &str) -> Option<&'static Compiled> {
    let is_of = |row: &&Compiled| match row.identifier.ends_with('_') {
        true => identifier.starts_with(row.identifier),
        false => identifier == row.identifier,
    };
    COMPILED.iter().find(is_of)
}

/// The identifier in a name, which C++ compilers put behind its length, and others before template arguments and parameters.
pub(in crate::cuda) fn identifier(name: &str) -> Option<&str> {
    let Some(mangled) = name.strip_prefix("_Z") else { return Some(name) };
    let mangled = mangled.strip_prefix('L').unwrap_or(mangled);
    let digits = mangled.find(|c: char| !c.is_ascii_digit())?;
    let (len, rest) = mangled.split_at(digits);
    rest.get(..len.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use super::*;

    #[test]
    fn identifiers_are_read_from_names() {
        let of = |name| identifier(name).unwrap_or_default().to_string();
        assert_eq!(of("mmvq_gguf_q4_k_f32_plain_cuda1"), "mmvq_gguf_q4_k_f32_plain_cuda1");
        assert_eq!(of("_Z9mul_mat_qIL9ggml_type12ELi8ELb0EEvPKc"), "mul_mat_q");
        assert_eq!(of("_ZL13quantize_q8_1PKfPvii"), "quantize_q8_1");
        assert_eq!((identifier("_ZN3foo3barE"), identifier("_Z99short")), (None, None));
    }

    #[test]
    fn kernels_are_known_by_identifier_and_parameters() {
        let widths = |name: &str, sizes: &[usize]| {
            let mut arguments = Arguments::from_words(&vec![1; sizes.len()]);
            sizes.iter().enumerate().for_each(|(at, &bytes)| arguments.cut(at, bytes));
            effects_of(name, &arguments).map(|effects| (effects.name, effects.output))
        };
        let product = "mmvq_gguf_q6_k_bf16_plain_cuda8";
        assert_eq!(widths(product, &[8, 8, 8, 4, 4, 4, 4]), Some(("mmvq_gguf_", 2)));
        assert_eq!(widths(product, &[8, 8, 8, 4, 4, 4]), None, "a kernel of another version");
        let rounding = "mmvq_gguf_quantize_q8_1_f32";
        assert_eq!(widths(rounding, &[8, 8, 4, 4]), Some(("mmvq_gguf_quantize_q8_1_", 1)));
        assert_eq!(widths("someones_gemm", &[8, 8, 4, 4]), None);
    }

    /// The folder of candle-kernels' sources, of the version that this build uses.
    fn sources() -> PathBuf {
        let cargo = std::process::Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1", "--offline", "--filter-platform", "x86_64-unknown-linux-gnu"])
            .args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"), "--features", "cuda"])
            .output()
            .unwrap();
        let metadata: serde_json::Value = serde_json::from_slice(&cargo.stdout).unwrap();
        let packages = metadata["packages"].as_array().unwrap();
        let found = packages.iter().find(|package| package["name"] == "candle-kernels").unwrap();
        Path::new(found["manifest_path"].as_str().unwrap()).parent().unwrap().join("src")
    }

    /// The identifiers behind `__global__` in all files of a folder that are not compiled to PTX.
    fn identifiers(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                identifiers(&path, found);
                continue;
            }
            let name = path.file_name().unwrap().to_string_lossy().to_string();
            let is_linked = ["moe_", "mmvq_", "mmq_"].iter().any(|of| name.starts_with(of)) || name == "gguf.cuh";
            // Compiled with a feature of candle-kernels that candle does not have.
            if !is_linked || name == "moe_align.cu" {
                continue;
            }
            let source = std::fs::read_to_string(&path).unwrap();
            let lines = source.lines().map(|line| line.split("//").next().unwrap_or_default());
            for declared in lines.collect::<Vec<_>>().join("\n").split("__global__").skip(1) {
                let before = declared.split('(').next().unwrap();
                // What a macro puts in.
                let word = before.split_whitespace().last().unwrap().replace("##tag##_##dst_tag##", "q4_0_f32");
                found.insert(word.replace("##ncols", "1"));
            }
        }
    }

    #[test]
    fn every_kernel_that_candle_links_has_a_row() {
        let mut found = BTreeSet::new();
        identifiers(&sources(), &mut found);
        assert!(found.len() >= COMPILED.len(), "{found:?}");
        let unknown: Vec<_> = found.iter().filter(|name| row_of(name).is_none()).collect();
        assert!(unknown.is_empty(), "kernels without effects: {unknown:?}");
        let is_unused = |row: &&Compiled| {
            !found.iter().any(|name| row_of(name).is_some_and(|of| of.effects.name == row.effects.name))
        };
        let unused: Vec<_> = COMPILED.iter().filter(is_unused).map(|row| row.identifier).collect();
        assert!(unused.is_empty(), "rows without a kernel: {unused:?}");
    }
}
