//! Damaged weights files cause errors that name the file, never a panic.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use candle::{DType, Device};
use opara_weights::{Checkpoint, WeightsError};
use tempfile::TempDir;

type Outcome = Result<(), Box<dyn Error>>;

const HEADER: &str = r#"{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[16,19]}}"#;

/// A weights file with this header, valid or not, and `data` bytes of tensors.
fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(vec![0x3C; data]);
    bytes
}

struct Folder {
    dir: TempDir,
    weights: PathBuf,
}

impl Folder {
    fn new() -> Result<Self, Box<dyn Error>> {
        let dir = tempfile::tempdir()?;
        fs::write(dir.path().join("config.json"), "{}")?;
        let weights = dir.path().join("model.safetensors");
        Ok(Self { dir, weights })
    }

    /// Loads these bytes as weights, with all tensors in them.
    fn load(&self, bytes: &[u8]) -> Result<(), Box<dyn Error>> {
        fs::write(&self.weights, bytes)?;
        let model = self.dir.path().to_str().expect("a UTF-8 path");
        let loaded = Checkpoint::find(model)?.load(DType::F32, &Device::Cpu)?;
        for name in loaded.surplus() {
            loaded.vb.get_unchecked(&name)?;
        }
        Ok(())
    }

    fn assert_malformed(&self, bytes: &[u8]) {
        let error = self.load(bytes).expect_err("damaged");
        let named = error.to_string().contains("model.safetensors");
        let typed = error.downcast_ref::<WeightsError>();
        assert!(named && matches!(typed, Some(WeightsError::Malformed { .. })), "{error}");
    }
}

#[test]
fn truncated_files_are_errors() -> Outcome {
    let folder = Folder::new()?;
    let whole = file(HEADER, 19);
    folder.load(&whole)?;
    for length in 0..whole.len() {
        folder.assert_malformed(&whole[..length]);
    }
    folder.assert_malformed(&[whole.as_slice(), &[0]].concat());
    Ok(())
}

#[test]
fn flipped_bits_do_not_panic() -> Outcome {
    let folder = Folder::new()?;
    let whole = file(HEADER, 19);
    for position in 0..whole.len() - 19 {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[position] ^= 1 << bit;
            if let Err(error) = folder.load(&bytes) {
                let message = error.to_string();
                assert!(message.contains("model.safetensors"), "{message}");
            }
        }
    }
    Ok(())
}

#[test]
fn inconsistent_headers_are_errors() -> Outcome {
    let folder = Folder::new()?;
    for length in [9, u64::from(u32::MAX), u64::MAX - 7, u64::MAX] {
        let mut bytes = file("{}", 0);
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        folder.assert_malformed(&bytes);
    }
    let entry = |dtype: &str, shape: &str, begin: u64, end: u64| {
        format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
    };
    let most = u64::MAX;
    for lie in [
        entry("F32", "[4]", 0, 8),
        entry("F32", "[4]", 0, 1 << 40),
        entry("F32", "[2]", 8, 16),
        entry("F32", "[2]", 8, 0),
        entry("F32", "[1099511627776]", 0, 1 << 42),
        entry("F32", "[4294967296,4294967296]", 0, 8),
        entry("U8", &format!("[0,{most},4]"), 0, 0),
        entry("F99", "[2]", 0, 8),
        entry("F32", "[-2]", 0, 8),
        "null".to_owned(),
    ] {
        folder.assert_malformed(&file(&format!(r#"{{"a":{lie}}}"#), 8));
    }
    // Sizes of which only the sum overflows.
    let eighth = most / 8;
    let tensors: Vec<_> = (0..8)
        .map(|i| {
            let lie = entry("U8", &format!("[{eighth}]"), i * eighth, (i + 1) * eighth);
            format!(r#""t{i}":{lie}"#)
        })
        .collect();
    folder.assert_malformed(&file(&format!("{{{}}}", tensors.join(",")), 8));
    Ok(())
}

#[test]
fn truncating_an_open_file_is_an_error() -> Outcome {
    let folder = Folder::new()?;
    let whole = file(HEADER, 19);
    fs::write(&folder.weights, &whole)?;
    let model = folder.dir.path().to_str().expect("a UTF-8 path");
    let vb = Checkpoint::find(model)?.weights(DType::F32, &Device::Cpu)?;
    fs::write(&folder.weights, &whole[..whole.len() - 1])?;
    vb.get((2, 2), "a")?;
    let error = vb.get(3, "b").expect_err("cut").to_string();
    assert!(error.contains("model.safetensors"), "{error}");
    Ok(())
}

#[test]
fn floats_smaller_than_a_byte_are_errors() -> Outcome {
    let folder = Folder::new()?;
    let header = r#"{"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}}"#;
    let error = folder.load(&file(header, 2)).expect_err("F4").to_string();
    assert!(error.contains("`a`") && error.contains("model.safetensors"), "{error}");
    Ok(())
}
