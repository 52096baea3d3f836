//! Writes the messages, the server's trait and the client of the Open Inference Protocol to `serve/src/pb/`, and the description that
//! clients ask for by reflection. With `--check` fails instead if what is there differs.

use std::path::Path;

use anyhow::{ensure, Context, Result};
use prost::Message;

fn main() -> Result<()> {
    let serve = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let scratch = std::env::temp_dir().join(format!("opara-serve-gen-{}", std::process::id()));
    std::fs::create_dir_all(&scratch)?;
    let mut files = protox::compile(["open_inference.proto"], [serve.join("proto")])?;
    tonic_prost_build::configure().build_transport(false).bytes(".").out_dir(&scratch).compile_fds(files.clone())?;
    let code = std::fs::read(scratch.join("inference.rs"))?;
    std::fs::remove_dir_all(&scratch)?;
    // Without the comments.
    files.file.iter_mut().for_each(|file| file.source_code_info = None);
    let is_check = std::env::args().any(|argument| argument == "--check");
    for (name, made) in [("inference.rs", code), ("inference.bin", files.encode_to_vec())] {
        let target = serve.join("src/pb").join(name);
        if !is_check {
            std::fs::write(&target, made)?;
            continue;
        }
        let there = std::fs::read(&target).with_context(|| target.display().to_string())?;
        ensure!(there == made, "{} is not what serve/proto gives: run this program without --check", target.display());
    }
    Ok(())
}
