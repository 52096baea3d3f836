//! A checkpoint in a folder is read back as it was written.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::Path;

use candle::{DType, Device, Tensor};
use opara_weights::{Checkpoint, WeightsError};
use safetensors::tensor::{serialize_to_file, Dtype, TensorView};
use tempfile::TempDir;

type Outcome = Result<(), Box<dyn Error>>;

const CPU: Device = Device::Cpu;
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

fn le(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn write(file: &Path, tensors: &[(&str, Dtype, &[usize], &[u8])]) -> Outcome {
    let mut views = Vec::new();
    for (name, dtype, shape, data) in tensors {
        views.push((*name, TensorView::new(*dtype, shape.to_vec(), data)?));
    }
    Ok(serialize_to_file(views, None, file)?)
}

/// A folder with a configuration and no weights yet.
fn folder() -> Result<TempDir, std::io::Error> {
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("config.json"), r#"{"layers": 3}"#)?;
    Ok(dir)
}

fn find(dir: &TempDir) -> Result<Checkpoint, WeightsError> {
    Checkpoint::find(dir.path().to_str().expect("a UTF-8 path"))
}

/// A checkpoint with one tensor of every kind that the tests use.
fn small() -> Result<(TempDir, Checkpoint), Box<dyn Error>> {
    let dir = folder()?;
    let tensors: [(&str, Dtype, &[usize], &[u8]); 5] = [
        ("a.weight", Dtype::F32, &[2, 2], &le(&[1.0, 2.0, 3.0, -4.5])),
        ("a.half", Dtype::F16, &[2], &[0x00, 0x3C, 0x00, 0xC0]),
        ("a.brain", Dtype::BF16, &[1], &[0x80, 0x3F]),
        ("a.count", Dtype::I64, &[], &7i64.to_le_bytes()),
        ("a.mask", Dtype::BOOL, &[2], &[0, 1]),
    ];
    write(&dir.path().join(WEIGHTS), &tensors)?;
    let checkpoint = find(&dir)?;
    Ok((dir, checkpoint))
}

fn message<T>(result: candle::Result<T>) -> String {
    result.err().expect("an error").to_string()
}

#[test]
fn written_tensors_are_read_back() -> Outcome {
    let (_dir, checkpoint) = small()?;
    let config: BTreeMap<String, usize> = checkpoint.config()?;
    assert_eq!(config["layers"], 3);
    assert_eq!(checkpoint.tokenizer_path(), None);

    let vb = checkpoint.weights(DType::F32, &CPU)?;
    let weight = vb.pp("a").get((2, 2), "weight")?;
    assert_eq!(weight.to_vec2::<f32>()?, [[1.0, 2.0], [3.0, -4.5]]);
    assert!(vb.contains_tensor("a.weight") && !vb.contains_tensor("a"));
    let unchecked: Tensor = vb.get_unchecked("a.weight")?;
    assert_eq!(unchecked.dims(), [2, 2]);
    Ok(())
}

#[test]
fn git_lfs_pointers_are_distinguished_from_damaged_files() -> Outcome {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 437951328\n";
    let told = |found: Result<Checkpoint, WeightsError>, name: &str| {
        let error = found.expect_err("a pointer");
        assert!(matches!(&error, WeightsError::LfsPointer { path } if path.ends_with(name)), "{error}");
        assert!(error.to_string().contains("git lfs pull"), "{error}");
    };
    for name in [WEIGHTS, "tokenizer.json"] {
        let (dir, _) = small()?;
        let path = dir.path().join(name);
        fs::write(&path, pointer)?;
        told(find(&dir), name);
        told(Checkpoint::find(dir.path().join(WEIGHTS).to_str().expect("a UTF-8 path")), name);
    }
    let dir = folder()?;
    fs::write(dir.path().join(INDEX), pointer)?;
    told(find(&dir), INDEX);
    Ok(())
}

#[test]
fn finds_the_tokenizer() -> Outcome {
    let (dir, _) = small()?;
    let file = dir.path().join("tokenizer.json");
    fs::write(&file, "{}")?;
    assert_eq!(find(&dir)?.tokenizer_path(), Some(file.as_path()));
    Ok(())
}

#[test]
fn only_floats_are_converted() -> Outcome {
    let (_dir, checkpoint) = small()?;
    let vb = checkpoint.weights(DType::F32, &CPU)?.pp("a");
    assert_eq!(vb.get(2, "half")?.to_vec1::<f32>()?, [1.0, -2.0]);
    assert_eq!(vb.get(1, "brain")?.to_vec1::<f32>()?, [1.0]);
    let brain = vb.clone().set_dtype(DType::BF16);
    assert_eq!(brain.get((2, 2), "weight")?.dtype(), DType::BF16);
    let whole = vb.clone().set_dtype(DType::I64);
    assert_eq!(whole.get((), "count")?.to_scalar::<i64>()?, 7);

    for (found, vb, name) in [("I64", &vb, "count"), ("BOOL", &vb, "mask"), ("F16", &whole, "half")] {
        let error = message(vb.get_unchecked_dtype(name, vb.dtype()));
        for part in [&format!("a.{name}"), WEIGHTS, found] {
            assert!(error.contains(part), "{error}");
        }
    }
    Ok(())
}

#[test]
fn missing_and_misshapen_tensors_are_named() -> Outcome {
    let (_dir, checkpoint) = small()?;
    let vb = checkpoint.weights(DType::F32, &CPU)?.pp("a");
    let missing = message(vb.get(2, "bias"));
    assert!(missing.contains("`a.bias`") && missing.contains(WEIGHTS));
    let misshapen = message(vb.get((4, 1), "weight"));
    for part in ["`a.weight`", WEIGHTS, "[2, 2]", "[4, 1]"] {
        assert!(misshapen.contains(part), "{misshapen}");
    }
    Ok(())
}

#[test]
fn surplus_lists_tensors_that_were_not_requested() -> Outcome {
    let (_dir, checkpoint) = small()?;
    let loaded = checkpoint.load(DType::F32, &CPU)?;
    assert_eq!(loaded.surplus().len(), 5);
    let vb = loaded.vb.pp("a");
    vb.get((2, 2), "weight")?;
    vb.get(2, "half")?;
    assert!(vb.get(2, "bias").is_err() && vb.contains_tensor("brain"));
    assert_eq!(loaded.surplus(), ["a.brain", "a.count", "a.mask"]);
    Ok(())
}

/// Creates two shards and an index with the given `(tensor, file)` pairs.
fn sharded(tensors: &[(&str, &str)]) -> Result<TempDir, Box<dyn Error>> {
    let dir = folder()?;
    for (file, name, value) in [("one.safetensors", "x", 1.0), ("two.safetensors", "y", 2.0)] {
        write(&dir.path().join(file), &[(name, Dtype::F32, &[1], &le(&[value]))])?;
    }
    let map: BTreeMap<_, _> = tensors.iter().copied().collect();
    let index = serde_json::json!({ "metadata": { "total_size": 8 }, "weight_map": map });
    fs::write(dir.path().join(INDEX), index.to_string())?;
    Ok(dir)
}

#[test]
fn shards_read_as_one() -> Outcome {
    let dir = sharded(&[("x", "one.safetensors"), ("y", "two.safetensors")])?;
    let loaded = find(&dir)?.load(DType::F32, &CPU)?;
    assert_eq!(loaded.vb.get(1, "x")?.to_vec1::<f32>()?, [1.0]);
    assert_eq!(loaded.surplus(), ["y"]);
    assert_eq!(loaded.vb.get(1, "y")?.to_vec1::<f32>()?, [2.0]);
    let missing = message(loaded.vb.get(1, "z"));
    assert!(missing.contains("`z`") && missing.contains(INDEX));
    let misshapen = message(loaded.vb.get(3, "y"));
    assert!(misshapen.contains("two.safetensors"), "{misshapen}");
    Ok(())
}

#[test]
fn indices_with_missing_files_or_tensors_are_errors() -> Outcome {
    let absent = find(&sharded(&[("x", "three.safetensors")])?);
    assert!(matches!(&absent, Err(WeightsError::MissingFile { file, .. }) if file == "three.safetensors"));
    for outside in ["../one.safetensors", "/one.safetensors", "..", ""] {
        let outside = find(&sharded(&[("x", outside)])?);
        assert!(matches!(outside, Err(WeightsError::Malformed { path, .. }) if path.ends_with(INDEX)));
    }
    let dir = sharded(&[("x", "two.safetensors")])?;
    let elsewhere = find(&dir)?.load(DType::F32, &CPU).err();
    assert!(matches!(elsewhere, Some(WeightsError::MissingTensor { name, file })
        if name == "x" && file.ends_with("two.safetensors")));
    Ok(())
}

#[test]
fn missing_files_are_named() -> Outcome {
    let empty = tempfile::tempdir()?;
    let error = find(&empty).expect_err("no files").to_string();
    assert!(error.contains("config.json"), "{error}");
    let error = find(&folder()?).expect_err("no weights").to_string();
    assert!(error.contains(WEIGHTS) && error.contains(INDEX), "{error}");

    let (dir, checkpoint) = small()?;
    let wrong = checkpoint.config::<Vec<u8>>().expect_err("not a list");
    assert!(matches!(wrong, WeightsError::Json { path, .. } if path.ends_with("config.json")));
    let nowhere = dir.path().join("nowhere/at/all");
    let error = Checkpoint::find(&nowhere.to_string_lossy());
    assert!(matches!(error, Err(WeightsError::NotAModel { .. })));
    Ok(())
}

#[test]
fn an_adapter_is_named_with_and_without_the_weights_of_its_model() -> Outcome {
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("adapter_config.json"), "{}")?;
    fs::write(dir.path().join("adapter_model.safetensors"), "")?;
    for name in ["config.json", ""] {
        let found = find(&dir);
        assert!(
            matches!(&found, Err(WeightsError::Adapter { path }) if path.ends_with("adapter_config.json")),
            "{name}"
        );
        if !name.is_empty() {
            fs::write(dir.path().join(name), "{}")?;
        }
    }
    write(&dir.path().join(WEIGHTS), &[("a", Dtype::F32, &[1], &le(&[1.]))])?;
    assert!(matches!(find(&dir)?.load(DType::F32, &CPU), Err(WeightsError::Adapter { .. })));
    find(&dir)?.allow_unread(true).load(DType::F32, &CPU)?;
    Ok(())
}
