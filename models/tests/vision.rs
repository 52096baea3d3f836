//! Compares GoogLeNet, Inception-v3 and NASNet-A with torchvision's and timm's on the same weights.
//! `reference/vision.py` wrote the expected results.

use std::error::Error;

use candle::{DType, Device, Module, Result, Tensor};
use candle_nn::VarBuilder;
use opara_candle::{Mode, OnUncapturable, OparaExecutor};
use opara_models::googlenet::{self, GoogLeNet};
use opara_models::inception::{self, InceptionV3};
use opara_models::nasnet::{self, NasNet};
use serde::Deserialize;

const SEED: u64 = 7;
const CLASSES: usize = 20;

type Shape = (usize, usize, usize, usize);

/// The result of a reference implementation.
#[derive(Deserialize)]
struct Reference {
    name: String,
    gain: f32,
    shape: Shape,
    logits: Vec<Vec<f32>>,
}

fn weights(gain: f32, dtype: DType) -> VarBuilder<'static> {
    opara_weights::seeded_with_gain(SEED, gain, dtype, &Device::Cpu)
}

/// Images with values in [-1, 1).
fn images(shape: Shape) -> Result<Tensor> {
    let (batch, channels, h, w) = shape;
    let values = weights(1., DType::F32).get(batch * channels * h * w, "input")?;
    (values * 10.)?.reshape(shape)
}

fn googlenet(vb: VarBuilder, transform_input: bool) -> Result<Box<dyn Module + Send + Sync>> {
    Ok(Box::new(GoogLeNet::load(vb, &googlenet::Config { num_classes: CLASSES, transform_input })?))
}

fn inception(vb: VarBuilder) -> Result<Box<dyn Module + Send + Sync>> {
    Ok(Box::new(InceptionV3::load(vb, &inception::Config { num_classes: CLASSES, ..Default::default() })?))
}

fn nasnet(vb: VarBuilder) -> Result<Box<dyn Module + Send + Sync>> {
    Ok(Box::new(NasNet::load(vb, &nasnet::Config { num_classes: CLASSES, ..nasnet::Config::tiny() })?))
}

fn short_nasnet(vb: VarBuilder) -> Result<Box<dyn Module + Send + Sync>> {
    let mobile = nasnet::Config { cells: 2, skip_reduction_input: false, ..nasnet::Config::tiny() };
    Ok(Box::new(NasNet::load(vb, &nasnet::Config { num_classes: CLASSES, ..mobile })?))
}

/// The largest difference relative to the largest value.
fn relative_error(got: &Tensor, expected: &Tensor) -> Result<f32> {
    let max = |x: Tensor| x.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>();
    Ok(max((got - expected)?)? / max(expected.clone())?)
}

#[test]
fn logits_match_torchvision_and_timm() -> std::result::Result<(), Box<dyn Error>> {
    let references: Vec<Reference> = serde_json::from_str(include_str!("reference/vision.json"))?;
    for Reference { name, gain, shape, logits } in references {
        let vb = weights(gain, DType::F32);
        let model = match name.as_str() {
            "googlenet" => googlenet(vb, false),
            "googlenet, transform_input" => googlenet(vb, true),
            "inception_v3" | "inception_v3 of timm" => inception(vb),
            "nasnet" | "nasnet, tiny image" => nasnet(vb),
            "nasnet, 2 cells" => short_nasnet(vb),
            name => return Err(format!("no model called {name}").into()),
        }?;
        let expected = Tensor::new(logits, &Device::Cpu)?;
        let error = relative_error(&model.forward(&images(shape)?)?, &expected)?;
        println!("{name}: {error:e}");
        assert!(error < 1e-4, "{name}: {error}");
    }
    Ok(())
}

#[test]
fn f16_is_close() -> Result<()> {
    let image = images((1, 3, 64, 64))?;
    let pair = |load: fn(VarBuilder) -> Result<Box<dyn Module + Send + Sync>>, gain| -> Result<f32> {
        let expected = load(weights(gain, DType::F32))?.forward(&image)?;
        let got = load(weights(gain, DType::F16))?.forward(&image.to_dtype(DType::F16)?)?;
        assert_eq!(got.dtype(), DType::F16);
        relative_error(&got.to_dtype(DType::F32)?, &expected)
    };
    for (name, error) in [("googlenet", pair(|vb| googlenet(vb, true), 1.4)?), ("nasnet", pair(nasnet, 1.2)?)] {
        assert!(error < 0.02, "{name}: {error}");
    }
    Ok(())
}

#[test]
fn the_executor_captures_every_operator() -> Result<()> {
    let models = [
        ("googlenet", googlenet(weights(1., DType::F32), true)?, 32, 4),
        ("inception_v3", inception(weights(1., DType::F32))?, 75, 4),
        ("nasnet", nasnet(weights(1., DType::F32))?, 32, 5),
    ];
    for (name, model, side, branches) in models {
        let image = images((1, 3, side, side))?;
        let expected = model.forward(&image)?;
        let executor = OparaExecutor::builder()
            .on_uncapturable(OnUncapturable::Error)
            .build(move |x: &Tensor| model.forward(x), &image)?;
        let report = executor.report();
        assert_eq!((report.mode(), &report.reason()), (Mode::Threads, &None), "{name}");
        assert!(
            report.is_verified() && report.counts().width >= branches,
            "{name}: {} side by side",
            report.counts().width
        );
        let got = executor.forward(&image)?;
        assert_eq!(got.to_vec2::<f32>()?, expected.to_vec2::<f32>()?, "{name}");
    }
    Ok(())
}

#[test]
fn wrong_images_are_errors() -> Result<()> {
    let models = [
        ("googlenet", googlenet(weights(1., DType::F32), false)?),
        ("googlenet, transform_input", googlenet(weights(1., DType::F32), true)?),
        ("inception_v3", inception(weights(1., DType::F32))?),
        ("nasnet", nasnet(weights(1., DType::F32))?),
    ];
    for (name, model) in models {
        for shape in [&[1, 4, 96, 96][..], &[1, 1, 96, 96], &[3, 96, 96], &[1, 3, 0, 96], &[1, 3, 1, 1]] {
            let image = Tensor::zeros(shape, DType::F32, &Device::Cpu)?;
            assert!(model.forward(&image).is_err(), "{name}: {shape:?}");
        }
    }
    Ok(())
}

#[test]
fn a_weight_of_another_shape_is_an_error() -> Result<()> {
    let weights = candle_nn::VarMap::new();
    let vb = VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu);
    vb.pp("conv1.bn").get(63, "running_var")?;
    assert!(googlenet(vb, false).is_err());
    Ok(())
}

#[test]
fn nasnet_needs_cells_and_channels_that_halve() {
    for (cells, num_features) in [(0, 192), (2, 0), (2, 24), (2, 200)] {
        let config = nasnet::Config { cells, num_features, ..nasnet::Config::tiny() };
        let error = NasNet::load(weights(1., DType::F32), &config).err().expect("an error");
        assert!(error.to_string().contains(&num_features.to_string()), "{error}");
    }
}

#[test]
fn configs_of_checkpoints_are_parsed() -> serde_json::Result<()> {
    let timm = r#"{"architecture": "nasnetalarge", "num_classes": 1000, "num_features": 4032, "pretrained_cfg": {}}"#;
    assert_eq!(serde_json::from_str::<nasnet::Config>(timm)?, nasnet::Config::large());
    let timm = r#"{"architecture": "inception_v3", "num_classes": 10, "num_features": 2048}"#;
    assert_eq!(serde_json::from_str::<inception::Config>(timm)?.num_classes, 10);
    assert_eq!(serde_json::from_str::<googlenet::Config>("{}")?, googlenet::Config::default());
    Ok(())
}
