//! Judges executors of a module.

use std::time::Instant;

use candle::{DType, Device, Result, Tensor};
use opara_candle::{Mode, OparaExecutor};

use super::{Random, KINDS};
use crate::common::differing;

/// What was found wrong, and how much was judged.
#[derive(Default)]
pub struct Verdicts {
    failed: Vec<String>,
    judged: usize,
    /// Modules of which some launches were rewritten.
    rewritten: usize,
}

impl Verdicts {
    /// Builds an exact executor and an accurate one, and asks them for other inputs.
    pub fn of(seed: u64, module: &Random, device: &Device) -> Self {
        let mut verdicts = Self::default();
        if let Err(error) = verdicts.judge(seed, module, device) {
            verdicts.failed.push(format!("seed {seed}: {error:#}"));
        }
        verdicts.failed.iter().for_each(|failed| println!("FAILED {failed}"));
        verdicts
    }

    /// Both.
    pub fn and(mut self, other: Self) -> Self {
        self.failed.extend(other.failed);
        Self { failed: self.failed, judged: self.judged + other.judged, rewritten: self.rewritten + other.rewritten }
    }

    fn judge(&mut self, seed: u64, module: &Random, device: &Device) -> anyhow::Result<()> {
        let start = Instant::now();
        let built = module.inputs(1, "plain", device)?;
        let (said, _) = module.run(&built, false)?;
        let said = format!("seed {seed}, {:?} of {:?} in {:?}: {said}", module.kind, module.shape, module.dtype);
        let of = module.clone();
        let forward = move |x: &[Tensor]| Ok(vec![of.run(x, false)?.1]);
        // Kernels that are generated take longest to compile.
        let builder =
            || OparaExecutor::builder().benchmark_challengers(false).cache_folder(None).fuse(seed.is_multiple_of(4));
        let exact = builder().build_fn(forward.clone(), &built)?;
        let between = start.elapsed();
        let accurate = builder().accurate().build_fn(forward, &built)?;
        let (report, whole) = (accurate.report(), start.elapsed());
        if exact.report().mode() != Mode::Graph {
            self.failed.push(format!("{said}\n  is not replayed: {:?}", exact.report().reason()));
        }
        if let Some(folder) = super::traces() {
            exact.trace(&built)?.save(folder.join(format!("{seed}.trace")))?;
        }
        let rules: Vec<&str> = report.rewrites().iter().map(|rewrite| rewrite.rule).collect();
        println!("{said}\n  {between:?} {whole:?} {:?} {rules:?} {:?}", report.mode(), report.notes());
        self.rewritten += usize::from(!rules.is_empty());
        for (at, kind) in ["plain", KINDS[seed as usize % 8], KINDS[(seed as usize + 3) % 8]].iter().enumerate() {
            let asked = module.inputs(17 + seed + at as u64, kind, device)?;
            let candle = module.run(&asked, false)?.1;
            let again = differing(&module.run(&asked, false)?.1, &candle)?;
            let wrong = differing(&exact.call(&asked)?[0], &candle)?;
            if wrong > 0 {
                self.failed.push(format!("{said}\n  {kind}: {wrong} bits are not eager execution's, {again} eager"));
            }
            // candle's maximum with zero in f32, and its pools of maxima, take NaN for the smaller number; others keep it.
            let drops_nan = ["relu", "squeeze", "max", "squared"].iter().any(|name| said.contains(name));
            if *kind == "a NaN" && drops_nan {
                continue;
            }
            let wide = [asked[0].to_device(&Device::Cpu)?.to_dtype(DType::F64)?, asked[1].to_device(&Device::Cpu)?];
            let reference = module.run(&wide, true)?.1;
            self.judged += 1;
            let ours = &accurate.call(&asked)?[0];
            // Of attention with large scores the few rows in which two keys come close decide.
            let room = match said.contains("attention") {
                true if ["large", "a large mean"].contains(kind) => 4.,
                true => 2.,
                false => 1.,
            };
            if let Some(reason) = no_less_accurate(module.dtype, room, [&reference, &candle, ours])? {
                self.failed.push(format!("{said}\n  {kind}: {reason} {rules:?}"));
            }
        }
        Ok(())
    }

    pub fn assert(self) {
        println!("{} answers judged, {} modules rewritten", self.judged, self.rewritten);
        assert!(self.failed.is_empty(), "{} of {}:\n{}", self.failed.len(), self.judged, self.failed.join("\n"));
    }
}

/// Half the distance from one to the next number.
fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        _ => 2f64.powi(-24),
    }
}

fn numbers(x: &Tensor) -> Result<Vec<f64>> {
    x.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

/// Why a result is less accurate than candle's by more than other inputs explain.
fn no_less_accurate(dtype: DType, room: f64, tensors: [&Tensor; 3]) -> Result<Option<String>> {
    let [reference, candle, ours] = tensors;
    let (reference, candle, ours) = (numbers(reference)?, numbers(candle)?, numbers(ours)?);
    let all = || reference.iter().zip(&candle).zip(&ours).map(|((r, c), o)| (*r, *c, *o));
    for (at, (r, c, o)) in all().enumerate() {
        let is_same = c.is_nan() && o.is_nan() || c == o;
        if !o.is_finite() && !is_same {
            return Ok(Some(format!("element {at} is {o}, candle's {c}, in double precision {r}")));
        }
    }
    let finite = || all().filter(|(r, c, o)| r.is_finite() && c.is_finite() && o.is_finite());
    let count = finite().count().max(1) as f64;
    let scale = (finite().map(|(r, ..)| r * r).sum::<f64>() / count).sqrt();
    let errors = |pick: fn((f64, f64, f64)) -> (f64, f64)| {
        let of =
            finite().map(pick).map(|(r, y)| (y - r).abs() / (unit(dtype) * r.abs().max(scale).max(f64::MIN_POSITIVE)));
        of.fold((0., 0f64), |(squares, most), error| (squares + error * error / count, most.max(error)))
    };
    let ((candles, candles_most), (own, most)) = (errors(|(r, c, _)| (r, c)), errors(|(r, _, o)| (r, o)));
    let (candles, own) = (candles.sqrt(), own.sqrt());
    // Where candle's own errors are as large as results, they tell nothing.
    let is_told = candles * unit(dtype) < 1. / 16.;
    let is_wrong = is_told && (own > room * (1.3 * candles + 0.3) || most > room * (2.5 * candles_most + 3.));
    Ok(is_wrong
        .then(|| format!("{own:.3} roundings, at most {most:.2}; candle's {candles:.3}, at most {candles_most:.2}")))
}
