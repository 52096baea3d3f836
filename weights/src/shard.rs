//! Reading of one weights file.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use candle::{DType, Device, Layout, Shape, Tensor};

use crate::format::{self, Entries, Entry};
use crate::WeightsError;

/// A weights file whose entries were validated against the file size.
///
/// Tensors are read one by one from the file, so that loading a model takes no more memory than the model and its
/// largest tensor.
pub(crate) struct Shard {
    path: PathBuf,
    entries: Entries,
}

impl Shard {
    /// Reads the entries of the file at `path`.
    pub(crate) fn open(path: &Path) -> Result<Self, WeightsError> {
        Ok(Self { path: path.to_path_buf(), entries: format::entries(path)? })
    }

    /// The names of all tensors.
    pub(crate) fn names(&self) -> Vec<String> {
        self.entries.keys().cloned().collect()
    }

    /// The entry of tensor `name`.
    pub(crate) fn entry(&self, name: &str) -> Result<&Entry, WeightsError> {
        self.entries
            .get(name)
            .ok_or_else(|| WeightsError::MissingTensor { name: name.to_owned(), file: self.path.clone() })
    }

    /// Reads tensor `name`. If `shape` is given, the tensor must have that shape.
    pub(crate) fn read(
        &self,
        name: &str,
        shape: Option<&Shape>,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor, WeightsError> {
        let entry = self.entry(name)?;
        let found = entry.layout.shape();
        if let Some(wanted) = shape.filter(|shape| *shape != found) {
            return Err(WeightsError::WrongShape {
                name: name.to_owned(),
                file: self.path.clone(),
                found: found.dims().to_vec(),
                wanted: wanted.dims().to_vec(),
            });
        }
        let found = DType::try_from(entry.dtype)
            .ok()
            .filter(|found| *found == dtype || (found.is_float() && dtype.is_float()))
            .ok_or_else(|| WeightsError::WrongDtype {
                name: name.to_owned(),
                file: self.path.clone(),
                found: entry.dtype,
                wanted: dtype,
            })?;
        let bytes = self.elements(entry).map_err(|source| WeightsError::Read { path: self.path.clone(), source })?;
        // Converted before the transfer: not every device supports every conversion, and this way all devices get the
        // same bits.
        Tensor::from_raw_buffer(&bytes, found, entry.layout.dims(), &Device::Cpu)
            .and_then(|tensor| match found {
                // candle 0.11 hangs when it converts F8E4M3 to f64 directly.
                DType::F8E4M3 => tensor.to_dtype(DType::F32),
                _ => Ok(tensor),
            })
            .and_then(|tensor| tensor.to_dtype(dtype)?.to_device(device))
            .map_err(|source| WeightsError::Place {
                name: name.to_owned(),
                file: self.path.clone(),
                source: Box::new(source),
            })
    }

    /// Reads the bytes of a tensor's elements in row-major order.
    fn elements(&self, entry: &Entry) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; (entry.bytes.end - entry.bytes.start) as usize];
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(entry.bytes.start))?;
        file.read_exact(&mut bytes)?;
        if entry.layout.is_contiguous() {
            return Ok(bytes);
        }
        Ok(row_major(&bytes, &entry.layout, entry.dtype.bitsize() / 8))
    }
}

/// Gathers elements of `width` bytes, laid out in `bytes` by `layout`, in row-major order.
fn row_major(bytes: &[u8], layout: &Layout, width: usize) -> Vec<u8> {
    let mut dims = layout.dims().iter().zip(layout.stride());
    let last = dims.next_back();
    let starts = dims.fold(vec![0], |starts, (dim, stride)| {
        starts.iter().flat_map(|start| (0..*dim).map(move |i| start + i * stride)).collect()
    });
    let mut elements = Vec::with_capacity(layout.shape().elem_count() * width);
    for start in starts {
        for i in 0..last.map_or(1, |(dim, _)| *dim) {
            let place = start + i * last.map_or(0, |(_, stride)| *stride);
            elements.extend_from_slice(&bytes[place * width..][..width]);
        }
    }
    elements
}
