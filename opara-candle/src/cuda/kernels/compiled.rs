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

    use opara_plan::kernel_catalog::{Meaningless, LINKED, MEANINGLESS};

    use super::super::kernels_in_ptx;
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

    /// The folder of candle-kernels, of the version that this build uses.
    fn candle_kernels() -> PathBuf {
        let cargo = std::process::Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1", "--offline", "--filter-platform", "x86_64-unknown-linux-gnu"])
            .args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"), "--features", "cuda"])
            .output()
            .unwrap();
        let metadata: serde_json::Value = serde_json::from_slice(&cargo.stdout).unwrap();
        let packages = metadata["packages"].as_array().unwrap();
        let found = packages.iter().find(|package| package["name"] == "candle-kernels").unwrap();
        Path::new(found["manifest_path"].as_str().unwrap()).parent().unwrap().to_path_buf()
    }

    /// The files of a folder without comments, and their names.
    fn files(folder: &Path) -> Vec<(String, String)> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files.extend(self::files(&path));
                continue;
            }
            let source = std::fs::read_to_string(&path).unwrap();
            let lines = source.lines().map(|line| line.split("//").next().unwrap_or_default());
            files.push((path.file_name().unwrap().to_string_lossy().into(), lines.collect::<Vec<_>>().join("\n")));
        }
        files
    }

    /// The identifiers of kernels that are not compiled to PTX.
    fn identifiers() -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for (name, source) in files(&candle_kernels().join("src")) {
            let is_linked = ["moe_", "mmvq_", "mmq_"].iter().any(|of| name.starts_with(of)) || name == "gguf.cuh";
            for declared in source.split("__global__").skip(1).filter(|_| is_linked) {
                let before = declared.split('(').next().unwrap();
                // What a macro puts in.
                let word = before.split_whitespace().last().unwrap().replace("##tag##_##dst_tag##", "q4_0_f32");
                found.insert(word.replace("##ncols", "1"));
            }
        }
        found
    }

    /// The same of candle-flash-attn, which is no dependency; `None` if its sources do not lie beside those of candle-kernels.
    fn identifiers_of_flash() -> Option<BTreeSet<String>> {
        let folder = candle_kernels();
        let of_kernels = folder.file_name().unwrap().to_string_lossy().to_string();
        let folder = folder.with_file_name(of_kernels.replace("candle-kernels", "candle-flash-attn")).join("kernels");
        let found = folder.is_dir().then(|| files(&folder))?.into_iter().flat_map(|(_, source)| {
            let declared = source.split("\nDEFINE_FLASH_FORWARD_KERNEL(").skip(1);
            declared.map(|of| of.split(',').next().unwrap().to_string()).collect::<Vec<_>>()
        });
        Some(found.collect())
    }

    /// Some are in a namespace.
    fn row_of(name: &str) -> Option<&'static KernelEntry> {
        KernelEntry::of_linked(name).or_else(|| KernelEntry::of_linked(&format!("vllm_rs::{name}")))
    }

    #[test]
    fn every_kernel_that_candle_links_has_a_row_or_no_meaning() {
        let of_flash = identifiers_of_flash();
        if of_flash.is_none() {
            eprintln!("skipped for candle-flash-attn, whose sources are not there");
        }
        let found: BTreeSet<String> = identifiers().into_iter().chain(of_flash.clone().into_iter().flatten()).collect();
        let is_known = |name: &&String| row_of(name).is_some() || Meaningless::of(name).is_some();
        let unknown: Vec<_> = found.iter().filter(|name| !is_known(name)).collect();
        assert!(unknown.is_empty(), "kernels without effects: {unknown:?}");
        let is_used =
            |row: &KernelEntry| found.iter().any(|name| row_of(name).is_some_and(|of| of.prefix == row.prefix));
        let is_there = |row: &&KernelEntry| of_flash.is_some() || !row.prefix.starts_with("flash_");
        let unused = LINKED.iter().filter(is_there).filter(|row| !is_used(row)).map(|row| row.prefix);
        assert_eq!(unused.collect::<Vec<_>>(), [""; 0], "rows without a kernel");
        let in_ptx: Vec<_> = kernels_in_ptx().map(|(name, _)| name).collect();
        let is_kernel = |of: &Meaningless| {
            let mut names = found.iter().map(String::as_str).chain(in_ptx.iter().copied());
            names.any(|name| name.starts_with(of.name))
        };
        let none = MEANINGLESS.iter().filter(|of| of_flash.is_some() || !of.name.starts_with("flash_"));
        assert_eq!(none.filter(|of| !is_kernel(of)).map(|of| of.name).collect::<Vec<_>>(), [""; 0], "no such kernel");
    }
}
