//! Writes the messages, the server's trait and the client of the Open Inference Protocol to `serve/src/pb/`. With `--check`
//! fails instead if what is there differs.

use std::path::Path;

use anyhow::{ensure, Context, Result};

fn main() -> Result<()> {
    let serve = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let target = serve.join("src/pb/inference.rs");
    let scratch = std::env::temp_dir().join(format!("opara-serve-gen-{}", std::process::id()));
    std::fs::create_dir_all(&scratch)?;
    let files = protox::compile(["open_inference.proto"], [serve.join("proto")])?;
    tonic_prost_build::configure().build_transport(false).bytes(".").out_dir(&scratch).compile_fds(files)?;
    let code = std::fs::read_to_string(scratch.join("inference.rs"))?;
    std::fs::remove_dir_all(&scratch)?;
    if std::env::args().any(|argument| argument == "--check") {
        let there = std::fs::read_to_string(&target).with_context(|| target.display().to_string())?;
        ensure!(there == code, "{} is not what serve/proto gives: run this program without --check", target.display());
        return Ok(());
    }
    std::fs::create_dir_all(target.parent().context("a folder")?)?;
    std::fs::write(&target, code)?;
    Ok(())
}
