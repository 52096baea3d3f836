//! The header of a GGUF file: metadata, and the places of its tensors. A model may be split into several files.
//!
//! candle's reader is not used: it panics on an alignment of zero, does not say which tensor has a type that it does not know,
//! takes two tensors of one name for one, and gives memory to what a small file claims to hold.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use candle::quantized::gguf_file::{TensorInfo, Value};
use candle::Shape;

use super::error::{DecoderError, Result};
use super::gguf_types::dtype;

/// Values that a file may have, its lists' elements included: 32 bytes of memory each. Vocabularies take a million or two.
const MOST_VALUES: u64 = 1 << 24;

/// Lists inside of lists.
const MOST_DEPTH: usize = 4;

/// GGUF's limit.
const MOST_DIMENSIONS: u32 = 4;

/// Files that a model may be split into.
const MOST_FILES: usize = 10_000;

/// A tensor's place.
#[derive(Debug)]
pub(super) struct Stored {
    /// Which of the files it is in.
    file: usize,
    pub info: TensorInfo,
    /// Bytes before the first tensor of that file.
    start: u64,
}

/// Metadata and tensors of all files.
pub(super) struct Header {
    /// In the order of their numbers.
    files: Vec<PathBuf>,
    pub metadata: HashMap<String, Value>,
    pub tensors: HashMap<String, Stored>,
}

impl Header {
    /// Reads the file, and the others of a model that is split.
    pub fn read(path: &Path) -> Result<Self> {
        let damaged = |path: &Path, reason: String| DecoderError::Gguf { path: path.into(), reason };
        let mut header = Self { files: vec![path.into()], metadata: HashMap::new(), tensors: HashMap::new() };
        header.metadata = header.add(0)?;
        let number = |name: &str| header.metadata.get(name).and_then(whole).map(|number| number as usize);
        let (count, at) = (number("split.count").unwrap_or(1), number("split.no").unwrap_or(0));
        if count <= 1 {
            return Ok(header);
        }
        let wrong = |reason: &str| {
            damaged(path, format!("it is one of {count} files (`split.count`), and {reason}: the files of a split model are called NAME-00001-of-{count:05}.gguf"))
        };
        if at != 0 {
            return Err(wrong(&format!("not the first but number {} (`split.no`)", at + 1)));
        }
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let stem = name.strip_suffix(&format!("-00001-of-{count:05}.gguf"));
        let stem = stem.filter(|_| count <= MOST_FILES).ok_or_else(|| wrong("its name does not lead to the others"))?;
        let expected = number("split.tensors.count");
        for at in 1..count {
            let file = path.with_file_name(format!("{stem}-{:05}-of-{count:05}.gguf", at + 1));
            header.files.push(file.clone());
            let metadata = header.add(at)?;
            let number = |name: &str| metadata.get(name).and_then(whole).map(|number| number as usize);
            if (number("split.count"), number("split.no")) != (Some(count), Some(at)) {
                return Err(damaged(&file, format!("its `split.count` and `split.no` are not {count} and {at}")));
            }
        }
        match expected.filter(|expected| *expected != header.tensors.len()) {
            Some(expected) => Err(wrong(&format!(
                "all of them have {} tensors, not {expected} (`split.tensors.count`)",
                header.tensors.len()
            ))),
            None => Ok(header),
        }
    }

    /// Reads the file of this number: its tensors join the others, and its metadata is given back.
    fn add(&mut self, at: usize) -> Result<HashMap<String, Value>> {
        let path = self.files[at].clone();
        let failed = |error: Flaw| match error {
            Flaw::Io(source) if source.kind() != io::ErrorKind::UnexpectedEof => {
                DecoderError::Read { path: path.clone(), source }
            }
            Flaw::Io(_) => DecoderError::Gguf { path: path.clone(), reason: "it ends too early".into() },
            Flaw::Damaged(reason) => DecoderError::Gguf { path: path.clone(), reason },
            Flaw::Type { tensor, kind } => DecoderError::GgufType { path: path.clone(), tensor, kind },
        };
        let (metadata, tensors) = Reader::open(&path).and_then(Reader::header).map_err(&failed)?;
        for (name, info, start) in tensors {
            if self.tensors.insert(name.clone(), Stored { file: at, info, start }).is_some() {
                return Err(failed(Flaw::Damaged(format!("tensor `{name}` is there twice"))));
            }
        }
        Ok(metadata)
    }

    /// The open file of a tensor, and where its tensors begin.
    pub fn open(&self, stored: &Stored) -> io::Result<(BufReader<File>, u64)> {
        Ok((BufReader::new(File::open(&self.files[stored.file])?), stored.start))
    }
}

/// Why a header cannot be read.
enum Flaw {
    Io(io::Error),
    Damaged(String),
    Type { tensor: String, kind: u32 },
}

impl From<io::Error> for Flaw {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<String> for Flaw {
    fn from(reason: String) -> Self {
        Self::Damaged(reason)
    }
}

/// Metadata, and each tensor with the place where the file's tensors begin.
type Contents = (HashMap<String, Value>, Vec<(String, TensorInfo, u64)>);

struct Reader {
    file: BufReader<File>,
    size: u64,
    /// Values that may still be read.
    values: u64,
    /// Whether lengths have 32 bits.
    is_first_version: bool,
}

impl Reader {
    fn open(path: &Path) -> Result<Self, Flaw> {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        let mut reader = Self { file: BufReader::new(file), size, values: MOST_VALUES, is_first_version: false };
        let magic: [u8; 4] = reader.bytes()?;
        if magic != *b"GGUF" {
            return Err(format!("it begins with {magic:02x?}, not with GGUF").into());
        }
        let version = reader.u32()?;
        reader.is_first_version = version == 1;
        match version {
            1..=3 => Ok(reader),
            _ if (1..=3).contains(&version.swap_bytes()) => Err("it is for big-endian machines".to_owned().into()),
            _ => Err(format!("it is of version {version}, and 1 to 3 are known").into()),
        }
    }

    fn header(mut self) -> Result<Contents, Flaw> {
        let (tensors, pairs) = (self.length()?, self.length()?);
        // A name, a type and a value; a name, dimensions, a type and a place.
        self.check("pairs", pairs, 13)?;
        self.check("tensors", tensors, 24)?;
        let mut metadata = HashMap::new();
        for _ in 0..pairs {
            let key = self.text()?;
            let kind = self.u32()?;
            let value = self.value(kind, 0)?;
            if metadata.insert(key.clone(), value).is_some() {
                return Err(format!("`{key}` is there twice").into());
            }
        }
        let mut infos = Vec::new();
        for _ in 0..tensors {
            infos.push(self.info()?);
        }
        let alignment = match metadata.get("general.alignment") {
            None => 32,
            Some(value) => whole(value)
                .filter(|alignment| alignment.is_power_of_two() && *alignment <= 1 << 16)
                .ok_or_else(|| format!("`general.alignment` is {value:?}, not a power of two"))?,
        };
        let start = self.file.stream_position()?.next_multiple_of(alignment);
        let mut placed = Vec::with_capacity(infos.len());
        for (name, info) in infos {
            let end = bytes(&info).and_then(|bytes| start.checked_add(info.offset)?.checked_add(bytes));
            match end {
                Some(end) if end <= self.size => placed.push((name, info, start)),
                Some(end) => {
                    return Err(format!(
                        "tensor `{name}` ends at byte {end}, and the file has {}: it is cut short",
                        self.size
                    )
                    .into())
                }
                None => {
                    return Err(
                        format!("tensor `{name}` of {:?} elements is larger than any file", info.shape.dims()).into()
                    )
                }
            }
        }
        Ok((metadata, placed))
    }

    /// The description of a tensor.
    fn info(&mut self) -> Result<(String, TensorInfo), Flaw> {
        let name = self.text()?;
        let rank = self.u32()?;
        if rank == 0 || rank > MOST_DIMENSIONS {
            return Err(format!("tensor `{name}` has {rank} dimensions, not 1 to {MOST_DIMENSIONS}").into());
        }
        let mut dims = Vec::new();
        for _ in 0..rank {
            dims.push(self.length()? as usize);
        }
        let kind = self.u32()?;
        let offset = u64::from_le_bytes(self.bytes()?);
        let Some(ggml_dtype) = dtype(kind) else { return Err(Flaw::Type { tensor: name, kind }) };
        if dims.contains(&0) || !dims[0].is_multiple_of(ggml_dtype.block_size()) {
            return Err(format!(
                "tensor `{name}` has rows of {} elements, in blocks of {}",
                dims[0],
                ggml_dtype.block_size()
            )
            .into());
        }
        dims.reverse();
        Ok((name, TensorInfo { ggml_dtype, shape: Shape::from(dims), offset }))
    }

    /// Fails if so many things of at least `bytes` bytes do not fit into the rest of the file.
    fn check(&mut self, things: &str, count: u64, bytes: u64) -> Result<(), Flaw> {
        let left = self.size.saturating_sub(self.file.stream_position()?);
        match count.checked_mul(bytes).is_some_and(|needed| needed <= left) {
            true => Ok(()),
            false => {
                Err(format!("it claims to hold {count} {things}, and has {left} bytes left: it is cut short").into())
            }
        }
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Flaw> {
        let mut bytes = [0; N];
        self.file.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, Flaw> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    fn length(&mut self) -> Result<u64, Flaw> {
        match self.is_first_version {
            true => Ok(self.u32()?.into()),
            false => Ok(u64::from_le_bytes(self.bytes()?)),
        }
    }

    fn text(&mut self) -> Result<String, Flaw> {
        let length = self.length()?;
        self.check("bytes of a text", length, 1)?;
        let mut text = vec![0; length as usize];
        self.file.read_exact(&mut text)?;
        // Some files end texts with zeros, and some have texts that are not UTF-8.
        let end = text.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        Ok(String::from_utf8_lossy(&text[..end]).into_owned())
    }

    fn value(&mut self, kind: u32, depth: usize) -> Result<Value, Flaw> {
        self.values =
            self.values.checked_sub(1).ok_or_else(|| format!("its metadata has more than {MOST_VALUES} values"))?;
        Ok(match kind {
            0 => Value::U8(self.bytes::<1>()?[0]),
            1 => Value::I8(i8::from_le_bytes(self.bytes()?)),
            2 => Value::U16(u16::from_le_bytes(self.bytes()?)),
            3 => Value::I16(i16::from_le_bytes(self.bytes()?)),
            4 => Value::U32(self.u32()?),
            5 => Value::I32(i32::from_le_bytes(self.bytes()?)),
            6 => Value::F32(f32::from_le_bytes(self.bytes()?)),
            7 => match self.bytes::<1>()? {
                [flag @ 0..=1] => Value::Bool(flag == 1),
                [other] => return Err(format!("a flag of its metadata is {other}").into()),
            },
            8 => Value::String(self.text()?),
            9 => {
                let (kind, count) = (self.u32()?, self.length()?);
                if depth == MOST_DEPTH {
                    return Err(format!("its metadata has lists more than {MOST_DEPTH} deep").into());
                }
                self.check("elements of a list", count, 1)?;
                let mut values = Vec::new();
                for _ in 0..count {
                    values.push(self.value(kind, depth + 1)?);
                }
                Value::Array(values)
            }
            10 => Value::U64(u64::from_le_bytes(self.bytes()?)),
            11 => Value::I64(i64::from_le_bytes(self.bytes()?)),
            12 => Value::F64(f64::from_le_bytes(self.bytes()?)),
            other => return Err(format!("a value of its metadata is of type {other}, which is not known").into()),
        })
    }
}

/// Bytes of a tensor.
fn bytes(info: &TensorInfo) -> Option<u64> {
    let elements = info.shape.dims().iter().try_fold(1u64, |all, dim| all.checked_mul(*dim as u64))?;
    (elements / info.ggml_dtype.block_size() as u64).checked_mul(info.ggml_dtype.type_size() as u64)
}

/// A whole number that is not negative.
pub(super) fn whole(value: &Value) -> Option<u64> {
    match *value {
        Value::U8(n) => Some(n.into()),
        Value::U16(n) => Some(n.into()),
        Value::U32(n) => Some(n.into()),
        Value::U64(n) => Some(n),
        Value::I8(n) => n.try_into().ok(),
        Value::I16(n) => n.try_into().ok(),
        Value::I32(n) => n.try_into().ok(),
        Value::I64(n) => n.try_into().ok(),
        _ => None,
    }
}
