//! Compares BERT with candle-transformers' on the same weights.

use candle::{DType, Device, Module, Result, Tensor};
use candle_nn::{VarBuilder, VarMap};
use candle_transformers::models::bert as reference;
use opara_candle::{Mode, OnUncapturable, OparaExecutor};
use opara_models::bert::{BertModel, Config, HiddenAct};
use opara_weights::Checkpoint;

const BATCH: usize = 2;
const SEQ: usize = 17;

fn seeded(dtype: DType) -> VarBuilder<'static> {
    opara_weights::seeded(7, dtype, &Device::Cpu)
}

fn reference_config(config: &Config) -> reference::Config {
    reference::Config {
        vocab_size: config.vocab_size,
        hidden_size: config.hidden_size,
        num_hidden_layers: config.num_hidden_layers,
        num_attention_heads: config.num_attention_heads,
        intermediate_size: config.intermediate_size,
        hidden_act: match config.hidden_act {
            HiddenAct::Gelu => reference::HiddenAct::Gelu,
            HiddenAct::GeluNew => reference::HiddenAct::GeluApproximate,
            HiddenAct::Relu => reference::HiddenAct::Relu,
        },
        max_position_embeddings: config.max_position_embeddings,
        type_vocab_size: config.type_vocab_size,
        layer_norm_eps: config.layer_norm_eps,
        ..Default::default()
    }
}

/// Token ids and types that vary from element to element.
fn tokens(config: &Config) -> Result<(Tensor, Tensor)> {
    let ids = (0..BATCH * SEQ).map(|i| (i * 31 % config.vocab_size) as u32).collect::<Vec<_>>();
    let types = (0..BATCH * SEQ).map(|i| u32::from(i % SEQ > SEQ / 2)).collect::<Vec<_>>();
    let tensor = |values| Tensor::from_vec(values, (BATCH, SEQ), &Device::Cpu);
    Ok((tensor(ids)?, tensor(types)?))
}

/// A mask in which item `i` has `visible[i]` tokens, then padding.
fn padding(visible: [usize; BATCH]) -> Result<Tensor> {
    let mask = visible.iter().flat_map(|&n| (0..SEQ).map(move |i| u32::from(i < n))).collect::<Vec<_>>();
    Tensor::from_vec(mask, (BATCH, SEQ), &Device::Cpu)
}

fn max_difference(a: &Tensor, b: &Tensor) -> Result<f32> {
    (a - b)?.abs()?.flatten_all()?.max(0)?.to_scalar()
}

#[test]
fn last_hidden_state_matches_candle_transformers() -> Result<()> {
    let padding = padding([SEQ, 5])?;
    let masks = [None, Some(padding.clone()), Some(padding.unsqueeze(1)?.repeat((1, SEQ, 1))?)];
    for hidden_act in [HiddenAct::Gelu, HiddenAct::GeluNew, HiddenAct::Relu] {
        let config = Config { hidden_act, ..Config::tiny() };
        let expected = reference::BertModel::load(seeded(DType::F32), &reference_config(&config))?;
        let model = BertModel::load(seeded(DType::F32), &config)?;
        let (ids, types) = tokens(&config)?;
        for mask in &masks {
            let expected = expected.forward(&ids, &types, mask.as_ref())?;
            let got = model.forward(&ids, &types, mask.as_ref())?;
            let difference = max_difference(&got, &expected)?;
            assert!(difference < 1e-4, "{hidden_act:?}, mask {mask:?}: {difference}");
        }
    }
    Ok(())
}

/// The expected values were written by `reference/bert.py`.
#[test]
fn last_hidden_state_matches_transformers() -> Result<()> {
    let stored: std::collections::HashMap<String, Vec<Vec<f32>>> =
        serde_json::from_str(include_str!("data/bert.json")).expect("the stored outputs are sound");
    let config = Config::tiny();
    let (ids, types) = tokens(&config)?;
    let hidden = BertModel::load(seeded(DType::F32), &config)?.forward(&ids, &types, None)?;
    for (name, position) in [("first", 0), ("last", SEQ - 1)] {
        let expected = Tensor::new(stored[name].clone(), &Device::Cpu)?;
        let difference = max_difference(&hidden.narrow(1, position, 1)?.squeeze(1)?, &expected)?;
        assert!(difference < 1e-4, "the {name} token: {difference}");
    }
    Ok(())
}

#[test]
fn without_a_mask_all_tokens_are_visible_and_of_one_sentence() -> Result<()> {
    let config = Config::tiny();
    let model = BertModel::load(seeded(DType::F32), &config)?;
    let (ids, _) = tokens(&config)?;
    let expected = model.forward(&ids, &ids.zeros_like()?, Some(&ids.ones_like()?))?;
    assert!(max_difference(&Module::forward(&model, &ids)?, &expected)? < 1e-6);
    Ok(())
}

#[test]
fn padding_does_not_change_the_tokens() -> Result<()> {
    let config = Config::tiny();
    let model = BertModel::load(seeded(DType::F32), &config)?;
    let (ids, types) = tokens(&config)?;
    let padded = model.forward(&ids, &types, Some(&padding([5, 5])?))?.narrow(1, 0, 5)?;
    let alone = model.forward(&ids.narrow(1, 0, 5)?, &types.narrow(1, 0, 5)?, None)?;
    assert!(max_difference(&padded, &alone)? < 1e-5);
    Ok(())
}

#[test]
fn f16_is_finite_even_if_all_tokens_are_padding() -> Result<()> {
    let config = Config::tiny();
    let model = BertModel::load(seeded(DType::F16), &config)?;
    let full = BertModel::load(seeded(DType::F32), &config)?;
    let (ids, types) = tokens(&config)?;
    let mask = padding([5, 0])?;
    let got = model.forward(&ids, &types, Some(&mask))?.to_dtype(DType::F32)?;
    let expected = full.forward(&ids, &types, Some(&mask))?;
    assert!(got.flatten_all()?.to_vec1::<f32>()?.iter().all(|v| v.is_finite()));
    let difference = max_difference(&got.narrow(0, 0, 1)?, &expected.narrow(0, 0, 1)?)?;
    assert!(difference < 0.05, "{difference}");
    Ok(())
}

#[test]
fn tensor_names_may_start_with_bert() -> Result<()> {
    let config = Config::tiny();
    let weights = VarMap::new();
    let vb = VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu);
    let expected = BertModel::load(vb.pp("bert"), &config)?;
    let count = weights.all_vars().len();
    let model = BertModel::load(vb, &config)?;
    assert_eq!(weights.all_vars().len(), count, "nothing was made anew");
    let (ids, _) = tokens(&config)?;
    assert_eq!(max_difference(&Module::forward(&model, &ids)?, &Module::forward(&expected, &ids)?)?, 0.);
    Ok(())
}

#[test]
fn the_executor_captures_every_operator() -> Result<()> {
    let config = Config::tiny();
    let (ids, types) = tokens(&config)?;
    let inputs = [ids.clone(), types, padding([SEQ, 5])?];
    let strict = || OparaExecutor::builder().on_uncapturable(OnUncapturable::Error);

    let model = BertModel::load(seeded(DType::F32), &config)?;
    let expected = model.forward(&inputs[0], &inputs[1], Some(&inputs[2]))?;
    let masked = move |x: &[Tensor]| Ok(vec![model.forward(&x[0], &x[1], Some(&x[2]))?]);
    let executor = strict().build_fn(masked, &inputs)?;
    let report = executor.report();
    assert_eq!((report.mode(), report.reason()), (Mode::Threads, None));
    assert!(report.is_verified() && report.counts().width >= 3, "query, key and value side by side");
    assert_eq!(max_difference(&executor.call(&inputs)?[0], &expected)?, 0.);

    let model = BertModel::load(seeded(DType::F32), &config)?;
    let expected = Module::forward(&model, &ids)?;
    let executor = strict().build(model, &ids)?;
    assert_eq!(max_difference(&executor.forward(&ids)?, &expected)?, 0.);
    Ok(())
}

#[test]
fn an_executor_takes_as_many_tokens_as_there_are_positions() -> Result<()> {
    let config = Config::tiny();
    let ids = Tensor::ones((1, config.max_position_embeddings), DType::U32, &Device::Cpu)?;
    let fast = OparaExecutor::new(BertModel::load(seeded(DType::F32), &config)?, &ids)?;
    assert_eq!(fast.report().mode(), Mode::Threads);
    Ok(())
}

#[test]
fn config_parses_that_of_a_checkpoint() -> serde_json::Result<()> {
    let json = r#"{
        "architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1, "gradient_checkpointing": false,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768, "initializer_range": 0.02,
        "intermediate_size": 3072, "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert",
        "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 0, "position_embedding_type": "absolute",
        "transformers_version": "4.6.0.dev0", "type_vocab_size": 2, "use_cache": true, "vocab_size": 30522
    }"#;
    assert_eq!(serde_json::from_str::<Config>(json)?, Config::base());
    Ok(())
}

#[test]
fn heads_must_divide_the_hidden_size() {
    for num_attention_heads in [0, 5] {
        let config = Config { num_attention_heads, ..Config::tiny() };
        let error = BertModel::load(seeded(DType::F32), &config).err().expect("an error");
        assert!(error.to_string().contains("num_attention_heads"), "{error}");
    }
}

/// Names of 2018: `gamma` and `beta`, below `bert.`, beside heads for training.
#[test]
fn norms_have_their_old_names_too() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let config = Config::tiny();
    let names = VarMap::new();
    BertModel::load(VarBuilder::from_varmap(&names, DType::F32, &Device::Cpu), &config)?;
    let weights = seeded(DType::F32);
    let names: Vec<_> = names
        .data()
        .lock()
        .map_err(|_| "a poisoned lock")?
        .iter()
        .map(|(name, var)| (name.clone(), var.dims().to_vec()))
        .collect();
    let folder = tempfile::tempdir()?;
    let json = serde_json::json!({"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 128, "max_position_embeddings": 64, "type_vocab_size": 2, "hidden_act": "gelu"});
    std::fs::write(folder.path().join("config.json"), json.to_string())?;
    let load = |more: &[&str]| -> std::result::Result<BertModel, Box<dyn std::error::Error>> {
        let mut tensors = std::collections::HashMap::new();
        for (name, dims) in &names {
            let tensor = weights.get(dims.as_slice(), &format!("bert.{name}"))?;
            let old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
            tensors.insert(format!("bert.{old}"), tensor);
        }
        for name in more {
            tensors.insert((*name).to_owned(), Tensor::ones(3, DType::F32, &Device::Cpu)?);
        }
        candle::safetensors::save(&tensors, folder.path().join("model.safetensors"))?;
        let checkpoint = Checkpoint::find(folder.path().to_str().ok_or("a path of UTF-8")?)?;
        let loaded = checkpoint.load(DType::F32, &Device::Cpu)?;
        let config = Config::of_checkpoint(&checkpoint)?;
        assert_eq!(config, Config::tiny());
        let model = BertModel::load(loaded.vb.clone(), &config)?;
        loaded.check(BertModel::is_head)?;
        Ok(model)
    };
    let (ids, types) = tokens(&config)?;
    let expected = BertModel::load(seeded(DType::F32), &config)?.forward(&ids, &types, None)?;
    let heads = [
        "bert.pooler.dense.weight",
        "cls.predictions.bias",
        "cls.seq_relationship.weight",
        "bert.embeddings.position_ids",
    ];
    assert_eq!(max_difference(&load(&heads)?.forward(&ids, &types, None)?, &expected)?, 0.);
    for name in [
        "classifier.weight",
        "qa_outputs.bias",
        "bert.encoder.layer.0.attention.self.distance_embedding.weight",
        "bert.embeddings.LayerNorm.weight",
        "bert.encoder.layer.0.attention.self.query.lora_A.weight",
        "linear.weight",
    ] {
        let error = load(&[name]).err().ok_or("a tensor that is not read")?.to_string();
        assert!(error.contains(name), "{name}: {error}");
    }
    Ok(())
}
