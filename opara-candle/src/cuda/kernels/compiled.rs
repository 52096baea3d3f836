//! Kernels that the program was linked with: the catalogue knows them by identifier and parameters.

use crate::cuda::driver::Arguments;
use opara_plan::kernel_catalog::KernelEntry;

/// The row of a kernel that the program was linked with, if it has these parameters.
pub(super) fn linked(name: &str, arguments: &Arguments) -> Option<&'static KernelEntry> {
    let known = KernelEntry::of_linked(&identifier(name)?)?;
    let widths = (0..arguments.count()).map(|at| arguments.argument(at).map_or(0, |(_, bytes)| bytes.len()));
    widths.eq(known.parameters?.iter().copied()).then_some(known)
}

/// The identifier in a name, behind its namespaces: C++ compilers put each behind its length, before template arguments and parameters.
fn identifier(name: &str) -> Option<String> {
    let Some(mangled) = name.strip_prefix("_Z") else { return Some(name.to_string()) };
    let (mut mangled, is_nested) = match mangled.strip_prefix('N') {
        Some(nested) => (nested, true),
        None => (mangled, false),
    };
    let mut words = Vec::new();
    loop {
        // What only one file sees has an `L` in front.
        let length = mangled.strip_prefix('L').unwrap_or(mangled);
        let digits = length.find(|c: char| !c.is_ascii_digit())?;
        let (len, rest) = length.split_at(digits);
        if len.is_empty() && !words.is_empty() {
            return Some(words.join("::"));
        }
        let len: usize = len.parse().ok()?;
        words.push(rest.get(..len)?);
        mangled = &rest[len..];
        if !is_nested {
            return Some(words.join("::"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use opara_plan::kernel_catalog::LINKED;

    use super::*;

    #[test]
    fn identifiers_are_read_from_names() {
        let of = |name| identifier(name).unwrap_or_default();
        assert_eq!(of("mmvq_gguf_q4_k_f32_plain_cuda1"), "mmvq_gguf_q4_k_f32_plain_cuda1");
        assert_eq!(of("_Z9mul_mat_qIL9ggml_type12ELi8ELb0EEvPKc"), "mul_mat_q");
        assert_eq!(of("_ZL13quantize_q8_1PKfPvii"), "quantize_q8_1");
        assert_eq!(of("_ZN7vllm_rs20moe_gemm_gguf_kernelILi256ELi32E10block_q4_K"), "vllm_rs::moe_gemm_gguf_kernel");
        assert_eq!(of("_ZN3fooL3barEv"), "foo::bar");
        assert_eq!((identifier("_Z99short"), identifier("_ZSt4moveI")), (None, None));
    }

    #[test]
    fn kernels_are_known_by_identifier_and_parameters() {
        let widths = |name: &str, sizes: &[usize]| {
            let mut arguments = Arguments::from_words(&vec![1; sizes.len()]);
            sizes.iter().enumerate().for_each(|(at, &bytes)| arguments.cut(at, bytes));
            linked(name, &arguments).map(|row| (row.prefix, row.effects.output))
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
        assert!(found.len() >= LINKED.len() - 1, "{found:?}");
        // Some are in a namespace.
        let row_of =
            |name: &str| KernelEntry::of_linked(name).or_else(|| KernelEntry::of_linked(&format!("vllm_rs::{name}")));
        let unknown: Vec<_> = found.iter().filter(|name| row_of(name).is_none()).collect();
        assert!(unknown.is_empty(), "kernels without effects: {unknown:?}");
        let is_used =
            |row: &KernelEntry| found.iter().any(|name| row_of(name).is_some_and(|of| of.prefix == row.prefix));
        // candle-flash-attn is no dependency.
        let of_others = |row: &KernelEntry| row.prefix == "flash_fwd_kernel";
        let unused: Vec<_> =
            LINKED.iter().filter(|row| !is_used(row) && !of_others(row)).map(|row| row.prefix).collect();
        assert!(unused.is_empty(), "rows without a kernel: {unused:?}");
    }
}
