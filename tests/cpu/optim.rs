//! Optimizers on the CPU.

use candle::{DType, Device, Result, Tensor, Var};
use candle_nn::{Optimizer, ParamsAdamW, VarMap};
use opara_candle::optim::{AdamW, CheckpointError, LossScale, MixedPrecision, ParamsSGD, Schedule, SGD};

use crate::common::precision::{
    assert_averages_follow, assert_losses_are_scaled, assert_mixed_precision, assert_steps_take_several_batches,
    mixed_layers,
};
use crate::common::training::{
    assert_many_variables_are_candles, assert_optimizers_are_candles, assert_optimizers_follow_their_formulas, Guesser,
    Net, FLOATS,
};

#[test]
fn optimizers_are_candles() -> Result<()> {
    assert_optimizers_are_candles(&Device::Cpu)
}

#[test]
fn many_variables_are_candles() -> Result<()> {
    assert_many_variables_are_candles(&Device::Cpu)
}

#[test]
fn optimizers_follow_their_formulas() -> Result<()> {
    assert_optimizers_follow_their_formulas(&Device::Cpu)
}

#[test]
fn steps_take_several_batches() -> Result<()> {
    assert_steps_take_several_batches(&Device::Cpu)
}

#[test]
fn averages_follow() -> Result<()> {
    assert_averages_follow(&Device::Cpu)
}

#[test]
fn mixed_precision_has_weights_of_32_bits() -> Result<()> {
    assert_mixed_precision(&Device::Cpu)
}

#[test]
fn losses_are_scaled() -> Result<()> {
    assert_losses_are_scaled(&Device::Cpu)
}

/// An average of 16 bits would stay, and a variable that a later batch does not reach has its sum all the same.
#[test]
fn parts_of_a_step_are_refused_or_kept() -> Result<()> {
    let half = Var::from_tensor(&Tensor::new(&[half::bf16::ONE], &Device::Cpu)?)?;
    let error = SGD::new_lr(vec![half], 0.1)?.average(0.9).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("`0` would stay: BF16"), "{error}");
    let (x, other) = (variable(&[1.])?, variable(&[1.])?);
    let mut sgd = SGD::new_lr(vec![x.clone(), other.clone()], 1.)?.accumulate(2)?;
    step(&mut sgd, &x, &[1.])?;
    step(&mut sgd, &other, &[0.5])?;
    assert_eq!((x.to_vec1::<f64>()?, other.to_vec1::<f64>()?), (vec![0.5], vec![0.75]));
    step(&mut sgd, &x, &[f64::INFINITY])?;
    step(&mut sgd, &x, &[1.])?;
    assert_eq!(other.to_vec1::<f64>()?, [0.75], "the sum began anew");
    Ok(())
}

fn variable(values: &[f64]) -> Result<Var> {
    Var::from_tensor(&Tensor::new(values, &Device::Cpu)?)
}

/// A step against these slopes.
fn step(optimizer: &mut SGD, variable: &Var, slopes: &[f64]) -> Result<Vec<f64>> {
    let slopes = Tensor::new(slopes, &Device::Cpu)?;
    optimizer.backward_step(&(variable.as_tensor() * slopes)?.sum_all()?)?;
    variable.to_vec1()
}

/// A checkpoint of other settings: the limit of the norm, the batches of a step and the factor of the loss stay the optimizer's.
#[test]
fn settings_stay_the_optimizers() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("file");
    let x = variable(&[0., 0.])?;
    let sgd = || SGD::new(vec![x.clone()], 1.0.into());
    let mut four = sgd()?.accumulate(4)?;
    step(&mut four, &x, &[7., 7.])?;
    four.save(&path)?;
    let mut two = sgd()?.accumulate(2)?.clip_norm(1.)?;
    two.load(&path)?;
    step(&mut two, &x, &[30., 40.])?;
    assert_eq!(step(&mut two, &x, &[30., 40.])?, [-0.6, -0.8], "two batches, of norm 1, without the one before");
    sgd()?.save(&path)?;
    let scaled = sgd()?.scale_loss(LossScale { first: 1024., ..Default::default() })?;
    scaled.load(&path)?;
    assert_eq!(scaled.loss_scale()?, 1024.);
    scaled.save(&path)?;
    let mut plain = sgd()?;
    plain.load(&path)?;
    x.set(&Tensor::new(&[0f64, 0.], &Device::Cpu)?)?;
    assert_eq!(step(&mut plain, &x, &[0.5, 2.])?, [-0.5, -2.]);
    Ok(())
}

#[test]
fn large_gradients_are_scaled_down_and_infinite_ones_left_out() -> Result<()> {
    let x = variable(&[0., 0.])?;
    let mut sgd = SGD::new(vec![x.clone()], 1.0.into())?.clip_norm(2.5)?;
    assert_eq!(step(&mut sgd, &x, &[0.6, 0.8])?, [-0.6, -0.8], "of norm 1");
    assert_eq!(step(&mut sgd, &x, &[3., 4.])?, [-0.6 - 1.5, -0.8 - 2.], "of norm 5");
    assert_eq!(sgd.norm()?, Some(5.));
    for slope in [f64::INFINITY, f64::NAN] {
        assert_eq!(step(&mut sgd, &x, &[slope, 1.])?, [-2.1, -2.8]);
    }
    assert_eq!((sgd.steps()?, sgd.skipped()?), (2, 2));
    Ok(())
}

#[test]
fn rates_follow_their_schedules() -> Result<()> {
    let cases: [(Schedule, &[f64]); 4] = [
        (Schedule::Constant { warm_up: 2 }, &[0.5, 1., 1., 1.]),
        (Schedule::Linear { warm_up: 1, steps: 5, remains: 0.2 }, &[1., 1., 0.8, 0.6, 0.4, 0.2, 0.2]),
        (
            Schedule::Cosine { warm_up: 0, steps: 4, remains: 0. },
            &[1., 0.8535533905932737, 0.5, 0.14644660940672627, 0., 0.],
        ),
        (Schedule::InverseSquareRoot { warm_up: 4 }, &[0.25, 0.5, 0.75, 1., 0.8944271909999159]),
    ];
    for (schedule, rates) in cases {
        let x = variable(&[0.])?;
        let mut sgd = SGD::new(vec![x.clone()], 1.0.into())?.schedule(schedule)?;
        for (at, rate) in rates.iter().enumerate() {
            let before = x.to_vec1::<f64>()?[0];
            let moved = before - step(&mut sgd, &x, &[1.])?[0];
            assert!((moved - rate).abs() < 1e-12, "{schedule:?}, step {at}: {moved}");
        }
    }
    Ok(())
}

#[test]
fn decay_rates_and_freezing_go_by_names() -> Result<()> {
    let named = |name: &str| Ok((name.to_string(), variable(&[1.])?));
    let names = ["a.weight", "a.bias", "b.weight", "c.0.bias", "c.1.bias"];
    let all: Vec<(String, Var)> = names.into_iter().map(named).collect::<Result<_>>()?;
    let sgd = || SGD::of_named(all.clone(), ParamsSGD { weight_decay: 0.5, ..ParamsSGD::from(1.) });
    let sgd_of_names =
        sgd()?.no_decay("*.bias")?.scale_rates(|name: &str| name.starts_with("b."), 0.1)?.freeze("c.[0-9].*")?;
    let left: Vec<_> = sgd_of_names.variables().map(|(name, _)| name.to_string()).collect();
    assert_eq!(left, ["a.weight", "a.bias", "b.weight"]);
    let sum = all.iter().try_fold(Tensor::new(0f64, &Device::Cpu)?, |sum, (_, x)| sum + x.as_tensor().sum_all()?)?;
    sgd_of_names.update(&sum.backward()?)?;
    let values: Vec<_> = all.iter().map(|(_, x)| x.to_vec1::<f64>().map(|x| x[0])).collect::<Result<_>>()?;
    assert_eq!(values, [-0.5, 0., 1. - 0.15000000000000002, 1., 1.]);
    for (pattern, reason) in [("d.*", "no variable's name is like `d.*`; there are a.weight"), ("[", "invalid range")] {
        let error = sgd()?.freeze(pattern).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(reason), "{pattern}: {error}");
    }
    Ok(())
}

#[test]
fn variables_without_a_gradient_stay() -> Result<()> {
    let (x, other) = (variable(&[1.])?, variable(&[2.])?);
    let integers = Var::from_tensor(&Tensor::new(&[1u32], &Device::Cpu)?)?;
    let mut sgd = SGD::new_lr(vec![other.clone(), x.clone(), integers], 1.)?.clip_norm(10.)?;
    assert_eq!(step(&mut sgd, &x, &[0.5])?, [0.5]);
    assert_eq!(other.to_vec1::<f64>()?, [2.]);
    assert_eq!(sgd.variables().count(), 2);
    Ok(())
}

#[test]
fn what_does_not_fit_is_an_error() -> Result<()> {
    let x = variable(&[1., 2.])?;
    let shared = AdamW::new(vec![x.clone()], ParamsAdamW::default())?;
    let clone = shared.clone();
    assert!(shared.clip_norm(1.).err().unwrap().to_string().contains("before it is cloned"));
    assert!(clone.clip_norm(1.).is_ok());
    let half = Var::from_tensor(&Tensor::new(&[1f32], &Device::Cpu)?.to_dtype(DType::F16)?)?;
    let error = SGD::new_lr(vec![half], 0.1)?.scale_loss(LossScale::default()).err().unwrap();
    assert!(error.to_string().contains("MixedPrecision"), "{error}");
    let (weights, mixed, _) = mixed_layers(DType::F16, &Device::Cpu)?;
    let error = SGD::new_lr(weights.all_vars(), 0.1)?.mixed(&mixed).err().unwrap();
    assert!(error.to_string().contains("no variable has a copy"), "{error}");
    Ok(())
}

fn trained(net: &Net, optimizer: &mut AdamW, steps: std::ops::Range<usize>) -> Result<()> {
    for step in steps {
        let [x, y] = net.batch(step)?;
        optimizer.backward_step(&net.loss(&x, &y)?)?;
    }
    Ok(())
}

fn adam(net: &Net) -> Result<AdamW> {
    let named = net.weights.iter().enumerate().map(|(at, weight)| (format!("w.{at}"), weight.clone()));
    let adam = AdamW::of_named(named.collect(), ParamsAdamW { lr: 0.02, ..Default::default() })?
        .clip_norm(0.5)?
        .accumulate(2)?
        .schedule(Schedule::Linear { warm_up: 3, steps: 20, remains: 0. })?;
    match net.weights[0].dtype() {
        DType::F32 | DType::F64 => adam.average(0.9),
        _ => Ok(adam),
    }
}

/// Ten batches are seven, a checkpoint in the middle of a step, and three of another optimizer of other weights, bit for bit.
#[test]
fn training_goes_on_from_a_checkpoint() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("seven.safetensors");
    for dtype in FLOATS {
        let (whole, first, second) = (net(dtype)?, net(dtype)?, net(dtype)?);
        trained(&whole, &mut adam(&whole)?, 0..10)?;
        let mut seven = adam(&first)?;
        trained(&first, &mut seven, 0..7)?;
        seven.save(&path)?;
        let mut three = adam(&second)?;
        trained(&second, &mut three, 50..54)?;
        three.load(&path)?;
        second.assert_same(&first, "after loading")?;
        trained(&second, &mut three, 7..10)?;
        second.assert_same(&whole, format_args!("{dtype:?}, after ten batches"))?;
        assert_eq!(three.steps()? + three.skipped()?, 5, "{dtype:?}");
    }
    assert_eq!(folder.path().read_dir()?.count(), 1, "nothing else is left");
    Ok(())
}

fn net(dtype: DType) -> Result<Net> {
    Net::new(dtype, &Device::Cpu)
}

/// A Transformer by this library's operators.
#[test]
fn a_transformer_learns_to_count() -> Result<()> {
    for dtype in [DType::F32, DType::BF16] {
        let net = Guesser::new(dtype, &Device::Cpu)?;
        let mut optimizer = net.optimizer()?;
        let mut losses = Vec::new();
        for at in 0..60 {
            let loss = net.loss(&net.batch(at)?, &optimizer.step_number()?)?;
            losses.push(loss.to_scalar::<f32>()?);
            optimizer.backward_step(&loss)?;
        }
        assert!(losses[59] < losses[0] / 2., "{dtype:?}: {losses:?}");
    }
    Ok(())
}

/// A file that does not fit is a typed error, and changes nothing.
#[test]
fn checkpoints_that_do_not_fit_change_nothing() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    let (net, other) = (net(DType::F32)?, Net::new(DType::F64, &Device::Cpu)?);
    let mut optimizer = adam(&net)?;
    trained(&net, &mut optimizer, 0..6)?;
    optimizer.save(at("whole"))?;
    let bytes = std::fs::read(at("whole"))?;
    std::fs::write(at("cut"), &bytes[..bytes.len() - 5])?;
    std::fs::write(at("empty"), [])?;
    std::fs::write(at("noise"), [7; 400])?;
    adam(&other)?.save(at("other"))?;
    SGD::new_lr(net.weights.clone(), 0.1)?.save(at("sgd"))?;
    candle::safetensors::save(
        &std::collections::HashMap::from([("w.0", net.weights[0].as_tensor().clone())]),
        at("weights"),
    )?;
    let before = net.weights.iter().map(|weight| weight.copy()).collect::<Result<Vec<_>>>()?;
    let error = |name: &str| optimizer.load(at(name)).expect_err(name);
    assert!(matches!(error("missing"), CheckpointError::File { .. }));
    for name in ["cut", "empty", "noise"] {
        assert!(matches!(error(name), CheckpointError::Damaged { .. }), "{name}: {}", error(name));
    }
    assert!(matches!(error("other"), CheckpointError::Tensor { name, .. } if name == "w.0"));
    assert!(matches!(error("sgd"), CheckpointError::Optimizer { .. }));
    assert!(matches!(error("weights"), CheckpointError::Format { .. }));
    for (weight, before) in net.weights.iter().zip(&before) {
        assert!(crate::common::same_bits(weight, before)?);
    }
    assert_eq!(optimizer.steps()?, 3);
    assert!(matches!(optimizer.save(at("no folder").join("file")), Err(CheckpointError::File { .. })));
    Ok(())
}

/// Variables and settings that an optimizer cannot work with are told, not worked with.
#[test]
fn variables_and_settings_are_checked() -> Result<()> {
    let (x, y) = (variable(&[1.])?, variable(&[2.])?);
    let named = |of: &[(&str, &Var)]| {
        let all = of.iter().map(|(name, variable)| (name.to_string(), (*variable).clone())).collect();
        SGD::of_named(all, 0.1.into()).map(drop)
    };
    let sgd = |of: ParamsSGD| SGD::new(vec![x.clone()], of).map(drop);
    let adam = |of: ParamsAdamW| AdamW::new(vec![x.clone()], of).map(drop);
    let set_up = |of: &dyn Fn(SGD) -> Result<SGD>| of(SGD::new_lr(vec![x.clone()], 0.1)?).map(drop);
    let nan = f64::NAN;
    let cases = [
        (named(&[("a", &x), ("b", &x)]), "`a` and `b` are one variable"),
        (named(&[("a", &x), ("a", &y)]), "two variables have the name `a`"),
        (named(&[("opara.moments.a", &x)]), "begins with `opara.`"),
        (sgd(nan.into()), "a learning rate is a finite number, not NaN"),
        (sgd(ParamsSGD { momentum: f64::INFINITY, ..0.1.into() }), "momentum"),
        (sgd(ParamsSGD { weight_decay: nan, ..0.1.into() }), "weight decay"),
        (adam(ParamsAdamW { beta1: 1., ..Default::default() }), "`beta1` is at least 0 and below 1, not 1"),
        (adam(ParamsAdamW { beta2: -0.1, ..Default::default() }), "`beta2`"),
        (adam(ParamsAdamW { eps: nan, ..Default::default() }), "`eps`"),
        (set_up(&|of| of.clip_norm(0.)), "above 0, not to 0"),
        (set_up(&|of| of.clip_norm(nan)), "above 0, not to NaN"),
        (set_up(&|of| of.accumulate(0)), "one batch at least"),
        (set_up(&|of| of.average(1.)), "`kept`"),
        (set_up(&|of| of.scale_rates("*", nan)), "factor of the learning rate"),
        (set_up(&|of| of.schedule(Schedule::Linear { warm_up: 0, steps: 3, remains: nan })), "part of the rate"),
    ];
    for (result, reason) in cases {
        let error = result.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(reason), "{reason}: {error}");
    }
    // candle's trait has no error for a rate: the next step tells it, and the one after goes on.
    let mut of = SGD::new_lr(vec![x.clone()], 1.)?;
    of.set_learning_rate(nan);
    assert!(step(&mut of, &x, &[1.]).is_err_and(|error| error.to_string().contains("not NaN")));
    assert_eq!((step(&mut of, &x, &[0.5])?, of.learning_rate()), (vec![0.5], 1.));
    let mixed = MixedPrecision::new(&VarMap::new(), DType::F64).var_builder(&Device::Cpu);
    assert!(mixed.get(2, "a").is_err_and(|error| error.to_string().contains("f16 or bf16, not of F64")));
    Ok(())
}

/// A gradient that does not fit is told before anything is counted or changed.
#[test]
fn gradients_that_do_not_fit_change_nothing() -> Result<()> {
    let (x, y) = (variable(&[1., 2.])?, variable(&[3.])?);
    for batches in [1, 2] {
        let named = vec![("y".to_string(), y.clone()), ("x".to_string(), x.clone())];
        let sgd = SGD::of_named(named, 1.0.into())?.clip_norm(1.)?.accumulate(batches)?;
        let mut gradients = (x.sum_all()? + y.sum_all()?)?.backward()?;
        for other in [Tensor::new(&[1f64], &Device::Cpu)?, Tensor::new(&[1f32, 2.], &Device::Cpu)?] {
            gradients.insert(&x, other);
            let error = sgd.update(&gradients).expect_err("it does not fit").to_string();
            assert!(error.contains("the gradient of `x` is not like its value"), "{error}");
        }
        assert_eq!((sgd.steps()?, x.to_vec1::<f64>()?, y.to_vec1::<f64>()?), (0, vec![1., 2.], vec![3.]));
    }
    Ok(())
}

/// What a step had collected when it was saved, and what no batch had reached, is so after loading.
#[test]
fn checkpoints_know_which_variables_were_reached() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("file");
    let make = |x: &Var, y: &Var| {
        let named = vec![("x".to_string(), x.clone()), ("y".to_string(), y.clone())];
        SGD::of_named(named, ParamsSGD { weight_decay: 0.5, ..1.0.into() })?.accumulate(2)
    };
    for reaches_both in [true, false] {
        let (x, y) = (variable(&[1.])?, variable(&[1.])?);
        let mut whole = make(&x, &y)?;
        step(&mut whole, &x, &[0.25])?;
        if reaches_both {
            step(&mut whole, &x, &[0.25])?;
            step(&mut whole, &y, &[0.25])?;
        }
        whole.save(&path)?;
        let (a, b) = (variable(&[7.])?, variable(&[7.])?);
        let mut resumed = make(&a, &b)?;
        step(&mut resumed, &b, &[9.])?;
        resumed.load(&path)?;
        for _ in 0..3 {
            assert_eq!(step(&mut whole, &x, &[0.125])?, step(&mut resumed, &a, &[0.125])?, "{reaches_both}");
            assert_eq!(y.to_vec1::<f64>()?, b.to_vec1::<f64>()?, "{reaches_both}");
        }
        // The number of batches is the optimizer's.
        let mut plain = SGD::of_named(vec![("x".into(), a.clone()), ("y".into(), b.clone())], 1.0.into())?;
        plain.load(&path)?;
        plain.save(&path)?;
        let before = a.to_vec1::<f64>()?[0];
        assert_eq!(step(&mut plain, &a, &[0.5])?, [before - 0.5]);
        make(&a, &b)?.load(&path)?;
    }
    Ok(())
}

/// No prefix of a checkpoint is one, and a byte of its header that is another is no panic.
#[test]
fn damaged_checkpoints_are_typed() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("file");
    let net = net(DType::F32)?;
    let mut optimizer = adam(&net)?;
    trained(&net, &mut optimizer, 0..5)?;
    optimizer.save(&path)?;
    let bytes = std::fs::read(&path)?;
    let before = net.clone();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into()?) as usize;
    for len in (0..header + 64).chain((header + 64..bytes.len()).step_by(97)) {
        std::fs::write(&path, &bytes[..len])?;
        let error = optimizer.load(&path).expect_err("it is cut short");
        assert!(matches!(error, CheckpointError::Damaged { .. }), "{len} bytes: {error}");
    }
    for at in 0..header {
        for byte in [0, b'"', b'9', b'}', 0xFF, bytes[at] ^ 1] {
            let mut other = bytes.clone();
            other[at] = byte;
            std::fs::write(&path, other)?;
            let loaded = optimizer.load(&path);
            assert!(!matches!(loaded, Err(CheckpointError::Candle(_))), "byte {at}: {loaded:?}");
        }
    }
    std::fs::write(&path, &bytes)?;
    optimizer.load(&path)?;
    net.assert_same(&before, "loaded")?;
    Ok(())
}

/// A file that cannot be written leaves the earlier one; a link stays a link; others may read the file as any new one.
#[cfg(unix)]
#[test]
fn checkpoints_are_files_as_others() -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    let optimizer = adam(&net(DType::F32)?)?;
    std::fs::create_dir(at("behind"))?;
    std::fs::write(at("behind/file"), "old")?;
    std::os::unix::fs::symlink(at("behind/file"), at("link"))?;
    optimizer.save(at("link"))?;
    assert!(at("link").is_symlink() && at("behind").read_dir()?.count() == 1);
    optimizer.load(at("behind/file"))?;
    std::fs::write(at("other"), "")?;
    let mode = |name: &str| Ok::<_, std::io::Error>(at(name).metadata()?.permissions().mode() & 0o777);
    assert_eq!(mode("behind/file")?, mode("other")?);
    assert!(matches!(optimizer.save(at("behind")), Err(CheckpointError::File { .. })));
    assert!(matches!(optimizer.load(at("behind")), Err(CheckpointError::File { .. })));
    assert_eq!(folder.path().read_dir()?.count(), 3);
    Ok(())
}

/// Clones on several threads take whole steps, and save whole ones.
#[test]
fn threads_take_turns() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("file");
    let x = variable(&[0.; 512])?;
    let sgd = SGD::of_named(vec![("x".into(), x.clone())], ParamsSGD { momentum: 0.5, ..1.0.into() })?.accumulate(2)?;
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (mut own, x) = (sgd.clone(), x.clone());
            std::thread::spawn(move || (0..50).try_for_each(|_| step(&mut own, &x, &[1.; 512]).map(drop)))
        })
        .collect();
    for _ in 0..20 {
        sgd.save(&path)?;
        let saved = candle::safetensors::load(&path, &Device::Cpu)?;
        let (values, steps) = (saved["x"].to_vec1::<f64>()?, saved["opara.control"].to_vec1::<f64>()?[0]);
        let (mut value, mut moment) = (0., 0.);
        for _ in 0..steps as usize {
            moment = 0.5 * moment + 1.;
            value -= moment;
        }
        assert!(values.iter().all(|&of| (of - value).abs() < 1e-9), "{steps} steps: {} for {value}", values[0]);
    }
    for thread in threads {
        thread.join().expect("no panic")?;
    }
    assert_eq!(sgd.steps()?, 100);
    Ok(())
}
