//! Classifies a picture with GoogLeNet, replayed as one parallel schedule.
//!
//!     cargo run --release --features cudnn --example googlenet -- --model googlenet-1378be20.pth --image cat.jpg

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use opara_examples::{exit_code, Classify, Interpolation, Preprocess};
use opara_models::googlenet::{Config, GoogLeNet};

/// Classifies a picture with GoogLeNet.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    classify: Classify,
}

fn main() -> ExitCode {
    exit_code(run())
}

fn run() -> Result<()> {
    // torchvision normalizes with ImageNet's mean and deviation and lets the model undo that (`transform_input`);
    // normalizing with 0.5 and 0.5 here is equivalent.
    let preprocess = Preprocess {
        input_size: [3, 224, 224],
        crop_pct: 0.875,
        interpolation: Interpolation::Bilinear,
        mean: [0.5; 3],
        std: [0.5; 3],
    };
    let default = |num_classes| Config { num_classes, ..Default::default() };
    Args::parse().classify.run("fc.bias", preprocess, default, |vb, config| {
        GoogLeNet::load(vb, &Config { transform_input: false, ..config })
    })
}
