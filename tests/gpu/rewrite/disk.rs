//! What came of rewriting a module, kept on disk for its next build.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{ensure, Context};
use candle::{DType, Device, Module, Result, Tensor};
use opara_candle::OparaExecutor;

use super::{accurate, noise};
use crate::common::{assert_same, gpu};

/// Two convolutions, each with a scale and a shift of its channels and `max(x, 0)`.
#[derive(Clone)]
struct Layers(Vec<[Tensor; 3]>);

impl Layers {
    fn new(device: &Device) -> Result<Self> {
        let layer = |seed: u64, shape: (usize, usize, usize, usize)| -> Result<[Tensor; 3]> {
            let there = |t: Tensor| t.to_dtype(DType::F16)?.to_device(device);
            let vector = |seed| there(((noise(seed, (1, shape.0, 1, 1))? * 0.1)? + 1.)?);
            Ok([there(noise(seed, shape)?)?, vector(seed + 1)?, vector(seed + 2)?])
        };
        // So many channels that candle's convolutions of 16 bits are slower by far, whatever runs beside.
        Ok(Self(vec![layer(1, (128, 64, 3, 3))?, layer(4, (128, 128, 3, 3))?]))
    }
}

impl Module for Layers {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.0.iter().try_fold(x.clone(), |x, [weight, scale, shift]| {
            x.conv2d(weight, 1, 1, 1, 1)?.broadcast_mul(scale)?.broadcast_add(shift)?.relu()
        })
    }
}

/// The one file of a plan of rewriting in a folder.
fn file(folder: &Path) -> anyhow::Result<PathBuf> {
    let files = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<_>>>()?;
    let mut plans = files.into_iter().filter(|file| file.to_string_lossy().ends_with(".rewrite.json"));
    let plan = plans.next().context("no plan of rewriting is there")?;
    ensure!(plans.next().is_none(), "more than one");
    Ok(plan)
}

#[test]
fn what_came_of_rewriting_is_kept_on_disk() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let (layers, folder) = (Layers::new(&device)?, tempfile::tempdir()?);
    let x = noise(9, (8, 64, 56, 56))?.to_dtype(DType::F16)?.to_device(&device)?;
    let built = |is_timed: bool| -> anyhow::Result<(OparaExecutor, [Tensor; 1])> {
        let builder = accurate().cache_folder(Some(folder.path().into())).benchmark_challengers(is_timed);
        let fast = builder.build(layers.clone(), &x)?;
        let y = fast.forward(&x)?;
        Ok((fast, [y]))
    };
    let (first, y) = built(false)?;
    let report = first.report();
    println!("{report}");
    assert!(!report.is_rewriting_cached() && !report.rewrites().is_empty(), "{report}");
    let text = fs::read_to_string(file(folder.path())?)?;

    let candle = [layers.forward(&x)?];

    // The same plan: the same rules, and the same bits.
    let (second, again) = built(false)?;
    println!("{}", second.report());
    assert!(second.report().is_rewriting_cached(), "{}", second.report());
    assert_eq!(second.report().rewrites(), report.rewrites());
    assert_same(&again, &y, "the first build");
    assert_eq!(fs::read_to_string(file(folder.path())?)?, text, "it is not decided anew");

    // A run that an earlier build left to candle is not even looked at.
    let mut plan: serde_json::Value = serde_json::from_str(&text)?;
    for run in plan["runs"].as_array_mut().context("a list of runs")? {
        (run["standing"], run["notes"]) = (serde_json::Value::Null, serde_json::json!(["these stay"]));
    }
    fs::write(file(folder.path())?, plan.to_string())?;
    let (stays, exact) = built(false)?;
    let report = stays.report();
    assert!(report.is_rewriting_cached() && report.rewrites().is_empty(), "{report}");
    assert!(report.notes().iter().any(|note| note == "these stay"), "{report}");
    assert!(!report.build_ms().contains_key("rewrite references"), "{report}");
    assert_same(&exact, &candle, "candle");

    // The recorded pass was faster, by other times.
    let mut plan: serde_json::Value = serde_json::from_str(&text)?;
    plan["times"] = serde_json::json!([9., 3.]);
    fs::write(file(folder.path())?, plan.to_string())?;
    let (slower, exact) = built(true)?;
    let report = slower.report();
    assert!(report.is_rewriting_cached() && report.rewrites().is_empty(), "{report}");
    assert!(report.notes().iter().any(|note| note.contains("9 us, of candle's 3")), "{report}");
    assert_same(&exact, &candle, "candle");

    // Rules that fitted elsewhere, and damaged files: all is decided anew, and stored.
    let mut other: serde_json::Value = serde_json::from_str(&text)?;
    for run in
        other["runs"].as_array_mut().context("a list of runs")?.iter_mut().filter(|run| !run["standing"].is_null())
    {
        run["standing"][0]["fits"][0][1] = 4711.into();
    }
    for text in [other.to_string(), "{}".into(), text[..text.len() / 2].into()] {
        fs::write(file(folder.path())?, text)?;
        let (anew, again) = built(false)?;
        let report = anew.report();
        assert!(!report.is_rewriting_cached() && !report.rewrites().is_empty(), "{report}");
        assert_same(&again, &y, "the first build");
        assert!(built(false)?.0.report().is_rewriting_cached());
    }
    Ok(())
}
