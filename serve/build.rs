//! Generates the messages, the service and the client of the Open Inference Protocol from `proto/`, without protoc; and the descriptions
//! that clients ask for by reflection.

#[cfg(feature = "server")]
fn main() -> anyhow::Result<()> {
    use std::path::PathBuf;

    use anyhow::Context;
    use prost::Message;

    println!("cargo::rerun-if-changed=proto");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").context("OUT_DIR is not set")?);
    let mut files = protox::compile(["open_inference.proto"], ["proto"])?;
    tonic_prost_build::configure().build_transport(false).bytes(".").out_dir(&out).compile_fds(files.clone())?;
    // Without the comments.
    files.file.iter_mut().for_each(|file| file.source_code_info = None);
    std::fs::write(out.join("inference.bin"), files.encode_to_vec())?;
    Ok(())
}

/// The batcher has no messages.
#[cfg(not(feature = "server"))]
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
