//! Compiles the CUDA kernels if the feature is enabled, and collects the sources of kernels that are compiled at run
//! time.

/// Headers that kernels of several operators include.
#[cfg(feature = "cuda")]
const HEADERS: &str = "src/cuda/include";

/// The folders of the operators, with their kernels.
#[cfg(feature = "cuda")]
const OPERATORS: &str = "src/ops";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "cuda")]
    {
        println!("cargo::rerun-if-changed={OPERATORS}");
        let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
        let kernels =
            cudaforge::KernelBuilder::new().source_dir(OPERATORS).source_dir("src/cuda").include_path(HEADERS);
        // Watches headers too: kernels are recompiled only if a watched file has changed.
        let kernels = kernels.watch([HEADERS, OPERATORS]).arg("-std=c++17").arg("-O3");
        let modules = out.join("ptx.rs");
        kernels.build_ptx()?.write(&modules)?;
        let names = kernels_in(OPERATORS.as_ref())?.join(", ");
        let all = format!("/// The compiled kernels of the operators.\npub const OPERATORS: &[&str] = &[{names}];\n");
        std::fs::write(&modules, std::fs::read_to_string(&modules)? + &all)?;
        let headers = [HEADERS.into(), cudaforge::CudaToolkit::detect()?.include_dir];
        std::fs::write(out.join("chain.cuh"), with_headers("chain.cuh", &headers, &mut Vec::new())?)?;
        println!("cargo::rustc-env=OPARA_CUDA_MAJOR={}", major_version(&headers[1].join("cuda.h"))?);
    }
    Ok(())
}

/// Lists the constants with the compiled kernels of a folder, which are named after the files.
#[cfg(feature = "cuda")]
fn kernels_in(folder: &std::path::Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            names.extend(kernels_in(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "cu") {
            names.extend(path.file_stem().map(|name| name.to_string_lossy().to_uppercase()));
        }
    }
    names.sort();
    Ok(names)
}

/// The major version of the CUDA toolkit, which is part of the file names of the libraries to link.
#[cfg(feature = "cuda")]
fn major_version(header: &std::path::Path) -> Result<u32, Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string(header)?;
    let number = text.lines().find_map(|line| line.strip_prefix("#define CUDA_VERSION "));
    let number: u32 = number.ok_or_else(|| format!("{} has no version", header.display()))?.trim().parse()?;
    Ok(number / 1000)
}

/// Reads a source and inlines, once each, the headers of this crate and CUDA's headers for 16-bit types. Other `#include` lines
/// stay, but the run-time compiler does not reach them.
#[cfg(feature = "cuda")]
fn with_headers(name: &str, folders: &[std::path::PathBuf], seen: &mut Vec<String>) -> std::io::Result<String> {
    seen.push(name.into());
    let found = folders.iter().map(|folder| folder.join(name)).find(|file| file.exists());
    let text = std::fs::read_to_string(found.ok_or_else(|| std::io::Error::other(format!("there is no {name}")))?)?;
    let mut whole = String::new();
    for line in text.lines() {
        let included = line.trim().strip_prefix("#include").map(|name| name.trim().trim_matches(['<', '>', '"']));
        match included {
            Some(included) if included.ends_with(".cuh") || included.starts_with("cuda_") => {
                if !seen.iter().any(|seen| seen == included) {
                    whole += &with_headers(included, folders, seen)?;
                }
            }
            _ if line.trim() == "#pragma once" => {}
            _ => whole += &format!("{line}\n"),
        }
    }
    Ok(whole)
}
