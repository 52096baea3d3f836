//! The formats of `torch.save`: pickled descriptions of tensors, and storages with their elements.
//!
//! Since PyTorch 1.6 a checkpoint is a zip archive with `data.pkl` and one uncompressed file per storage. Before, it
//! was a sequence of a few pickles and the storages. Both formats are read.
//!
//! candle's reader of the zip format is not used here: a damaged file can make it panic, overflow the stack or exhaust
//! memory, and it skips tensors whose dtypes or strides it does not support.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;

use candle::{Layout, Shape};
use safetensors::Dtype;
use zip::result::ZipError;
use zip::ZipArchive;

use super::entry::{extent, Entries, Entry};
use super::flaw::Flaw;
use super::pickle::{Id, Node, Pickle, MAX_PICKLE};

/// The first pickle of the older format, a magic number.
const MAGIC: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";

/// PyTorch's limit.
const MAX_DIMENSIONS: usize = 64;

/// Keys under which training scripts store the weights.
const KEYS: [&str; 4] = ["state_dict", "model", "model_state_dict", "module"];

impl From<ZipError> for Flaw {
    fn from(error: ZipError) -> Self {
        match error {
            ZipError::Io(error) => error.into(),
            error => Self::Malformed(error.to_string()),
        }
    }
}

/// The byte range of each storage in the file, by key.
type Storages = HashMap<String, Range<u64>>;

/// Reads the entries of all tensors in a file of `size` bytes.
pub(super) fn entries(file: File, size: u64) -> Result<Entries, Flaw> {
    let mut reader = BufReader::new(file);
    let older = reader.fill_buf()?.starts_with(MAGIC);
    let (pickle, storages) = if older { sequence(reader, size)? } else { archive(reader, size)? };
    let mut entries = Entries::new();
    for (name, id) in pickle.dict(state_dict(&pickle)) {
        if let Some(tensor) = tensor(&pickle, id).map_err(|reason| format!("`{name}`: {reason}"))? {
            let entry = tensor.entry(&storages).map_err(|reason| format!("`{name}` {reason}"))?;
            entries.insert(name.to_owned(), entry);
        }
    }
    if entries.is_empty() {
        return Err("it has no tensors by name".into());
    }
    Ok(entries)
}

/// Reads the zip format: the pickle, and the byte ranges of the storages that it refers to.
fn archive(reader: BufReader<File>, size: u64) -> Result<(Pickle, Storages), Flaw> {
    let mut zip = ZipArchive::new(reader)?;
    let names = zip.file_names().collect::<Result<Vec<_>, _>>()?;
    let name = names.iter().find(|name| *name == "data.pkl" || name.ends_with("/data.pkl"));
    let name = name.ok_or("it is a zip archive without a data.pkl")?.clone().into_owned();
    let folder = name.strip_suffix("data.pkl").unwrap_or_default();

    if let Some(index) = zip.index_for_name(&format!("{folder}byteorder")) {
        let mut order = Vec::new();
        zip.by_index(index)?.take(8).read_to_end(&mut order)?;
        little_endian(order == b"little")?;
    }
    let mut pickled = Vec::new();
    let entry = zip.by_name(&name)?;
    // PyTorch compresses nothing, and what it takes to read a pickle is a multiple of its size.
    if entry.compressed_size() < entry.size() {
        return Err(format!("its `{name}` is compressed").into());
    }
    // Reads to the end of the entry, because the checksum is verified there.
    entry.take(MAX_PICKLE).read_to_end(&mut pickled)?;
    let pickle = Pickle::read(&mut pickled.as_slice())?;

    let mut storages = Storages::new();
    for key in storage_keys(&pickle) {
        if storages.contains_key(key) {
            continue;
        }
        let entry = zip.by_name(&format!("{folder}data/{key}"))?;
        let begin = entry.data_start().ok_or("an entry of the archive has no position")?;
        let end = begin.checked_add(entry.size()).filter(|end| *end <= size);
        let end = end.ok_or_else(|| format!("storage `{key}` reaches beyond its end"))?;
        storages.insert(key.to_owned(), begin..end);
    }
    Ok((pickle, storages))
}

/// Reads the older format: the pickle of the tensors, and the byte ranges of all storages.
fn sequence(mut reader: BufReader<File>, size: u64) -> Result<(Pickle, Storages), Flaw> {
    reader.seek(SeekFrom::Start(MAGIC.len() as u64))?;
    let _version = Pickle::read(&mut reader)?;
    let system = Pickle::read(&mut reader)?;
    let little = system.dict(system.root()).find(|(key, _)| *key == "little_endian");
    little_endian(little.is_none_or(|(_, id)| matches!(system.nodes()[id], Node::Bool(true))))?;
    let pickle = Pickle::read(&mut reader)?;
    let keys = Pickle::read(&mut reader)?;

    let widths: HashMap<&str, u64> = pickle
        .nodes()
        .iter()
        .filter_map(|node| Storage::of(&pickle, node))
        .filter_map(|storage| Some((storage.key, storage.width()?)))
        .collect();
    let mut storages = Storages::new();
    let keys = keys.list(keys.root()).ok_or("its storages have no list of keys")?.iter().map(|id| keys.text(*id));
    for key in keys {
        let key = key.ok_or("a storage's key is no text")?;
        let width = *widths.get(key).ok_or_else(|| format!("no tensor gives the type of storage `{key}`"))?;
        let mut count = [0; 8];
        reader.read_exact(&mut count)?;
        let begin = reader.stream_position()?;
        let length = u64::from_le_bytes(count).checked_mul(width);
        let end = length.and_then(|length| begin.checked_add(length)).filter(|end| *end <= size);
        let end = end.ok_or_else(|| format!("storage `{key}` reaches beyond its end"))?;
        reader.seek(SeekFrom::Start(end))?;
        storages.insert(key.to_owned(), begin..end);
    }
    Ok((pickle, storages))
}

fn little_endian(little: bool) -> Result<(), Flaw> {
    if little {
        Ok(())
    } else {
        Err("it was written by a big-endian machine".into())
    }
}

/// Finds the dict of tensors: the root, or an item of it.
fn state_dict(pickle: &Pickle) -> Id {
    let holds_tensors = |id: &Id| pickle.dict(*id).any(|(_, id)| !matches!(tensor(pickle, id), Ok(None)));
    let item = |key: &str| pickle.dict(pickle.root()).find(|(name, _)| *name == key).map(|(_, id)| id);
    KEYS.iter().filter_map(|key| item(key)).find(holds_tensors).unwrap_or(pickle.root())
}

/// The description of a storage in a pickle.
struct Storage<'a> {
    key: &'a str,
    class: &'a str,
}

impl<'a> Storage<'a> {
    /// Parses `('storage', class, key, device, length)`.
    fn of(pickle: &'a Pickle, node: &Node) -> Option<Self> {
        let Node::Persistent(description) = node else { return None };
        let [kind, class, key, _device, _length, view @ ..] = pickle.tuple(*description)? else { return None };
        // Before PyTorch 0.4, a sixth item made the storage a view of another one. Such views are not supported.
        let whole = view.iter().all(|id| matches!(pickle.nodes()[*id], Node::Opaque));
        let (key, class) = (pickle.text(*key)?, pickle.global(*class)?);
        (pickle.text(*kind)? == "storage" && whole).then_some(Self { key, class })
    }

    /// Bytes per element of the storage.
    fn width(&self) -> Option<u64> {
        match self.class {
            // The tensors on an untyped storage carry their own dtypes.
            "torch.storage.UntypedStorage" => Some(1),
            class => storage_dtype(class).map(width),
        }
    }
}

fn storage_keys(pickle: &Pickle) -> impl Iterator<Item = &str> {
    pickle.nodes().iter().filter_map(|node| Some(Storage::of(pickle, node)?.key))
}

/// The description of a tensor in a pickle.
struct Description<'a> {
    storage: &'a str,
    dtype: Dtype,
    /// Offset of the tensor's first element in the storage, in elements.
    offset: usize,
    shape: Vec<usize>,
    strides: Vec<usize>,
}

/// Parses the tensor that `id` refers to. Returns `None` if it is not a tensor.
fn tensor(pickle: &Pickle, mut id: Id) -> Result<Option<Description<'_>>, &'static str> {
    const UNCLEAR: &str = "its pickle does not describe a tensor as PyTorch does";
    // A parameter wraps its tensor, which may in turn be an instance of a subclass.
    for _ in 0..4 {
        let Some((callable, arguments)) = pickle.call(id) else { return Ok(None) };
        let arguments = match (callable, arguments) {
            ("torch._utils._rebuild_parameter" | "torch._utils._rebuild_parameter_with_state", [data, ..]) => {
                id = *data;
                continue;
            }
            ("torch._tensor._rebuild_from_type_v2", [function, _class, arguments, ..])
                if pickle.global(*function).is_some_and(|name| name.starts_with("torch._utils._rebuild_tensor")) =>
            {
                pickle.tuple(*arguments).ok_or(UNCLEAR)?
            }
            (
                "torch._utils._rebuild_tensor" | "torch._utils._rebuild_tensor_v2" | "torch._utils._rebuild_tensor_v3",
                _,
            ) => arguments,
            _ => return Ok(None),
        };
        let [storage, offset, shape, strides, rest @ ..] = arguments else { return Err(UNCLEAR) };
        let storage = Storage::of(pickle, &pickle.nodes()[*storage]).ok_or(UNCLEAR)?;
        // The third version of the function takes the dtype, after two arguments about gradients.
        let own = rest.get(2).and_then(|id| own_dtype(pickle.global(*id)?));
        let size = |id: &Id| pickle.int(*id).and_then(|size| usize::try_from(size).ok()).ok_or(UNCLEAR);
        let sizes = |id: &Id| {
            let sizes = pickle.tuple(*id).filter(|sizes| sizes.len() <= MAX_DIMENSIONS).ok_or(UNCLEAR)?;
            sizes.iter().map(size).collect::<Result<Vec<_>, _>>()
        };
        return Ok(Some(Description {
            storage: storage.key,
            dtype: own.or_else(|| storage_dtype(storage.class)).ok_or("its dtype is not known")?,
            offset: size(offset)?,
            shape: sizes(shape)?,
            strides: sizes(strides)?,
        }));
    }
    Err(UNCLEAR)
}

impl Description<'_> {
    /// Computes the tensor's place in the file. Fails if the tensor exceeds its storage, or has more elements than it.
    fn entry(self, storages: &Storages) -> Result<Entry, String> {
        let storage =
            storages.get(self.storage).ok_or_else(|| format!("is on a missing storage, `{}`", self.storage))?;
        let Self { dtype, offset, shape, strides, .. } = self;
        if shape.len() != strides.len() {
            return Err(format!("has {} dimensions and {} strides", shape.len(), strides.len()));
        }
        let width = width(dtype);
        let held = (storage.end - storage.start) / width;
        let outside =
            || format!("of shape {shape:?} and strides {strides:?} from {offset} is not inside its storage of {held}");
        // The distance between the first and the last element, plus one.
        let reach = || {
            shape.iter().zip(&strides).try_fold(1u64, |reach, (dim, stride)| {
                reach.checked_add(u64::try_from(*dim - 1).ok()?.checked_mul(u64::try_from(*stride).ok()?)?)
            })
        };
        let count = extent(&shape).ok_or_else(outside)?;
        let (begin, reach) = if shape.contains(&0) { (0, Some(0)) } else { (offset as u64, reach()) };
        let end = reach.and_then(|reach| begin.checked_add(reach)).filter(|end| *end <= held).ok_or_else(outside)?;
        if end > begin && count as u64 > held {
            return Err(outside());
        }
        let layout = if end > begin { Layout::new(Shape::from(shape), strides, 0) } else { Layout::contiguous(shape) };
        Ok(Entry { dtype, layout, bytes: storage.start + begin * width..storage.start + end * width })
    }
}

/// Bytes per element.
fn width(dtype: Dtype) -> u64 {
    dtype.bitsize() as u64 / 8
}

fn storage_dtype(class: &str) -> Option<Dtype> {
    Some(match class.strip_prefix("torch.")? {
        "DoubleStorage" => Dtype::F64,
        "FloatStorage" => Dtype::F32,
        "HalfStorage" => Dtype::F16,
        "BFloat16Storage" => Dtype::BF16,
        "LongStorage" => Dtype::I64,
        "IntStorage" => Dtype::I32,
        "ShortStorage" => Dtype::I16,
        "CharStorage" => Dtype::I8,
        "ByteStorage" => Dtype::U8,
        "BoolStorage" => Dtype::BOOL,
        "ComplexFloatStorage" => Dtype::C64,
        _ => return None,
    })
}

/// Dtypes without a storage class of their own.
fn own_dtype(name: &str) -> Option<Dtype> {
    Some(match name.strip_prefix("torch.")? {
        "uint16" => Dtype::U16,
        "uint32" => Dtype::U32,
        "uint64" => Dtype::U64,
        "float8_e4m3fn" => Dtype::F8_E4M3,
        "float8_e5m2" => Dtype::F8_E5M2,
        "float8_e8m0fnu" => Dtype::F8_E8M0,
        "float8_e4m3fnuz" => Dtype::F8_E4M3FNUZ,
        "float8_e5m2fnuz" => Dtype::F8_E5M2FNUZ,
        _ => return None,
    })
}
