//! The vectors of some texts by an embedder in this process, as JSON: what a server's answers are compared with.
//!
//!     cargo run --release -p opara-serve --example vectors -- --folder DIR
//!
//! Each text is alone in its batch, in the buckets that the server has on that device.

use std::path::PathBuf;

use anyhow::Result;
use candle::Device;
use clap::Parser;
use opara_serve::embed::{Size, TextModel};
use opara_serve::server::Dtype;
use serde_json::json;

/// Embeds texts in this process.
#[derive(Parser)]
struct Args {
    /// A checkpoint's folder.
    #[arg(long)]
    folder: Option<PathBuf>,

    /// Size of the model with random weights.
    #[arg(long, value_enum, default_value = "base")]
    size: Size,

    /// The number of a GPU; without one the CPU embeds.
    #[arg(long)]
    device: Option<usize>,

    /// Type of weights and activations.
    #[arg(long, value_enum, default_value = "f32")]
    dtype: Dtype,

    /// Texts; some of several lengths by default.
    texts: Vec<String>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let model = args.folder.as_deref().map_or_else(|| Ok(TextModel::random(args.size, 0)), TextModel::open)?;
    // The server's batches: others change the last bits.
    let device = args.device.map_or(Ok(Device::Cpu), opara_candle::cuda_device)?;
    let dtype = args.dtype.into();
    let embedder = model.embedder(&device, dtype, &model.buckets(&device, dtype, &[], &[], None)?)?;
    let mut texts = args.texts;
    if texts.is_empty() {
        let long = "On Sundays a fresh loaf comes out of her oven. ".repeat(4);
        texts =
            ["A cat sleeps on the warm windowsill.", "Ünïcödé, 日本語, ✓", "a", long.trim()].map(String::from).to_vec();
    }
    let vectors = texts.iter().map(|text| Ok(embedder.embed(&[text])?.remove(0))).collect::<Result<Vec<_>>>()?;
    println!("{}", json!({"texts": texts, "vectors": vectors}));
    Ok(())
}
