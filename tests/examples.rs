//! Runs the examples as programs on the CPU. `cargo test` builds them; to run this file alone, first run `cargo build
//! --examples` with the same profile.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{ensure, Context, Result};
use assert_cmd::assert::Assert;
use assert_cmd::Command;
use candle::{DType, Device};
use candle_nn::VarMap;

/// The program of an example, which is in a folder beside this test.
fn program(name: &str) -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let folder = test.parent().and_then(Path::parent).context("no folder of the build")?.join("examples");
    let path = folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    ensure!(path.is_file(), "{} is not built: run `cargo build --examples`", path.display());
    Ok(path)
}

fn example(name: &str, args: &[&str]) -> Result<Assert> {
    Ok(Command::new(program(name)?).args(args).assert())
}

fn stderr(assert: &Assert) -> String {
    String::from_utf8_lossy(&assert.get_output().stderr).into_owned()
}

/// Saves a file with all weights that a model loads.
fn save<M>(path: &Path, load: impl FnOnce(candle_nn::VarBuilder) -> candle::Result<M>) -> Result<()> {
    let weights = VarMap::new();
    load(candle_nn::VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu))?;
    Ok(weights.save(path)?)
}

const SHORT: [&str; 7] = ["--cpu", "--size", "tiny", "--seq-len", "8", "--iters", "1"];

#[test]
fn bert_and_t5_accept_a_weights_file() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [bert, t5] = ["bert.safetensors", "t5.safetensors"].map(|name| folder.path().join(name));
    save(&bert, |vb| opara_models::bert::BertModel::load(vb, &opara_models::bert::Config::tiny()))?;
    save(&t5, |vb| opara_models::t5::T5::load(vb, &opara_models::t5::Config::tiny()))?;
    for (name, file) in [("bert", &bert), ("t5", &t5)] {
        let file = file.to_str().context("a path of UTF-8")?;
        let told = stderr(&example(name, &[&SHORT[..], &["--model", file]].concat())?.success());
        assert!(told.contains("no config.json in the folder of the weights file"), "{told}");
        assert!(!told.contains("does not read"), "{told}");
        // A model of another size than the file.
        let misfit = example(name, &["--cpu", "--model", file])?.code(1);
        assert!(stderr(&misfit).contains("the weights do not fit this model"), "{}", stderr(&misfit));
    }
    Ok(())
}

#[test]
fn config_and_tokenizer_beside_a_weights_file_are_read() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [file, config, tokenizer] =
        ["model.safetensors", "config.json", "tokenizer.json"].map(|name| folder.path().join(name));
    let model = file.to_str().context("a path of UTF-8")?;
    save(&file, |vb| opara_models::t5::T5::load(vb, &opara_models::t5::Config::tiny()))?;
    std::fs::write(&config, "{")?;
    std::fs::write(&tokenizer, "{")?;
    let damaged = example("t5", &[&SHORT[..], &["--model", model]].concat())?.code(1);
    assert!(stderr(&damaged).contains(config.to_str().context("a path of UTF-8")?), "{}", stderr(&damaged));
    std::fs::remove_file(config)?;
    let damaged = example("t5", &[&SHORT[..], &["--model", model]].concat())?.code(1);
    assert!(stderr(&damaged).contains(tokenizer.to_str().context("a path of UTF-8")?), "{}", stderr(&damaged));
    Ok(())
}

#[test]
fn tensors_that_a_model_does_not_read_are_refused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("bert.safetensors");
    let tiny = opara_models::bert::Config::tiny();
    let more = opara_models::bert::Config { num_hidden_layers: tiny.num_hidden_layers + 1, ..tiny.clone() };
    save(&file, |vb| opara_models::bert::BertModel::load(vb, &more))?;
    let file = file.to_str().context("a path of UTF-8")?;
    let given = [&SHORT[..], &["--model", file]].concat();
    let layer = format!("encoder.layer.{}.", tiny.num_hidden_layers);
    let told = stderr(&example("bert", &given)?.code(1));
    assert!(told.contains("does not read 16 of the tensors") && told.contains(&layer), "{told}");
    let told = stderr(&example("bert", &[&given[..], &["--allow-unread"]].concat())?.success());
    assert!(told.contains("does not read 16 of the tensors") && told.contains(&layer), "{told}");
    Ok(())
}

#[test]
fn a_sequence_too_long_for_memory_is_an_error() -> Result<()> {
    let told = stderr(&example("t5", &["--cpu", "--seq-len", "100000"])?.code(1));
    assert!(told.contains("--seq-len 100000 is too long"), "{told}");
    let told = stderr(&example("t5", &["--cpu", "--max-tokens", "100000"])?.code(1));
    assert!(told.contains("--max-tokens 100000 is too long"), "{told}");
    Ok(())
}

/// Every size of a model runs without further options.
#[test]
fn a_small_bert_has_a_default_length() -> Result<()> {
    example("bert", &["--cpu", "--size", "tiny", "--iters", "1"])?.success();
    let told = stderr(&example("bert", &["--cpu", "--size", "tiny", "--seq-len", "65"])?.code(1));
    assert!(told.contains("--seq-len 65 is more than the model's 64"), "{told}");
    Ok(())
}

#[test]
fn a_closed_pipe_is_no_error() -> Result<()> {
    for (name, args) in [("bert", &SHORT[..]), ("deepfm", &["--cpu", "--iters", "1", "--repeat", "1000"])] {
        let mut child = std::process::Command::new(program(name)?)
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        // Closed before the first line is written.
        drop(child.stdout.take());
        let mut told = String::new();
        child.stderr.take().context("stderr is piped")?.read_to_string(&mut told)?;
        assert!(child.wait()?.success(), "{name}: {told}");
        assert!(!told.contains("roken pipe") && !told.contains("panicked"), "{name}: {told}");
    }
    Ok(())
}

#[cfg(feature = "zoo")]
#[test]
fn the_zoo_writes_rows_without_a_gpu() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("zoo.jsonl");
    let path = file.to_str().context("a path of UTF-8")?;
    example("zoo", &["--cpu", "--only", "mobileone-s0", "--json", path])?.success();
    let text = std::fs::read_to_string(&file)?;
    let row: serde_json::Value = serde_json::from_str(&text)?;
    assert_eq!((row["model"].as_str(), row["finite"].as_bool()), (Some("mobileone-s0"), Some(true)), "{text}");
    Ok(())
}

#[cfg(feature = "zoo")]
#[test]
fn the_zoo_has_batches_where_its_inputs_are_images() -> Result<()> {
    let args = ["--cpu", "--only", "mobileone-s0,vgg16", "--unchanged", "exact", "--batch", "2"];
    let answer = example("zoo", &args)?.success();
    let told = String::from_utf8(answer.get_output().stdout.clone())?;
    assert!(told.contains("[2, 3, 224, 224] to [2, 1000], finite"), "{told}");
    assert!(told.contains("failed: its inputs have one item"), "{told}");
    Ok(())
}

#[test]
fn sequences_that_come_and_go_write_what_they_write_alone() -> Result<()> {
    let short = [
        "--cpu",
        "--random",
        "tiny",
        "--longest",
        "16",
        "--tokens",
        "200",
        "--slots",
        "3",
        "--requests",
        "4",
        "--json",
    ];
    let answer = example("batching", &short)?.success();
    let told: serde_json::Value = serde_json::from_slice(&answer.get_output().stdout)?;
    assert_eq!(told["equal_to_alone"], true, "{told}");
    assert!(told["tokens"].as_u64() >= Some(200) && told["speeds"].as_array().map(Vec::len) == Some(3), "{told}");
    let stderr = stderr(&example("batching", &["--cpu", "--model", "x"])?.code(1));
    assert!(stderr.contains("random weights"), "{stderr}");
    Ok(())
}

#[test]
fn text_is_generated_by_random_weights_and_by_a_folder() -> Result<()> {
    let short = ["--cpu", "--tokens", "5", "--iters", "1", "--batch", "2", "--temperature", "0.7", "--json"];
    let json = |args: &[&str]| -> Result<serde_json::Value> {
        let answer = example("generate", &[&short[..], args].concat())?.success();
        Ok(serde_json::from_slice(&answer.get_output().stdout)?)
    };
    let random = json(&["--random", "tiny"])?;
    assert_eq!(random["equal_to_eager"], true, "{random}");
    assert_eq!(random["tokens"].as_array().map(|texts| texts.len()), Some(2), "{random}");
    assert!(["prefill_tokens_per_s", "decode_tokens_per_s", "us_per_token"].iter().all(|key| random[key].is_f64()));

    let folder = tempfile::tempdir()?;
    let model = folder.path().to_str().context("a path of UTF-8")?;
    let config = opara_models::decoder::Config::tiny();
    save(&folder.path().join("model.safetensors"), |vb| {
        opara_models::decoder::Decoder::load(vb, &config, 64).map_err(candle::Error::wrap)
    })?;
    let described = serde_json::json!({
        "model_type": "llama", "vocab_size": config.vocab, "hidden_size": config.hidden, "num_hidden_layers": 3,
        "intermediate_size": config.intermediate, "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads, "max_position_embeddings": 64,
    });
    std::fs::write(folder.path().join("config.json"), described.to_string())?;
    let told = stderr(&example("generate", &["--cpu", "--model", model])?.code(1));
    assert!(told.contains("tokenizer.json is missing"), "{told}");
    let tokenizer = r#"{"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"once": 0, "upon": 1, "[?]": 2}, "unk_token": "[?]"}}"#;
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer)?;
    let written = json(&["--model", model, "--prompt", "once upon"])?;
    assert_eq!(written["equal_to_eager"], true, "{written}");
    let long = ["--cpu", "--tokens", "5", "--model", model, "--prompt-tokens", "60"];
    let told = stderr(&example("generate", &long)?.code(1));
    assert!(told.contains("a context of 65 tokens") && told.contains("the model's 64"), "{told}");
    let chat = stderr(&example("generate", &["--cpu", "--model", model, "--chat"])?.code(1));
    assert!(chat.contains("no chat template"), "{chat}");
    Ok(())
}

#[test]
fn wrong_usage_of_examples_is_explained() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let nowhere = folder.path().join("nowhere/out.csv").display().to_string();
    for (name, args, message) in [
        ("bert", vec!["--cpu", "one sentence"], "give two sentences or more"),
        ("deepfm", vec!["--cpu", "--out", &nowhere], "cannot write"),
        ("deepfm", vec!["--cpu", &nowhere], "cannot read the table"),
        ("generate", vec!["--cpu", "--prompt", ""], "the prompt has no tokens"),
        ("generate", vec!["--cpu", "--top-p", "0"], "top-p above 0 and at most 1"),
    ] {
        let told = stderr(&example(name, &args)?.code(1));
        assert!(told.contains(message), "{name} {args:?}: {told}");
    }
    Ok(())
}

#[test]
fn training_equals_eager_steps_and_goes_on_from_a_checkpoint() -> Result<()> {
    for (model, count) in [(&[][..], 2), (&["--model", "lora"], 1)] {
        let args = [&["--cpu", "--json", "--steps", "24"], model].concat();
        let told = example("train", &args)?.success();
        let models: Vec<serde_json::Value> = serde_json::from_slice(&told.get_output().stdout)?;
        assert_eq!(models.len(), count);
        for model in &models {
            assert_eq!(
                (&model["equal_to_eager"], &model["equal_after_resume"]),
                (&true.into(), &true.into()),
                "{model}"
            );
            assert!(model["last_loss"].as_f64() < model["first_loss"].as_f64(), "{model}");
        }
    }
    Ok(())
}
