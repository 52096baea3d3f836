//! Compiles the CUDA kernels, where the feature asks for them.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/cuda/ops");
    #[cfg(feature = "cuda")]
    {
        let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
        // Headers, too: a kernel is compiled again only where something watched has changed.
        let kernels = cudaforge::KernelBuilder::new().source_dir("src/cuda/ops").watch(["src/cuda/ops"]);
        let kernels = kernels.arg("-std=c++17").arg("-O3");
        kernels.build_ptx()?.write(out.join("ptx.rs"))?;
    }
    Ok(())
}
