//! Damaged files, which are refused or read, without a panic.

use candle::DType;
use opara_models::decoder::{Config, Decoder, GgufFile};
use serde_json::json;

use super::made_checkpoint::checkpoint;
use super::made_gguf::{encode, model, open};
use super::{Folder, CPU};

/// Cases of each format: `OPARA_CASES` says how many, where more are wanted.
fn cases() -> u64 {
    std::env::var("OPARA_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(400)
}

/// A damaged copy: some bytes are replaced, some by what often ends a range, or the file is cut.
fn damaged(whole: &[u8], until: usize, random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    for _ in 0..random.usize(1..6) {
        let at = random.usize(..until.min(bytes.len()));
        let width = [1, 2, 4, 8][random.usize(..4)].min(bytes.len() - at);
        let fill = [0, 1, 0x7f, 0x80, 0xff, random.u8(..)][random.usize(..6)];
        match random.u8(..4) {
            0 => bytes[at..at + width].fill(fill),
            1 => bytes[at] ^= 1 << random.u8(..8),
            _ => bytes[at] = fill,
        }
    }
    if random.u8(..8) == 0 {
        bytes.truncate(random.usize(..bytes.len()));
    }
    bytes
}

#[test]
fn damaged_gguf_files_never_panic() {
    let folder = Folder::new();
    for (seed, architecture) in ["llama", "gemma3"].into_iter().enumerate() {
        let (metadata, tensors) = model(architecture);
        let whole = encode(&metadata, &tensors);
        open(folder.write("whole.gguf", &whole)).expect("a model");
        let header = whole.len() - tensors.iter().map(|(.., data)| data.len()).sum::<usize>();
        let mut random = fastrand::Rng::with_seed(seed as u64);
        for _ in 0..cases() {
            let path = folder.write("damaged.gguf", &damaged(&whole, header, &mut random));
            for file in [GgufFile::from(&path), GgufFile::from(&path).allow_unread(true)] {
                if let Ok(config) = Config::of_gguf(file.clone()) {
                    let _ = Decoder::load_gguf(file, DType::F32, CPU, 1, 16.min(config.max_positions));
                }
            }
        }
    }
}

#[test]
fn damaged_configurations_never_panic() {
    let folder = Folder::new();
    let path = folder.0.path();
    let rope = json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}});
    let found = checkpoint(path, &[], &[], rope).allow_unread(true);
    let whole = std::fs::read(path.join("config.json")).expect("it is there");
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..cases() {
        let mut json = damaged(&whole, whole.len(), &mut random);
        // Digits more make other sizes.
        for _ in 0..random.usize(..4) {
            let digits: Vec<usize> = (0..json.len()).filter(|at| json[*at].is_ascii_digit()).collect();
            if !digits.is_empty() {
                json.insert(digits[random.usize(..digits.len())], b'0' + random.u8(..10));
            }
        }
        std::fs::write(path.join("config.json"), json).expect("it is written");
        if let Ok(config) = Config::of_checkpoint(&found) {
            let context = 16.min(config.max_positions);
            let _ = Decoder::of_checkpoint(&found, &config, DType::F32, CPU, 1, context);
        }
    }
}
