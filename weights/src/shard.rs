//! One safetensors file.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use candle::{DType, Device, Shape, Tensor};
use safetensors::tensor::{Metadata, TensorInfo};

use crate::WeightsError;

/// The file starts with the header's length in bytes, as a 64-bit number.
const PREFIX: u64 = 8;

/// What the format allows a header to take.
const MAX_HEADER: u64 = 100_000_000;

/// A weights file whose header was read and found to fit the file.
///
/// Tensors are read one by one from the file, so that loading a model takes no
/// more memory than the model and its largest tensor.
pub(crate) struct Shard {
    path: PathBuf,
    metadata: Metadata,
    /// Where the tensors' bytes start.
    start: u64,
}

impl Shard {
    /// Reads the header of the file at `path`.
    pub(crate) fn open(path: &Path) -> Result<Self, WeightsError> {
        let unread = |source| unreadable(path, source);
        let malformed = |reason| WeightsError::Malformed { path: path.to_path_buf(), reason };

        let mut file = File::open(path).map_err(unread)?;
        let size = file.metadata().map_err(unread)?.len();
        if size < PREFIX {
            return Err(malformed(format!("it has only {size} bytes")));
        }
        let mut prefix = [0; PREFIX as usize];
        file.read_exact(&mut prefix).map_err(unread)?;
        let length = u64::from_le_bytes(prefix);
        if length > MAX_HEADER.min(size - PREFIX) {
            return Err(malformed(format!("a header of {length} bytes in a file of {size} bytes")));
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).map_err(unread)?;
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|error| malformed(format!("header: {error}")))?;

        let start = PREFIX + length;
        let (declared, held) = (metadata.data_len() as u64, size - start);
        if declared != held {
            return Err(malformed(format!("its header declares {declared} bytes of tensors, it holds {held}")));
        }
        for (name, info) in metadata.tensors() {
            // A dimension of zero hides an overflow of the others from the
            // size check, but not from the computation of strides.
            let mut dims = info.shape.iter().filter(|dim| **dim != 0);
            if dims.try_fold(1usize, |n, dim| n.checked_mul(*dim)).is_none() {
                return Err(malformed(format!("the shape of `{name}` overflows")));
            }
        }
        Ok(Self { path: path.to_path_buf(), metadata, start })
    }

    /// The names of all tensors, in the order of the file.
    pub(crate) fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    /// The file's entry for tensor `name`.
    pub(crate) fn info(&self, name: &str) -> Result<&TensorInfo, WeightsError> {
        self.metadata
            .info(name)
            .ok_or_else(|| WeightsError::MissingTensor { name: name.to_owned(), file: self.path.clone() })
    }

    /// Reads tensor `name`, which must have the given shape, if one is given.
    pub(crate) fn read(
        &self,
        name: &str,
        shape: Option<&Shape>,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor, WeightsError> {
        let info = self.info(name)?;
        if let Some(wanted) = shape.filter(|shape| shape.dims() != info.shape) {
            return Err(WeightsError::WrongShape {
                name: name.to_owned(),
                file: self.path.clone(),
                found: info.shape.clone(),
                wanted: wanted.dims().to_vec(),
            });
        }
        let found = DType::try_from(info.dtype)
            .ok()
            .filter(|found| *found == dtype || (found.is_float() && dtype.is_float()))
            .ok_or_else(|| WeightsError::WrongDtype {
                name: name.to_owned(),
                file: self.path.clone(),
                found: info.dtype,
                wanted: dtype,
            })?;
        let bytes = self.bytes(info).map_err(|source| unreadable(&self.path, source))?;
        // Converted before it is moved: not every device has every conversion,
        // and this way all devices get the same bits.
        Tensor::from_raw_buffer(&bytes, found, &info.shape, &Device::Cpu)
            .and_then(|tensor| tensor.to_dtype(dtype)?.to_device(device))
            .map_err(|source| WeightsError::Place {
                name: name.to_owned(),
                file: self.path.clone(),
                source: Box::new(source),
            })
    }

    fn bytes(&self, info: &TensorInfo) -> io::Result<Vec<u8>> {
        let (begin, end) = info.data_offsets;
        let mut bytes = vec![0; end - begin];
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.start + begin as u64))?;
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

fn unreadable(path: &Path, source: io::Error) -> WeightsError {
    WeightsError::Read { path: path.to_path_buf(), source }
}
