//! Gradients of modules that are drawn at random.

use candle::{DType, Device, Result, Tensor};
use opara_candle::optim::{ParamsSGD, SGD};
use opara_candle::{Error, Numerics, OparaExecutor, TrainError};
use rayon::prelude::*;

use super::pass::noise;
use super::{number, Random};
use crate::common::gpu;

/// The verdict on a module.
enum Verdict {
    Agrees(f64),
    /// Its loss is no finite number, has an edge where it is, or is refused by candle.
    HasNoSlope,
    Wrong(String),
}

/// The gradients of each module's weights are the slopes of the same module in double precision on the CPU.
#[test]
fn gradients_of_random_modules_are_slopes() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let first = number("OPARA_SEED", 0);
    let seeds: Vec<u64> = (first..first + number("OPARA_MODULES", 40)).collect();
    let verdict = |seed: u64| {
        let module = Random::new(seed, DType::F32, &device);
        let found = judge(&module, &device).unwrap_or_else(|error| Verdict::Wrong(error.to_string()));
        (module.said(), found)
    };
    let verdicts: Vec<_> = seeds.into_par_iter().map(verdict).collect();
    let (mut worst, mut agree) = (0f64, 0);
    let mut wrong = Vec::new();
    for (said, verdict) in &verdicts {
        match verdict {
            Verdict::Agrees(apart) => {
                worst = worst.max(*apart);
                agree += 1;
            }
            Verdict::HasNoSlope => {}
            Verdict::Wrong(why) => wrong.push(format!("{why}: {said}")),
        }
    }
    println!("{agree} of {} modules agree, slopes are {worst:.1e} apart", verdicts.len());
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(agree * 2 > verdicts.len(), "{agree} of {} have slopes", verdicts.len());
    Ok(())
}

/// A number that all results of a module are part of.
fn loss(module: &Random, inputs: &[Tensor], in_double: bool) -> Result<Tensor> {
    let y = module.run(inputs, in_double)?.1;
    let factors = Tensor::from_vec(noise(7, y.elem_count()), y.shape(), &Device::Cpu)?;
    let factors = factors.to_dtype(y.dtype())?.to_device(y.device())?;
    (y * factors)?.mean_all()
}

fn judge(module: &Random, device: &Device) -> anyhow::Result<Verdict> {
    let inputs = module.inputs(1, "plain", device)?;
    // candle multiplies no tensors of some layouts.
    let Ok(eager) = loss(module, &inputs, false) else { return Ok(Verdict::HasNoSlope) };
    if !eager.to_scalar::<f32>()?.is_finite() {
        return Ok(Verdict::HasNoSlope);
    }
    let mut variables = module.weights.train()?;
    if variables.is_empty() {
        return Ok(Verdict::HasNoSlope);
    }
    let folder = tempfile::tempdir()?;
    let mut trainer = loop {
        let optimizer = SGD::of_named(variables.clone(), ParamsSGD { momentum: 0.5, ..0.0.into() })?;
        let own = module.clone();
        let builder = OparaExecutor::builder().numerics(Numerics::Accurate).benchmark_challengers(false);
        match builder.cache_folder(None).build_train(
            move |x: &[Tensor]| Ok(vec![loss(&own, x, false)?]),
            &optimizer,
            &inputs,
        ) {
            // Only whole numbers that are made of them count.
            Err(Error::Training(TrainError::Unreached(of))) if of.names.len() < variables.len() => {
                variables.retain(|(name, _)| !of.names.contains(name));
            }
            Err(Error::Training(TrainError::Unreached(_))) => return Ok(Verdict::HasNoSlope),
            built => break built?,
        }
    };
    trainer.step(&inputs)?;
    let (names, file) = (variables.iter().map(|(name, _)| &name[..]).collect::<Vec<_>>(), folder.path().join("first"));
    trainer.save(&file)?;
    // The first moments are the gradients.
    let all = candle::safetensors::load(&file, &Device::Cpu)?;
    let gradient = |name: &&str| all[&format!("opara.moments.{name}")].squeeze(0)?.to_dtype(DType::F64);
    slopes(module, &inputs, &names, &names.iter().map(gradient).collect::<Result<Vec<_>>>()?)
}

/// Holds gradients against a difference of losses: each weight moves along its gradient by the same length.
fn slopes(module: &Random, inputs: &[Tensor], names: &[&str], gradients: &[Tensor]) -> anyhow::Result<Verdict> {
    const ROOM: f64 = 2e-3;
    let wide = [inputs[0].to_device(&Device::Cpu)?.to_dtype(DType::F64)?, inputs[1].to_device(&Device::Cpu)?];
    let norms = gradients.iter().map(|g| g.sqr()?.sum_all()?.sqrt()?.to_scalar::<f64>()).collect::<Result<Vec<_>>>()?;
    let expected: f64 = norms.iter().sum();
    let moved = |only: Option<&str>, by: f64| -> anyhow::Result<f64> {
        let mut before = Vec::new();
        let all = names.iter().zip(gradients).zip(&norms);
        for ((name, gradient), norm) in all.filter(|((name, _), _)| only.is_none_or(|only| only == **name)) {
            let place: usize = name.parse()?;
            before.push((place, module.weights.move_double(place, &(gradient * (by / norm.max(1e-30)))?)?));
        }
        let number = loss(module, &wide, true)?.to_scalar::<f64>()?;
        before.into_iter().for_each(|(place, weight)| module.weights.put_double(place, weight));
        Ok(number)
    };
    let slope = |only: Option<&str>, step: f64| {
        Ok::<_, anyhow::Error>((moved(only, step)? - moved(only, -step)?) / (2. * step))
    };
    let (near, far) = (slope(None, 1e-6)?, slope(None, 1e-5)?);
    let size = expected.max(1e-6);
    // At an edge, such as that of `max(x, 0)`, slopes depend on the step.
    if !near.is_finite() || (near - far).abs() > 1e-4 * size {
        return Ok(Verdict::HasNoSlope);
    }
    let apart = (near - expected).abs() / size;
    if apart < ROOM {
        return Ok(Verdict::Agrees(apart));
    }
    let mut each = Vec::new();
    for ((name, gradient), norm) in names.iter().zip(gradients).zip(&norms) {
        each.push(format!("weight {name} of {:?} {norm:.3e} for {:.3e}", gradient.dims(), slope(Some(name), 1e-6)?));
    }
    Ok(Verdict::Wrong(format!("gradients say {expected}, slopes {near}: {}", each.join(", "))))
}
