//! Classifies a picture with NASNet-A, replayed as one parallel schedule.
//!
//!     cargo run --release --features cudnn --example nasnet -- --model timm/nasnetalarge.tf_in1k --image cat.jpg

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use opara_examples::{exit_code, Classify, Interpolation, Preprocess};
use opara_models::nasnet::{Config, NasNet};

/// Classifies a picture with NASNet-A.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    classify: Classify,

    /// Size of the model if there is no checkpoint.
    #[arg(long, value_enum, default_value = "large")]
    size: Size,
}

#[derive(Clone, Copy, ValueEnum)]
enum Size {
    Tiny,
    Mobile,
    Large,
}

impl Size {
    fn config(self) -> Config {
        match self {
            Size::Tiny => Config::tiny(),
            Size::Mobile => Config::mobile(),
            Size::Large => Config::large(),
        }
    }

    /// Pixels per side of the input image.
    fn side(self) -> usize {
        match self {
            Size::Tiny => 64,
            Size::Mobile => 224,
            Size::Large => 331,
        }
    }
}

fn main() -> ExitCode {
    exit_code(run())
}

fn run() -> Result<()> {
    let Args { classify, size } = Args::parse();
    let preprocess = Preprocess {
        input_size: [3, size.side(), size.side()],
        crop_pct: if matches!(size, Size::Large) { 0.911 } else { 0.875 },
        interpolation: Interpolation::Bicubic,
        mean: [0.5; 3],
        std: [0.5; 3],
    };
    let default = |num_classes| Config { num_classes, ..size.config() };
    classify.run("last_linear.bias", preprocess, default, |vb, config| NasNet::load(vb, &config))
}
