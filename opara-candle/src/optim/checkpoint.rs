//! An optimizer's checkpoint: one file of safetensors with variables, moments and numbers.
//!
//! Variables have their own names, so that `VarMap::load` reads the file, too. The moments of `x` are `opara.moments.x`, one row for each
//! kind, `opara.averages.x` averages of values, and the numbers of the step are `opara.control`. `opara.sums.x` are sums of gradients, if a
//! step has several batches. The file's metadata names format and optimizer.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use candle::{DType, Device, Shape, Tensor};
use safetensors::SafeTensors;
use thiserror::Error;

/// The format of this library's files.
const FORMAT: &str = "opara-training-2";
/// Keys of the metadata.
const FORMAT_KEY: &str = "opara.format";
const OPTIMIZER_KEY: &str = "opara.optimizer";
const ORDER_KEY: &str = "opara.order";
const POSITION_KEY: &str = "opara.position";
/// Names of tensors.
pub(super) const CONTROL: &str = "opara.control";
pub(super) const MOMENTS: &str = "opara.moments.";
pub(super) const SUMS: &str = "opara.sums.";
pub(super) const AVERAGES: &str = "opara.averages.";

/// Why a checkpoint was not written, or not read. Variables and optimizer are as they were.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is damaged: it is cut short, or no safetensors.
    #[error("{}: {source}; take an earlier checkpoint", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reader's error.
        source: safetensors::SafeTensorError,
    },
    /// The file was not written by `save`.
    #[error("{}: it is no checkpoint of an optimizer; read weights alone by `VarMap::load`", path.display())]
    Format {
        /// The file.
        path: PathBuf,
    },
    /// The file is of another optimizer, or of other settings than the learning rate's.
    #[error("{}: it is of {found}, but the optimizer is {expected}", path.display())]
    Optimizer {
        /// The file.
        path: PathBuf,
        /// The optimizer of the file.
        found: String,
        /// This one.
        expected: String,
    },
    /// A tensor is missing, too many, or of another shape or dtype: the file is of another model.
    #[error("{}: `{name}` {reason}: the checkpoint is of another model, or of an optimizer that freezes or averages others", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        name: String,
        /// The difference.
        reason: String,
    },
    /// The file has no position of a loader, or that of one with another order.
    #[error("{}: it is of batches of {}, but the loader's are of {expected}", path.display(), found.as_deref().unwrap_or("no loader"))]
    Loader {
        /// The file.
        path: PathBuf,
        /// The order of the file, if it has any.
        found: Option<String>,
        /// That of this loader.
        expected: String,
    },
    /// candle's error.
    #[error(transparent)]
    Candle(#[from] candle::Error),
}

/// The order of a loader's batches, and those that it has given.
pub(crate) type Position = (String, u64);

/// Writes a file beside `path`, then gives it that name: a process that is stopped leaves the earlier file as it was.
pub(super) fn write(
    path: &Path,
    optimizer: &str,
    at: Option<Position>,
    tensors: &[(String, Tensor)],
) -> Result<(), CheckpointError> {
    let failed = |source| CheckpointError::File { path: path.into(), source };
    let fields = [(FORMAT_KEY, FORMAT.to_string()), (OPTIMIZER_KEY, optimizer.to_string())];
    let position = at.map(|(order, position)| [(ORDER_KEY, order), (POSITION_KEY, position.to_string())]);
    let fields = fields.into_iter().chain(position.into_iter().flatten());
    let metadata: HashMap<_, _> = fields.map(|(key, value)| (key.to_string(), value)).collect();
    let bytes = safetensors::serialize(tensors.iter().map(|(name, tensor)| (name, tensor)), Some(metadata))
        .map_err(|source| CheckpointError::Damaged { path: path.into(), source })?;
    // The file behind a link is written, not the link.
    let target = path.canonicalize().unwrap_or_else(|_| path.into());
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new();
    // As of any new file: by default nobody else could read it.
    #[cfg(unix)]
    file.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = file.tempfile_in(folder).map_err(failed)?;
    file.write_all(&bytes).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
    file.persist(&target).map_err(|error| failed(error.error))?;
    Ok(())
}

/// The tensors of a file on a CPU, in the order of these names, if it is of this optimizer and has just those, of the same shapes and dtypes.
/// It may lack sums of gradients and have others. With the order of a loader, also the position of one of that order.
pub(super) fn read(
    path: &Path,
    optimizer: &str,
    order: Option<String>,
    expected: &[(String, Shape, DType)],
) -> Result<(Vec<Option<Tensor>>, Option<u64>), CheckpointError> {
    let bytes = std::fs::read(path).map_err(|source| CheckpointError::File { path: path.into(), source })?;
    let damaged = |source| CheckpointError::Damaged { path: path.into(), source };
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(damaged)?;
    let file = SafeTensors::deserialize(&bytes).map_err(damaged)?;
    let field = |key: &str| header.metadata().as_ref()?.get(key).cloned();
    let found = match field(FORMAT_KEY) {
        Some(format) if format == FORMAT => field(OPTIMIZER_KEY).unwrap_or_default(),
        _ => return Err(CheckpointError::Format { path: path.into() }),
    };
    if found != optimizer {
        return Err(CheckpointError::Optimizer { path: path.into(), found, expected: optimizer.into() });
    }
    let found = field(ORDER_KEY).filter(|_| order.is_some());
    if found != order {
        let expected = order.unwrap_or_default();
        return Err(CheckpointError::Loader { path: path.into(), found, expected });
    }
    let position = match (&order, field(POSITION_KEY).map(|position| position.parse())) {
        (None, _) => None,
        (_, Some(Ok(position))) => Some(position),
        _ => return Err(CheckpointError::Format { path: path.into() }),
    };
    let other = |name: &str, reason: String| CheckpointError::Tensor { path: path.into(), name: name.into(), reason };
    let known: HashSet<&str> = expected.iter().map(|(name, ..)| &name[..]).collect();
    if let Some(name) = file.names().into_iter().find(|name| !known.contains(name) && !name.starts_with(SUMS)) {
        return Err(other(name, "is not one of the optimizer's".into()));
    }
    let tensor = |(name, shape, dtype): &(String, Shape, DType)| {
        let view = match file.tensor(name) {
            Ok(view) => view,
            Err(_) if name.starts_with(SUMS) => return Ok(None),
            Err(_) => return Err(other(name, "is missing".into())),
        };
        if view.shape() != shape.dims() || DType::try_from(view.dtype()).ok() != Some(*dtype) {
            return Err(other(
                name,
                format!("is {:?} of {:?}, not {shape:?} of {dtype:?}", view.shape(), view.dtype()),
            ));
        }
        Ok(Some(Tensor::from_raw_buffer(view.data(), *dtype, view.shape(), &Device::Cpu)?))
    };
    Ok((expected.iter().map(tensor).collect::<Result<_, _>>()?, position))
}
