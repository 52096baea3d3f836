//! Models as candle-transformers has them, through whose operators candle gives no gradient, train.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use candle::{DType, Device, IndexOp, Module, ModuleT, Result, Tensor, Var, D};
use candle_nn::{loss::cross_entropy, ParamsAdamW, VarBuilder, VarMap};
use candle_transformers::models::{bert, llama, t5, vit};
use opara_candle::optim::{AdamW, ParamsSGD, SGD};
use opara_candle::{Error, Mode, Numerics, OparaExecutor, TrainError};
use opara_examples::variables;

use crate::common::{gpu, same_bits};

type Loss = Arc<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync>;

/// A model with its variables, the loss of a batch, and a batch.
struct Task {
    weights: VarMap,
    loss: Loss,
    batch: Vec<Tensor>,
}

/// A way to make a model: of variables, in a type.
type Make = fn(VarBuilder, &Device, DType) -> Result<(Loss, Vec<Tensor>)>;

impl Task {
    /// Weights depend on their names alone: about one for norms, else small.
    fn new(make: Make, dtype: DType, device: &Device) -> Result<Self> {
        let weights = VarMap::new();
        let (loss, batch) = make(VarBuilder::from_varmap(&weights, dtype, device), device, dtype)?;
        for (at, (name, variable)) in variables(&weights)?.into_iter().enumerate() {
            let mut rng = fastrand::Rng::with_seed(at as u64);
            let is_norm = name.ends_with("weight") && variable.rank() == 1;
            let mean = if is_norm { 1. } else { 0. };
            let values: Vec<f64> = (0..variable.elem_count()).map(|_| mean + 0.6 * (rng.f64() - 0.5)).collect();
            variable.set(&Tensor::from_vec(values, variable.dims(), device)?.to_dtype(dtype)?)?;
        }
        Ok(Self { weights, loss, batch })
    }

    /// All variables but the statistics that batch norms write.
    fn trained(&self) -> anyhow::Result<Vec<(String, Var)>> {
        Ok(variables(&self.weights)?.into_iter().filter(|(name, _)| !name.contains("running_")).collect())
    }

    fn number(&self) -> Result<f64> {
        (self.loss)(&self.batch)?[0].to_dtype(DType::F64)?.to_scalar()
    }

    /// The gradients that a step has, as it is captured.
    fn gradients(&self, folder: &Path) -> anyhow::Result<HashMap<String, Tensor>> {
        let optimizer = SGD::of(&self.weights, ParamsSGD { momentum: 0.5, ..0.0.into() })?;
        let loss = self.loss.clone();
        let before = variables(&self.weights)?.into_iter().map(|(_, v)| v.copy()).collect::<Result<Vec<_>>>()?;
        let mut trainer = accurate().build_train(move |x: &[Tensor]| loss(x), &optimizer, &self.batch)?;
        for ((name, variable), before) in variables(&self.weights)?.iter().zip(&before) {
            assert!(crate::common::same_bits(variable, before)?, "building has changed {name}");
        }
        let report = trainer.report().expect("a report on a GPU");
        assert_ne!(report.mode(), Mode::Eager, "{report}");
        let worst = trainer.gradient_errors().iter().max_by(|a, b| a.ours.total_cmp(&b.ours));
        println!("{} gradients, worst {worst:?}", trainer.gradient_errors().len());
        assert_eq!(trainer.gradient_errors().len(), self.trained()?.len());
        trainer.step(&self.batch)?;
        // The first moments are the gradients.
        let path = folder.join("first");
        trainer.save(&path)?;
        let all = candle::safetensors::load(&path, &Device::Cpu)?;
        let found = self.trained()?.into_iter().map(|(name, variable)| {
            let moments = all[&format!("opara.moments.{name}")].reshape(variable.shape())?;
            Ok((name, moments.to_device(variable.device())?))
        });
        Ok(found.collect::<Result<_>>()?)
    }
}

fn accurate() -> opara_candle::Builder {
    OparaExecutor::builder().numerics(Numerics::Accurate)
}

fn ids(seed: u64, shape: (usize, usize), below: u32, device: &Device) -> Result<Tensor> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let ids: Vec<u32> = (0..shape.0 * shape.1).map(|_| rng.u32(..below)).collect();
    Tensor::from_vec(ids, shape, device)
}

fn images(shape: (usize, usize, usize, usize), dtype: DType, device: &Device) -> Result<Tensor> {
    let len = shape.0 * shape.1 * shape.2 * shape.3;
    (Tensor::arange(0f64, len as f64, device)? * 0.37)?.sin()?.reshape(shape)?.to_dtype(dtype)
}

fn mlp(vb: VarBuilder, device: &Device, dtype: DType) -> Result<(Loss, Vec<Tensor>)> {
    let layers = [candle_nn::linear(12, 24, vb.pp("a"))?, candle_nn::linear(24, 24, vb.pp("b"))?];
    let last = candle_nn::linear_no_bias(24, 5, vb.pp("c"))?;
    let batch =
        vec![images((1, 1, 9, 12), dtype, device)?.reshape((9, 12))?, ids(1, (1, 9), 5, device)?.flatten_all()?];
    let loss: Loss = Arc::new(move |x| {
        let h = layers[0].forward(&x[0])?.gelu_erf()?;
        let h = (layers[1].forward(&h)?.silu()? + h)?;
        let logits = last.forward(&h)?;
        Ok(vec![cross_entropy(&logits, &x[1])?, logits.argmax(D::Minus1)?])
    });
    Ok((loss, batch))
}

fn convolutions(vb: VarBuilder, device: &Device, dtype: DType) -> Result<(Loss, Vec<Tensor>)> {
    let with = |stride, padding| candle_nn::Conv2dConfig { stride, padding, ..Default::default() };
    let first = candle_nn::conv2d(3, 8, 3, with(1, 1), vb.pp("a"))?;
    let second = candle_nn::conv2d(8, 8, 3, with(2, 1), vb.pp("b"))?;
    let last = candle_nn::linear(8, 5, vb.pp("c"))?;
    let batch = vec![images((4, 3, 12, 12), dtype, device)?, ids(1, (1, 4), 5, device)?.flatten_all()?];
    let loss: Loss = Arc::new(move |x| {
        let h = first.forward(&x[0])?.relu()?.avg_pool2d(2)?;
        let h = second.forward(&h)?.relu()?.mean((2, 3))?;
        Ok(vec![cross_entropy(&last.forward(&h)?, &x[1])?])
    });
    Ok((loss, batch))
}

/// Residual blocks with batch norms in training mode, one of them depthwise, one without weights.
fn small_resnet(vb: VarBuilder, device: &Device, dtype: DType) -> Result<(Loss, Vec<Tensor>)> {
    let conv = |of: [usize; 2], kernel, stride, groups, name: &str| {
        let config = candle_nn::Conv2dConfig { padding: kernel / 2, stride, groups, ..Default::default() };
        candle_nn::conv2d_no_bias(of[0], of[1], kernel, config, vb.pp(name))
    };
    let norm = |channels, name: &str| candle_nn::batch_norm(channels, 1e-5, vb.pp(name));
    let bare = candle_nn::BatchNormConfig { affine: false, ..Default::default() };
    let (stem, stem_norm) = (conv([3, 8], 3, 1, 1, "stem")?, norm(8, "stem_norm")?);
    let (one, one_norm) = (conv([8, 16], 3, 2, 1, "one")?, norm(16, "one_norm")?);
    let (two, two_norm) = (conv([16, 16], 3, 1, 16, "two")?, norm(16, "two_norm")?);
    let (beside, beside_norm) = (conv([8, 16], 1, 2, 1, "beside")?, candle_nn::batch_norm(16, bare, vb.pp("bare"))?);
    let head = candle_nn::linear(16, 5, vb.pp("head"))?;
    let batch = vec![images((4, 3, 12, 12), dtype, device)?, ids(1, (1, 4), 5, device)?.flatten_all()?];
    let loss: Loss = Arc::new(move |x| {
        let x0 = stem_norm.forward_t(&stem.forward(&x[0])?, true)?.relu()?;
        let h = one_norm.forward_t(&one.forward(&x0)?, true)?.relu()?;
        let h = two_norm.forward_t(&two.forward(&h)?, true)?;
        let h = (h + beside_norm.forward_t(&beside.forward(&x0)?, true)?)?.relu()?;
        Ok(vec![cross_entropy(&head.forward(&h.mean((2, 3))?)?, &x[1])?])
    });
    Ok((loss, batch))
}

fn small_bert(vb: VarBuilder, device: &Device, _: DType) -> Result<(Loss, Vec<Tensor>)> {
    let config = bert::Config {
        vocab_size: 40,
        hidden_size: 32,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        intermediate_size: 48,
        max_position_embeddings: 16,
        ..Default::default()
    };
    let model = bert::BertModel::load(vb.pp("bert"), &config)?;
    let head = candle_nn::linear(32, 7, vb.pp("head"))?;
    let mask =
        Tensor::from_vec((0..24u32).map(|at| u32::from(at != 23 && at != 22)).collect::<Vec<_>>(), (2, 12), device)?;
    let batch = vec![ids(1, (2, 12), 40, device)?, mask, ids(2, (1, 24), 7, device)?.flatten_all()?];
    let loss: Loss = Arc::new(move |x| {
        let hidden = model.forward(&x[0], &x[0].zeros_like()?, Some(&x[1]))?;
        Ok(vec![cross_entropy(&head.forward(&hidden.flatten_to(1)?)?, &x[2])?])
    });
    Ok((loss, batch))
}

fn small_vit(vb: VarBuilder, device: &Device, dtype: DType) -> Result<(Loss, Vec<Tensor>)> {
    let config = vit::Config {
        hidden_size: 32,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        intermediate_size: 48,
        hidden_act: candle_nn::Activation::Gelu,
        layer_norm_eps: 1e-6,
        image_size: 16,
        patch_size: 4,
        num_channels: 3,
        qkv_bias: true,
    };
    let model = vit::Model::new(&config, 6, vb)?;
    let batch = vec![images((3, 3, 16, 16), dtype, device)?, ids(2, (1, 3), 6, device)?.flatten_all()?];
    Ok((Arc::new(move |x| Ok(vec![cross_entropy(&model.forward(&x[0])?, &x[1])?])), batch))
}

fn small_llama(vb: VarBuilder, device: &Device, dtype: DType) -> Result<(Loss, Vec<Tensor>)> {
    let config = llama::Config {
        hidden_size: 32,
        intermediate_size: 48,
        vocab_size: 40,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        use_flash_attn: false,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.,
        bos_token_id: None,
        eos_token_id: None,
        rope_scaling: None,
        max_position_embeddings: 32,
        tie_word_embeddings: false,
    };
    let model = llama::Llama::load(vb, &config)?;
    let cache = llama::Cache::new(false, dtype, &config, device)?;
    let batch = vec![ids(1, (3, 11), 40, device)?, ids(2, (1, 3), 40, device)?.flatten_all()?];
    let loss: Loss = Arc::new(move |x| Ok(vec![cross_entropy(&model.forward(&x[0], 0, &mut cache.clone())?, &x[1])?]));
    Ok((loss, batch))
}

fn small_t5(vb: VarBuilder, device: &Device, _: DType) -> Result<(Loss, Vec<Tensor>)> {
    let config = t5::Config {
        vocab_size: 40,
        d_model: 32,
        d_kv: 8,
        d_ff: 48,
        num_layers: 2,
        num_heads: 4,
        use_cache: false,
        relative_attention_num_buckets: 8,
        relative_attention_max_distance: 16,
        ..Default::default()
    };
    let model = t5::T5ForConditionalGeneration::load(vb, &config)?;
    let batch =
        vec![ids(1, (2, 9), 40, device)?, ids(3, (2, 6), 40, device)?, ids(2, (1, 2), 40, device)?.flatten_all()?];
    let loss: Loss =
        Arc::new(move |x| Ok(vec![cross_entropy(&model.clone().forward(&x[0], &x[1])?.i((.., ..))?, &x[2])?]));
    Ok((loss, batch))
}

/// Where candle has gradients, they are these but for rounding.
#[test]
fn gradients_are_candles() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    // Convolutions of f32 may round operands to TF32.
    for (name, make, room) in
        [("mlp", mlp as Make, 2e-6), ("convolutions", convolutions, 5e-3), ("resnet", small_resnet, 5e-3)]
    {
        let task = Task::new(make, DType::F32, &device)?;
        let candles = (task.loss)(&task.batch)?[0].backward()?;
        for (variable, ours) in task.gradients(folder.path())? {
            let all = variables(&task.weights)?;
            let (_, of) = all.iter().find(|(name, _)| *name == variable).expect("a variable of that name");
            let expected = candles.get(of).expect("candle's gradient");
            let norm = |t: &Tensor| t.sqr()?.sum_all()?.sqrt()?.to_scalar::<f32>();
            let apart = norm(&(&ours - expected)?)? / norm(expected)?;
            println!("{name} {variable}: {apart:.1e}");
            assert!(apart < room, "{name}, {variable}: {apart}");
        }
    }
    Ok(())
}

/// Gradients of models that candle cannot differentiate are slopes of their losses: of a twin in f64, which runs eagerly.
#[test]
fn gradients_are_slopes() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    // Some of candle's operators sum in f32 whatever the model's type is.
    let (step, room) = (1e-3, 5e-3);
    for (name, make) in [("bert", small_bert as Make), ("vit", small_vit), ("llama", small_llama), ("t5", small_t5)] {
        let task = Task::new(make, DType::F32, &device)?;
        let gradients = task.gradients(folder.path())?;
        // candle's T5 runs in f32 alone.
        let wide = if name == "t5" { DType::F32 } else { DType::F64 };
        let twin = Task::new(make, wide, &device)?;
        for ((variable, of), (_, narrow)) in variables(&twin.weights)?.into_iter().zip(variables(&task.weights)?) {
            // The same numbers.
            of.set(&narrow.to_dtype(wide)?)?;
            assert_eq!(of.shape(), gradients[&variable].shape());
        }
        let norm = |t: &Tensor| t.sqr()?.sum_all()?.sqrt()?.to_scalar::<f64>();
        let all: f64 = gradients.values().map(|g| norm(&g.to_dtype(DType::F64)?)).sum::<Result<f64>>()?;
        let mut worst = 0f64;
        for (at, (variable, of)) in variables(&twin.weights)?.into_iter().enumerate() {
            let gradient = gradients[&variable].to_dtype(DType::F64)?;
            let noise = Tensor::rand(-1f64, 1., of.shape(), &Device::Cpu)?.to_device(&device)?;
            let before = of.copy()?;
            for direction in [gradient.clone(), (&gradient + (&noise * (norm(&gradient)? / norm(&noise)?))?)?] {
                let direction = (&direction * (1. / norm(&direction)?.max(1e-30)))?;
                let moved = |by: f64| {
                    of.set(&(&before + (&direction * by)?.to_dtype(wide)?)?)?;
                    twin.number()
                };
                // The error of the difference falls with the fourth power of the step.
                let near = (moved(step)? - moved(-step)?) / (2. * step);
                let far = (moved(2. * step)? - moved(-2. * step)?) / (4. * step);
                let slope = (4. * near - far) / 3.;
                of.set(&before)?;
                let expected = (&direction * &gradient)?.sum_all()?.to_scalar::<f64>()?;
                let apart = (slope - expected).abs() / norm(&gradient)?.max(all * 1e-3);
                worst = worst.max(apart);
                assert!(apart < room, "{name}, {variable} (variable {at}): {expected} for {slope}");
            }
        }
        println!("{name}: slopes are {worst:.1e} apart");
    }
    Ok(())
}

/// Losses fall, and sixty steps are thirty, a checkpoint and thirty of another trainer, bit for bit.
#[test]
fn unchanged_models_train() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let models = [
        ("bert", small_bert as Make),
        ("vit", small_vit),
        ("llama", small_llama),
        ("t5", small_t5),
        ("resnet", small_resnet),
    ];
    for (name, make) in models {
        // In bf16 candle's BERT gives NaN, since its mask multiplies zeros with what rounds to infinity, and its T5 and
        // batch norms an error.
        let dtypes: &[DType] =
            if matches!(name, "bert" | "t5" | "resnet") { &[DType::F32] } else { &[DType::F32, DType::BF16] };
        for &dtype in dtypes {
            let (whole, half) = (Task::new(make, dtype, &device)?, Task::new(make, dtype, &device)?);
            let trainer = |task: &Task| -> anyhow::Result<_> {
                let optimizer =
                    AdamW::of(&task.weights, ParamsAdamW { lr: 0.01, ..Default::default() })?.clip_norm(5.)?;
                let loss = task.loss.clone();
                Ok(accurate().build_train(move |x: &[Tensor]| loss(x), &optimizer, &task.batch)?)
            };
            let path = folder.path().join(name);
            let mut first = trainer(&whole)?;
            let number = |loss: Tensor| loss.to_dtype(DType::F32)?.to_scalar::<f32>();
            let before = number(first.step(&whole.batch)?)?;
            for _ in 1..30 {
                first.step(&whole.batch)?;
            }
            first.save(&path)?;
            for _ in 30..59 {
                first.step(&whole.batch)?;
            }
            let after = number(first.step(&whole.batch)?)?;
            println!("{name} in {dtype:?}: {before} to {after}");
            assert!(after < before / 3., "{name} in {dtype:?}: {before} to {after}");
            let mut second = trainer(&half)?;
            second.load(&path)?;
            for _ in 30..60 {
                second.step(&half.batch)?;
            }
            for ((variable, a), (_, b)) in variables(&whole.weights)?.iter().zip(&variables(&half.weights)?) {
                assert!(same_bits(a, b)?, "{name} in {dtype:?}: {variable}");
            }
        }
    }
    Ok(())
}

/// Operators without a derivative, and variables that no gradient reaches, are named.
#[test]
fn lost_gradients_are_errors() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let weights = VarMap::new();
    let vb = VarBuilder::from_varmap(&weights, DType::F32, &device);
    let layer = candle_nn::linear_no_bias(8, 8, vb.pp("first"))?;
    let unused = candle_nn::linear_no_bias(8, 8, vb.pp("unused"))?;
    let x = images((1, 1, 4, 8), DType::F32, &device)?.reshape((4, 8))?;
    let optimizer = SGD::of(&weights, 0.1.into())?;
    let built = |with: fn(&Tensor) -> Result<Tensor>| {
        let layer = layer.clone();
        let loss = move |x: &[Tensor]| Ok(vec![with(&layer.forward(&x[0])?)?.sum_all()?]);
        match accurate().build_train(loss, &optimizer, std::slice::from_ref(&x)) {
            Err(Error::Training(error)) => Ok(error),
            Err(error) => Err(error),
            Ok(_) => panic!("it was built"),
        }
    };
    let error = built(candle_nn::ops::softmax_last_dim)?;
    assert!(matches!(&error, TrainError::Unreached(of) if of.names == ["unused.weight"]), "{error}");
    let error = built(|y| y.round())?;
    assert!(matches!(&error, TrainError::Unreached(of) if of.names == ["first.weight", "unused.weight"]), "{error}");
    drop(unused);
    Ok(())
}
