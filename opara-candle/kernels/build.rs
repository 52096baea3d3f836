//! Compiles the CUDA kernels, and collects the sources of kernels that are compiled at run time.

#[cfg(not(feature = "cuda"))]
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}

#[cfg(feature = "cuda")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    cuda::compile()
}

#[cfg(feature = "cuda")]
mod cuda {
    use std::error::Error;
    use std::path::{Path, PathBuf};

    /// Headers that kernels of several operators include.
    const HEADERS: &str = "src/include";

    /// Kernels that are of no operator.
    const DRIVER: &str = "src/driver";

    pub fn compile() -> Result<(), Box<dyn Error>> {
        println!("cargo::rerun-if-changed=build.rs");
        println!("cargo::rerun-if-changed=src");
        let out = PathBuf::from(std::env::var("OUT_DIR")?);
        // A header that changes compiles all kernels again, a kernel's file itself alone.
        let headers = files("src".as_ref(), "cuh")?;
        let kernels = cudaforge::KernelBuilder::new().source_dir("src").include_path(HEADERS).watch(headers);
        let modules = out.join("ptx.rs");
        kernels.arg("-std=c++17").arg("-O3").build_ptx()?.write(&modules)?;
        let of_operators = files("src".as_ref(), "cu")?.into_iter().filter(|file| !file.starts_with(DRIVER));
        let mut names: Vec<_> = of_operators
            .filter_map(|file| file.file_stem().map(|name| name.to_string_lossy().to_uppercase()))
            .collect();
        names.sort();
        let all = format!(
            "/// The compiled kernels of the operators.\npub const OPERATORS: &[&str] = &[{}];\n",
            names.join(", ")
        );
        std::fs::write(&modules, std::fs::read_to_string(&modules)? + &all)?;
        let headers = [HEADERS.into(), cudaforge::CudaToolkit::detect()?.include_dir];
        std::fs::write(out.join("chain.cuh"), with_headers("chain.cuh", &headers, &mut Vec::new())?)?;
        println!("cargo::rustc-env=OPARA_CUDA_MAJOR={}", major_version(&headers[1].join("cuda.h"))?);
        Ok(())
    }

    /// The files of a folder, and of all within, that end like this.
    fn files(folder: &Path, extension: &str) -> std::io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                found.extend(files(&path, extension)?);
            } else if path.extension().is_some_and(|of| of == extension) {
                found.push(path);
            }
        }
        found.sort();
        Ok(found)
    }

    /// The major version of the CUDA toolkit, which is part of the file names of the libraries to link.
    fn major_version(header: &Path) -> Result<u32, Box<dyn Error>> {
        let text = std::fs::read_to_string(header)?;
        let number = text.lines().find_map(|line| line.strip_prefix("#define CUDA_VERSION "));
        let number: u32 = number.ok_or_else(|| format!("{} has no version", header.display()))?.trim().parse()?;
        Ok(number / 1000)
    }

    /// Reads a source and inlines, once each, the headers of this crate and CUDA's headers for 16-bit types. Other `#include` lines
    /// stay, but the run-time compiler does not reach them.
    fn with_headers(name: &str, folders: &[PathBuf], seen: &mut Vec<String>) -> std::io::Result<String> {
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
}
