//! Damaged and hostile PyTorch files cause errors that name the file, never a panic, and take no more memory than a
//! small multiple of the file's size.

use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use candle::{DType, Device};
use opara_weights::{Checkpoint, WeightsError};
use tempfile::TempDir;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

type Outcome = Result<(), Box<dyn Error>>;

fn data(file: &str) -> Result<Vec<u8>, std::io::Error> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(file))
}

struct Folder {
    _dir: TempDir,
    weights: PathBuf,
}

impl Folder {
    fn new() -> Result<Self, Box<dyn Error>> {
        let dir = tempfile::tempdir()?;
        let weights = dir.path().join("damaged.pth");
        Ok(Self { _dir: dir, weights })
    }

    /// Loads the file with all tensors in it, each in the first dtype that works.
    fn load(&self) -> Result<usize, Box<dyn Error>> {
        let loaded = Checkpoint::find(self.weights.to_str().expect("a UTF-8 path"))?.load(DType::F32, &Device::Cpu)?;
        let names = loaded.surplus();
        for name in &names {
            if let Err(error) = loaded.vb.get_unchecked(name) {
                let message = error.to_string();
                assert!(message.contains(name.as_str()) && message.contains("damaged.pth"), "{message}");
            }
        }
        Ok(names.len())
    }

    fn load_bytes(&self, bytes: &[u8]) -> Result<usize, Box<dyn Error>> {
        fs::write(&self.weights, bytes)?;
        self.load()
    }

    /// Loads an archive of this pickle and one storage, `0`, of 16 bytes.
    fn load_pickle(&self, pickle: &[u8]) -> Result<usize, Box<dyn Error>> {
        let mut zip = ZipWriter::new(File::create(&self.weights)?);
        let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        for (name, bytes) in [("x/data.pkl", pickle), ("x/data/0", &[0x3F; 16])] {
            zip.start_file(name, stored)?;
            zip.write_all(bytes)?;
        }
        zip.finish()?;
        self.load()
    }
}

/// The reason of an error, which must blame the file.
fn reason(result: Result<usize, Box<dyn Error>>) -> String {
    let error = result.expect_err("damaged");
    match error.downcast_ref::<WeightsError>() {
        Some(WeightsError::Malformed { path, reason }) if path.ends_with("damaged.pth") => reason.clone(),
        _ => panic!("{error:?}"),
    }
}

/// `value` as the instruction for an integer.
fn int(value: u32) -> Vec<u8> {
    [&[b'J'][..], &value.to_le_bytes()].concat()
}

fn text(text: &str) -> Vec<u8> {
    [&[b'X'][..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}

fn tuple(items: &[Vec<u8>]) -> Vec<u8> {
    [b"(".as_slice(), &items.concat(), b"t"].concat()
}

fn storage(key: &str, class: &str) -> Vec<u8> {
    let class = format!("c{class}\n").replace("torch.", "torch\n").into_bytes();
    [tuple(&[text("storage"), class, text(key), text("cpu"), int(4)]), b"Q".to_vec()].concat()
}

/// A call of the function that rebuilds a tensor.
fn tensor(arguments: &[Vec<u8>]) -> Vec<u8> {
    [b"ctorch._utils\n_rebuild_tensor_v2\n".as_slice(), &tuple(arguments), b"R"].concat()
}

fn strided(offset: u32, shape: &[u32], strides: &[u32]) -> Vec<u8> {
    let sizes = |sizes: &[u32]| tuple(&sizes.iter().map(|size| int(*size)).collect::<Vec<_>>());
    tensor(&[
        storage("0", "torch.FloatStorage"),
        int(offset),
        sizes(shape),
        sizes(strides),
        b"\x89".to_vec(),
        b"}".to_vec(),
    ])
}

/// A pickle of a dict with one item, `w`.
fn dict(value: &[u8]) -> Vec<u8> {
    [b"\x80\x02}", text("w").as_slice(), value, b"s."].concat()
}

#[test]
fn truncated_files_are_errors() -> Outcome {
    let folder = Folder::new()?;
    for file in ["zip.pth", "older.pth", "training.pth"] {
        let whole = data(file)?;
        assert!(folder.load_bytes(&whole)? > 6);
        for length in 0..whole.len() {
            reason(folder.load_bytes(&whole[..length]));
        }
    }
    Ok(())
}

#[test]
fn flipped_bits_do_not_panic() -> Outcome {
    let folder = Folder::new()?;
    for file in ["zip.pth", "older.pth", "zip-protocol-4.pth"] {
        let mut bytes = data(file)?;
        for position in 0..bytes.len() {
            for flip in [0x01, 0x80] {
                bytes[position] ^= flip;
                if folder.load_bytes(&bytes).is_err() {
                    reason(folder.load());
                }
                bytes[position] ^= flip;
            }
        }
    }
    Ok(())
}

/// Damages the pickle before it is archived, so that the checksum is valid.
#[test]
fn flipped_bits_of_a_pickle_do_not_panic() -> Outcome {
    let folder = Folder::new()?;
    let mut pickle = dict(&strided(0, &[2, 2], &[2, 1]));
    assert_eq!(folder.load_pickle(&pickle)?, 1);
    for length in 0..pickle.len() {
        reason(folder.load_pickle(&pickle[..length]));
    }
    for position in 0..pickle.len() {
        for flip in [0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFF] {
            pickle[position] ^= flip;
            if let Err(error) = folder.load_pickle(&pickle) {
                reason(Err(error));
            }
            pickle[position] ^= flip;
        }
    }
    Ok(())
}

#[test]
fn tensors_outside_their_storage_are_errors() -> Outcome {
    let folder = Folder::new()?;
    let big = i32::MAX as u32;
    for (offset, shape, strides) in [
        (0, &[2, 2][..], &[2, 1][..]),
        (0, &[2, 2], &[1, 2]),
        (3, &[], &[]),
        (2, &[1, 2], &[big, 1]),
        (big, &[0, 7], &[7, 1]),
    ] {
        assert_eq!(folder.load_pickle(&dict(&strided(offset, shape, strides)))?, 1, "{offset} {shape:?} {strides:?}");
    }
    for (offset, shape, strides) in [
        (1, &[2, 2][..], &[2, 1][..]),
        (0, &[2, 2], &[3, 1]),
        (4, &[], &[]),
        (0, &[5], &[0]),
        (0, &[big, big, big], &[0, 0, 0]),
        (0, &[big, big, big], &[big, big, big]),
        (0, &[0, big, big, big], &[1, 1, 1, 1]),
        (0, &[2], &[2, 1]),
        (0, &[2], &[]),
        (0, &[u32::MAX], &[1]),
        (u32::MAX, &[1], &[1]),
        (0, &[1; 65], &[1; 65]),
    ] {
        let reason = reason(folder.load_pickle(&dict(&strided(offset, shape, strides))));
        assert!(reason.contains("`w`"), "{reason}");
    }
    Ok(())
}

#[test]
fn malformed_descriptions_are_errors() -> Outcome {
    let folder = Folder::new()?;
    let none = || b"N".to_vec();
    for (value, expected) in [
        (tensor(&[]), "describe"),
        (tensor(&[none(), none(), none(), none()]), "describe"),
        (tensor(&[storage("0", "torch.FloatStorage"), int(0)]), "describe"),
        (tensor(&[storage("0", "torch.QInt32Storage"), int(0), tuple(&[]), tuple(&[])]), "dtype"),
        (tensor(&[storage("1", "torch.FloatStorage"), int(0), tuple(&[]), tuple(&[])]), "not found"),
        (tensor(&[storage("../../0", "torch.FloatStorage"), int(0), tuple(&[]), tuple(&[])]), "not found"),
        (int(3), "no tensors"),
        (b"}".to_vec(), "no tensors"),
        // A cycle: a dict that is an item of itself.
        (b"}q\x00X\x01\x00\x00\x00wh\x00s".to_vec(), "no tensors"),
        // An endless chain of parameters that wrap parameters is cut off.
        (
            b"ctorch._utils\n_rebuild_parameter\n"
                .repeat(9)
                .into_iter()
                .chain(*b"N\x85R\x85R\x85R\x85R\x85R\x85R\x85R\x85R\x85R")
                .collect(),
            "describe",
        ),
        // Strings longer than the file.
        (b"X\xff\xff\xff\xffshort".to_vec(), "early"),
        (b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7fshort".to_vec(), "early"),
        (b"\x8a\xffshort".to_vec(), "early"),
        (b"h\x07".to_vec(), "never stored"),
        (b"R".to_vec(), "not there"),
        (b"t".to_vec(), "not there"),
        (b"(0".to_vec(), "not there"),
        (b"}(Nu".to_vec(), "key without a value"),
        (b"NNNs".to_vec(), "not a dict"),
        (b"NNa".to_vec(), "not a list"),
        (b"cos\n\xff\n".to_vec(), "not a string"),
        (b"I1\n".to_vec(), "unknown instruction"),
    ] {
        let reason = reason(folder.load_pickle(&dict(&value)));
        assert!(reason.contains(expected), "{reason}, not {expected}");
    }
    Ok(())
}

/// Each file has a few bytes or megabytes, and would break a reader that copies values or follows them recursively.
#[test]
fn pickle_bombs_are_read_as_plain_data() -> Outcome {
    let folder = Folder::new()?;
    // Each pair holds the previous one twice: 2^200 leaves if copied.
    let doubling: Vec<u8> = b"N".iter().copied().chain(b"q\x00h\x00\x86".repeat(200)).collect();
    assert!(reason(folder.load_pickle(&dict(&doubling))).contains("no tensors"));
    let nesting: Vec<u8> = b"N".iter().copied().chain(b"\x85".repeat(1 << 20)).collect();
    assert!(reason(folder.load_pickle(&dict(&nesting))).contains("no tensors"));
    assert!(reason(folder.load_pickle(&b"(".repeat(1 << 20))).contains("early"));
    Ok(())
}

#[test]
fn archives_without_pickle_or_of_big_endian_machines_are_errors() -> Outcome {
    let folder = Folder::new()?;
    let mut zip = ZipWriter::new(File::create(&folder.weights)?);
    zip.start_file("x/version", SimpleFileOptions::default().compression_method(CompressionMethod::Stored))?;
    zip.write_all(b"3")?;
    zip.finish()?;
    assert!(reason(folder.load()).contains("data.pkl"));

    let mut zip = ZipWriter::new(File::create(&folder.weights)?);
    for (name, bytes) in [("x/byteorder", b"big".as_slice()), ("x/data.pkl", &dict(b"N"))] {
        zip.start_file(name, SimpleFileOptions::default().compression_method(CompressionMethod::Stored))?;
        zip.write_all(bytes)?;
    }
    zip.finish()?;
    assert!(reason(folder.load()).contains("big-endian"));
    Ok(())
}

#[test]
fn truncating_an_open_file_is_an_error() -> Outcome {
    let folder = Folder::new()?;
    let whole = data("older.pth")?;
    fs::write(&folder.weights, &whole)?;
    let vb = Checkpoint::find(folder.weights.to_str().expect("a UTF-8 path"))?.weights(DType::F32, &Device::Cpu)?;
    fs::write(&folder.weights, &whole[..whole.len() / 2])?;
    let error = vb.get((3, 4), "plain.weight").and(vb.get((4, 5, 6), "view.whole")).expect_err("cut").to_string();
    assert!(error.contains("damaged.pth"), "{error}");
    Ok(())
}
