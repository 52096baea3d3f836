//! Files of `torch.save` read like safetensors files with the same tensors. `data/make.py` wrote the files.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use candle::{DType, Device, Tensor};
use opara_weights::{Checkpoint, WeightsError};
use tempfile::TempDir;

type Outcome = Result<(), Box<dyn Error>>;

const CPU: Device = Device::Cpu;

fn data(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(file)
}

fn find(path: &Path) -> Result<Checkpoint, WeightsError> {
    Checkpoint::find(path.to_str().expect("a UTF-8 path"))
}

/// A folder with a configuration and the given files of `data` under other names.
fn folder(files: &[(&str, &str)]) -> Result<TempDir, std::io::Error> {
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("config.json"), "{}")?;
    for (file, name) in files {
        fs::copy(data(file), dir.path().join(name))?;
    }
    Ok(dir)
}

/// Loads the tensor in the first dtype that it has or converts to.
fn natural(checkpoint: &Checkpoint, name: &str) -> candle::Result<Option<Tensor>> {
    let vb = checkpoint.weights(DType::F64, &CPU)?;
    let dtypes = [DType::F64, DType::I64, DType::I32, DType::U8];
    Ok(dtypes.into_iter().find_map(|dtype| vb.get_unchecked_dtype(name, dtype).ok()))
}

#[test]
fn both_pytorch_formats_read_like_safetensors() -> Outcome {
    let expected = find(&data("same.safetensors"))?;
    let names = expected.load(DType::F32, &CPU)?.surplus();
    assert_eq!(names.len(), 20);
    for file in ["zip.pth", "zip-protocol-4.pth", "older.pth"] {
        let checkpoint = find(&data(file))?;
        assert_eq!(checkpoint.load(DType::F32, &CPU)?.surplus(), names, "{file}");
        for name in &names {
            match (natural(&checkpoint, name)?, natural(&expected, name)?) {
                (None, None) => assert_eq!(name, "plain.mask", "candle has no bool"),
                (Some(found), Some(expected)) => {
                    assert_eq!((found.dtype(), found.dims()), (expected.dtype(), expected.dims()), "{file}: {name}");
                    let [found, expected] =
                        [found, expected].map(|t| t.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>());
                    assert_eq!(found?, expected?, "{file}: {name}");
                }
                (found, expected) => panic!("{file}: {name}: {found:?}, not {expected:?}"),
            }
        }
    }
    Ok(())
}

#[test]
fn weights_are_found_in_training_checkpoints() -> Outcome {
    let loaded = find(&data("training.pth"))?.load(DType::F32, &CPU)?;
    let names =
        ["0.bias", "0.weight", "1.bias", "1.num_batches_tracked", "1.running_mean", "1.running_var", "1.weight"];
    assert_eq!(loaded.surplus(), names);
    let weight = loaded.vb.get((3, 2), "0.weight")?.to_vec2::<f32>()?;
    assert_eq!(weight, [[-15., -8.], [-1., 6.], [13., -11.]]);
    Ok(())
}

#[test]
fn a_single_file_has_no_configuration() -> Outcome {
    for file in ["same.safetensors", "zip.pth"] {
        let checkpoint = find(&data(file))?;
        assert_eq!((checkpoint.config_path(), checkpoint.tokenizer_path()), (None, None));
        let error = checkpoint.config::<serde_json::Value>().expect_err("no configuration").to_string();
        assert!(error.contains(file) && error.contains("config.json"), "{error}");
    }
    Ok(())
}

#[test]
fn configuration_and_tokenizer_in_a_files_folder_belong_to_it() -> Outcome {
    let dir = folder(&[("zip.pth", "weights.pth")])?;
    fs::write(dir.path().join("config.json"), r#"{"layers": 3}"#)?;
    fs::write(dir.path().join("tokenizer.json"), "{}")?;
    let checkpoint = find(&dir.path().join("weights.pth"))?;
    assert_eq!(checkpoint.config::<serde_json::Value>()?["layers"], 3);
    assert_eq!(checkpoint.tokenizer_path(), Some(&*dir.path().join("tokenizer.json")));
    Ok(())
}

#[test]
fn safetensors_take_precedence_over_pytorch() -> Outcome {
    let dir = folder(&[("training.pth", "pytorch_model.bin")])?;
    assert!(find(dir.path())?.weights(DType::F32, &CPU)?.contains_tensor("0.weight"));
    let dir = folder(&[("training.pth", "pytorch_model.bin"), ("same.safetensors", "model.safetensors")])?;
    let vb = find(dir.path())?.weights(DType::F32, &CPU)?;
    assert!(vb.contains_tensor("plain.weight") && !vb.contains_tensor("0.weight"));
    Ok(())
}

#[test]
fn shards_read_as_one() -> Outcome {
    let index = "pytorch_model.bin.index.json";
    let (first, second) = ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin");
    let dir = folder(&[("zip.pth", first), ("training.pth", second)])?;
    let map = serde_json::json!({ "weight_map": { "plain.weight": first, "0.weight": second } });
    fs::write(dir.path().join(index), map.to_string())?;
    let loaded = find(dir.path())?.load(DType::F32, &CPU)?;
    assert_eq!(loaded.surplus(), ["0.weight", "plain.weight"]);
    assert_eq!(loaded.vb.get((3, 4), "plain.weight")?.dims(), [3, 4]);
    assert_eq!(loaded.vb.get((3, 2), "0.weight")?.dims(), [3, 2]);

    let map = serde_json::json!({ "weight_map": { "0.weight": first } });
    fs::write(dir.path().join(index), map.to_string())?;
    let error = find(dir.path())?.load(DType::F32, &CPU).err();
    assert!(
        matches!(error, Some(WeightsError::MissingTensor { name, file }) if name == "0.weight" && file.ends_with(first))
    );
    Ok(())
}

#[test]
fn tensors_that_do_not_fit_are_named() -> Outcome {
    for file in ["zip.pth", "older.pth"] {
        let vb = find(&data(file))?.weights(DType::F32, &CPU)?;
        let missing = vb.get(2, "absent").expect_err("missing").to_string();
        let misshapen = vb.get((4, 3), "plain.weight").expect_err("misshapen").to_string();
        let mistyped = vb.get((), "plain.count").expect_err("mistyped").to_string();
        let unknown = vb.get(2, "plain.mask").expect_err("no bool").to_string();
        for (error, parts) in [
            (missing, ["`absent`", "is not in"]),
            (misshapen, ["`plain.weight`", "[3, 4]"]),
            (mistyped, ["`plain.count`", "I64"]),
            (unknown, ["`plain.mask`", "BOOL"]),
        ] {
            assert!(error.contains(file) && parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }
    Ok(())
}
