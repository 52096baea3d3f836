//! Weights files and configurations with damaged bytes load or fail, and never panic.

use std::error::Error;
use std::fs;
use std::path::Path;

use candle::{DType, Device};
use opara_weights::Checkpoint;

type Outcome = Result<(), Box<dyn Error>>;

/// Cases of each file: `OPARA_CASES` says how many, where more are wanted.
fn cases() -> u64 {
    std::env::var("OPARA_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(300)
}

/// Replaces some bytes, some by what often ends a range, or cuts the file.
fn damage(bytes: &mut Vec<u8>, random: &mut fastrand::Rng) {
    for _ in 0..random.usize(1..6) {
        let at = random.usize(..bytes.len());
        let width = [1, 2, 4, 8][random.usize(..4)].min(bytes.len() - at);
        let fill = [0, 1, 0x7f, 0x80, 0xff, b'0' + random.u8(..10), random.u8(..)][random.usize(..7)];
        match random.u8(..4) {
            0 => bytes[at..at + width].fill(fill),
            1 => bytes[at] ^= 1 << random.u8(..8),
            2 => bytes.insert(at, fill),
            _ => bytes[at] = fill,
        }
    }
    if random.u8(..8) == 0 {
        bytes.truncate(random.usize(1..bytes.len()));
    }
}

/// Loads a file with all tensors in it.
fn load(file: &Path) -> Outcome {
    let loaded = Checkpoint::find(file.to_str().ok_or("a path of UTF-8")?)?.load(DType::F32, &Device::Cpu)?;
    for name in loaded.surplus() {
        // A tensor of integers does not become one of floats.
        let _ = loaded.vb.get_unchecked(&name);
    }
    loaded.check(|_| true)?;
    Ok(())
}

#[test]
fn damaged_files_load_or_fail() -> Outcome {
    let folder = tempfile::tempdir()?;
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    for (seed, name) in
        ["same.safetensors", "zip.pth", "zip-protocol-4.pth", "older.pth", "training.pth"].into_iter().enumerate()
    {
        let whole = fs::read(data.join(name))?;
        let file = folder.path().join(name);
        fs::write(&file, &whole)?;
        load(&file)?;
        let mut random = fastrand::Rng::with_seed(seed as u64);
        for _ in 0..cases() {
            let mut bytes = whole.clone();
            damage(&mut bytes, &mut random);
            fs::write(&file, bytes)?;
            let _ = load(&file);
        }
    }
    Ok(())
}

#[test]
fn a_damaged_configuration_or_index_loads_or_fails() -> Outcome {
    let folder = tempfile::tempdir()?;
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    fs::copy(data.join("same.safetensors"), folder.path().join("one.safetensors"))?;
    let (config, index) = (folder.path().join("config.json"), folder.path().join("model.safetensors.index.json"));
    let names = Checkpoint::find(folder.path().join("one.safetensors").to_str().ok_or("a path of UTF-8")?)?;
    let names = names.load(DType::F32, &Device::Cpu)?.surplus();
    let map: serde_json::Map<_, _> = names.into_iter().map(|name| (name, "one.safetensors".into())).collect();
    let of_index = serde_json::json!({ "weight_map": map }).to_string().into_bytes();
    let of_config = serde_json::json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"},
        "text_config": {"compression_config": {"format": "float-quantized", "config_groups": {"group_0": {"weights": {
            "num_bits": 8, "type": "float", "strategy": "block", "block_structure": [16, 16]}}}}}});
    let of_config = of_config.to_string().into_bytes();
    let mut random = fastrand::Rng::with_seed(7);
    for case in 0..cases() {
        let (mut configs, mut indices) = (of_config.clone(), of_index.clone());
        match case % 2 {
            0 => damage(&mut configs, &mut random),
            _ => damage(&mut indices, &mut random),
        }
        fs::write(&config, configs)?;
        fs::write(&index, indices)?;
        let found = Checkpoint::find(folder.path().to_str().ok_or("a path of UTF-8")?);
        let Ok(found) = found else { continue };
        if let Ok(loaded) = found.load(DType::F32, &Device::Cpu) {
            for name in loaded.surplus() {
                let _ = loaded.vb.get_unchecked(&name);
            }
        }
    }
    Ok(())
}
