//! The modules of `modules.json`, held against a naive computation in double precision.

use anyhow::Result;
use serde_json::{json, Value};

use super::folder::{random, Folder, Weights, DENSE, NORMALIZE, POOLING, TRANSFORMER, WIDTH};
use super::oracle::{assert_close, gelu, hidden, ids, layer_norm, linear, pool, unit};

const TEXTS: [&str; 4] = ["the cat sat on the mat", "a bird", "", "the dog slept under the sun : a fish"];
const MODES: [&str; 6] = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"];
const FLAGS: [&str; 6] = [
    "pooling_mode_cls_token",
    "pooling_mode_max_tokens",
    "pooling_mode_mean_tokens",
    "pooling_mode_mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens",
    "pooling_mode_lasttoken",
];

fn function(name: &str, x: f64) -> f64 {
    match name.rsplit('.').next() {
        Some("Identity") => x,
        Some("Tanh") => x.tanh(),
        Some("ReLU") => x.max(0.),
        Some("GELU") => gelu(x),
        Some("Sigmoid") => 1. / (1. + (-x).exp()),
        Some("SiLU") => x / (1. + (-x).exp()),
        _ => panic!("{name} is no function"),
    }
}

/// A module behind the pooling, as the oracle has it.
enum Step {
    Dense { weights: Weights, activation: Value, residual: bool },
    LayerNorm(Weights),
    Normalize,
    Nothing,
}

impl Step {
    fn apply(&self, x: Vec<f64>) -> Vec<f64> {
        match self {
            Self::Dense { weights, activation, residual } => {
                let name = activation.as_str().unwrap_or("Tanh");
                let mut y: Vec<f64> = linear(weights, "linear", &x).into_iter().map(|x| function(name, x)).collect();
                if *residual {
                    let rest = if y.len() == x.len() { x } else { linear(weights, "residual", &x) };
                    y.iter_mut().zip(rest).for_each(|(y, x)| *y += x);
                }
                y
            }
            Self::LayerNorm(weights) => layer_norm(weights, "norm", &x, 1e-5),
            Self::Normalize => unit(&x),
            Self::Nothing => x,
        }
    }

    /// A random module in the folder `path`.
    fn draw(rng: &mut fastrand::Rng, folder: &Folder, path: &str, width: &mut usize) -> Result<(Self, &'static str)> {
        match rng.usize(..5) {
            0 | 1 => {
                let (out, bias, residual) =
                    (if rng.bool() { *width } else { rng.usize(1..40) }, rng.bool(), rng.bool());
                let names = [
                    "linear.Identity",
                    "activation.Tanh",
                    "activation.ReLU",
                    "activation.GELU",
                    "activation.Sigmoid",
                    "activation.SiLU",
                ];
                let activation = match rng.usize(..7) {
                    6 => Value::Null,
                    index => json!(format!("torch.nn.modules.{}", names[index])),
                };
                let mut config =
                    json!({"in_features": *width, "out_features": out, "bias": bias, "use_residual": residual});
                if !activation.is_null() {
                    config["activation_function"] = activation.clone();
                }
                if rng.bool() {
                    config["module_input_name"] = "sentence_embedding".into();
                    config["module_output_name"] = Value::Null;
                }
                folder.json(&format!("{path}/config.json"), &config)?;
                let mut weights = Weights::new();
                random(&mut weights, rng, "linear.weight", &[out, *width], 0., 0.4);
                if bias {
                    random(&mut weights, rng, "linear.bias", &[out], 0., 0.4);
                }
                if residual && out != *width {
                    random(&mut weights, rng, "residual.weight", &[out, *width], 0., 0.4);
                }
                folder.tensors(&format!("{path}/model.safetensors"), &weights)?;
                *width = out;
                Ok((Self::Dense { weights, activation, residual }, "Dense"))
            }
            2 if *width > 2 => {
                let mut weights = Weights::new();
                random(&mut weights, rng, "norm.weight", &[*width], 1., 0.3);
                random(&mut weights, rng, "norm.bias", &[*width], 0., 0.3);
                folder.json(&format!("{path}/config.json"), &json!({"dimension": *width}))?;
                folder.tensors(&format!("{path}/model.safetensors"), &weights)?;
                Ok((Self::LayerNorm(weights), "LayerNorm"))
            }
            2 | 3 => Ok((Self::Normalize, "Normalize")),
            _ => {
                folder.json(&format!("{path}/config.json"), &json!({"dropout": 0.3}))?;
                Ok((Self::Nothing, "Dropout"))
            }
        }
    }
}

/// A random configuration of a pooling, and the names of its modes in order.
fn draw_pooling(rng: &mut fastrand::Rng) -> (Value, Vec<&'static str>, bool) {
    let has_prompt = rng.bool();
    let mut config = json!({"include_prompt": has_prompt});
    let width = if rng.bool() { "embedding_dimension" } else { "word_embedding_dimension" };
    config[width] = WIDTH.into();
    let modes: Vec<&str> = match rng.usize(..4) {
        0 => {
            let mode = *rng.choice(&MODES).expect("there are some");
            config["pooling_mode"] = mode.into();
            vec![mode]
        }
        1 => {
            let modes: Vec<&str> = (0..rng.usize(1..4)).map(|_| MODES[rng.usize(..6)]).collect();
            config["pooling_mode"] = json!(modes);
            modes
        }
        // Without any, or with all flags off, it is the mean.
        kind => {
            let on: Vec<bool> = (0..6).map(|_| kind == 2 && rng.u8(..) < 90).collect();
            FLAGS.iter().zip(&on).filter(|_| rng.u8(..) < 200).for_each(|(flag, on)| config[*flag] = (*on).into());
            let modes = MODES.iter().zip(FLAGS).filter(|(_, flag)| config[*flag] == true).map(|(mode, _)| *mode);
            Some(modes.collect()).filter(|modes: &Vec<_>| !modes.is_empty()).unwrap_or(vec!["mean"])
        }
    };
    (config, modes, has_prompt)
}

#[test]
fn random_lists_of_modules_are_computed_in_order() -> Result<()> {
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (config, modes, has_prompt) = draw_pooling(&mut rng);
        let folder = Folder::of(&[TRANSFORMER, POOLING], &config)?;
        let (mut width, mut steps, mut names) = (WIDTH * modes.len(), Vec::new(), vec![TRANSFORMER, POOLING]);
        let paths: Vec<String> = (2..2 + rng.usize(..4)).map(|index| format!("{index}_module")).collect();
        let mut classes = Vec::new();
        for path in &paths {
            let (step, kind) = Step::draw(&mut rng, &folder, path, &mut width)?;
            let package = match kind {
                _ if rng.bool() => "models".to_owned(),
                "Dense" => "base.modules.dense".into(),
                "Normalize" => "base.modules.normalize".into(),
                "LayerNorm" => "sentence_transformer.modules.layer_norm".into(),
                _ => "sentence_transformer.modules".into(),
            };
            classes.push(format!("sentence_transformers.{package}.{kind}"));
            steps.push(step);
        }
        names.extend(classes.iter().zip(&paths).map(|(class, path)| (class.as_str(), path.as_str())));
        folder.json("modules.json", &super::folder::list(&names))?;
        let prompt = if rng.bool() { "query : " } else { "" };
        let truncate = rng.bool().then(|| rng.usize(1..2 * width));
        folder.json(
            "config_sentence_transformers.json",
            &json!({"prompts": {"p": prompt}, "default_prompt_name": "p", "truncate_dim": truncate, "similarity_fn_name": "dot"}),
        )?;
        let embedder = folder.embedder()?;
        assert_eq!(embedder.width(), truncate.map_or(width, |most| most.min(width)));
        for (text, got) in TEXTS.iter().zip(embedder.embed(&TEXTS)?) {
            let hidden = hidden(&folder.weights, &ids(&format!("{prompt}{text}")), &[]);
            let start = if has_prompt || prompt.is_empty() { 0 } else { ids(prompt).len() - 1 };
            let pooled: Vec<f64> = modes.iter().flat_map(|mode| pool(mode, &hidden, start)).collect();
            let mut expected = steps.iter().fold(pooled, |x, step| step.apply(x));
            expected.truncate(embedder.width());
            assert_close(&got, &expected, &format!("seed {seed}, {config}, {names:?}, {text:?}"));
        }
    }
    Ok(())
}

#[test]
fn a_folder_without_a_list_has_the_mean_of_length_one() -> Result<()> {
    let folder = Folder::plain()?;
    for (pooling, mode) in [(None, "mean"), (Some(json!({"pooling_mode": "cls"})), "cls")] {
        if let Some(pooling) = pooling {
            folder.json("1_Pooling/config.json", &pooling)?;
        }
        let got = folder.embedder()?.embed(&[TEXTS[0]])?;
        assert_close(&got[0], &unit(&pool(mode, &hidden(&folder.weights, &ids(TEXTS[0]), &[]), 0)), mode);
    }
    Ok(())
}

#[test]
fn vectors_have_length_one_if_the_list_says_so() -> Result<()> {
    let folder = Folder::pooled()?;
    let expected = pool("mean", &hidden(&folder.weights, &ids(TEXTS[0]), &[]), 0);
    assert_close(&folder.embedder()?.embed(&[TEXTS[0]])?[0], &expected, "no Normalize");
    folder.json("modules.json", &super::folder::list(&[TRANSFORMER, POOLING, NORMALIZE]))?;
    assert_close(&folder.embedder()?.embed(&[TEXTS[0]])?[0], &unit(&expected), "Normalize");
    Ok(())
}

#[test]
fn the_transformer_may_have_a_folder_of_its_own() -> Result<()> {
    let folder = Folder::pooled()?;
    let expected = folder.embedder()?.embed(&TEXTS)?;
    let list = super::folder::list(&[("sentence_transformers.models.Transformer", "0_Transformer"), POOLING]);
    folder.json("modules.json", &list)?;
    std::fs::create_dir(folder.path().join("0_Transformer"))?;
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        std::fs::rename(folder.path().join(file), folder.path().join("0_Transformer").join(file))?;
    }
    assert_eq!(folder.embedder()?.embed(&TEXTS)?, expected);
    Ok(())
}

/// The files that version 6.2 writes.
#[test]
fn folders_of_version_6_are_read() -> Result<()> {
    let modules = [
        ("sentence_transformers.base.modules.transformer.Transformer", ""),
        ("sentence_transformers.sentence_transformer.modules.pooling.Pooling", "1_Pooling"),
        ("sentence_transformers.base.modules.normalize.Normalize", "2_Normalize"),
    ];
    let pooling = json!({"embedding_dimension": WIDTH, "pooling_mode": "cls", "include_prompt": true});
    let folder = Folder::of(&modules, &pooling)?;
    let names = json!({"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"});
    folder.json("2_Normalize/config.json", &names)?;
    let transformer = json!({
        "transformer_task": "feature-extraction", "module_output_name": "token_embeddings",
        "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    });
    folder.json("sentence_bert_config.json", &transformer)?;
    let config = json!({
        "__version__": {"sentence_transformers": "6.2.0", "transformers": "5.24.0", "pytorch": "2.9.0"},
        "model_type": "SentenceTransformer", "prompts": {"query": "", "document": ""}, "default_prompt_name": null,
        "similarity_fn_name": "cosine",
    });
    folder.json("config_sentence_transformers.json", &config)?;
    let expected = unit(&pool("cls", &hidden(&folder.weights, &ids(TEXTS[0]), &[]), 0));
    assert_close(&folder.embedder()?.embed(&[TEXTS[0]])?[0], &expected, "version 6");
    Ok(())
}

#[test]
fn two_dense_modules_follow_each_other() -> Result<()> {
    let second = ("sentence_transformers.models.Dense", "3_Dense");
    let folder = Folder::of(&[TRANSFORMER, POOLING, DENSE, second, NORMALIZE], &json!({"pooling_mode": "cls"}))?;
    let mut rng = fastrand::Rng::with_seed(2);
    let mut expected = pool("cls", &hidden(&folder.weights, &ids(TEXTS[0]), &[]), 0);
    for (path, (input, output)) in [("2_Dense", (WIDTH, 5)), ("3_Dense", (5, 7))] {
        let mut weights = Weights::new();
        random(&mut weights, &mut rng, "linear.weight", &[output, input], 0., 1.);
        random(&mut weights, &mut rng, "linear.bias", &[output], 0., 1.);
        folder.json(&format!("{path}/config.json"), &json!({"in_features": input, "out_features": output}))?;
        folder.tensors(&format!("{path}/model.safetensors"), &weights)?;
        expected = linear(&weights, "linear", &expected).into_iter().map(f64::tanh).collect();
    }
    assert_close(&folder.embedder()?.embed(&[TEXTS[0]])?[0], &unit(&expected), "two Dense");
    Ok(())
}
