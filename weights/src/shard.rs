//! Reading of one weights file.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use candle::{DType, Device, Layout, Shape, Tensor};
use safetensors::Dtype;

use crate::floats::Floats;
use crate::format::{self, Entries, Entry};
use crate::quantization::Quantization;
use crate::scale;
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

    /// Elements of a matrix of 8-bit floats whose rows consist of groups.
    pub(crate) fn floats(&self, name: &str) -> Option<u64> {
        let entry = self.entries.get(name).filter(|entry| entry.dtype == Dtype::F8_E4M3)?;
        match *entry.layout.dims() {
            [rows, columns] if columns.is_multiple_of(Floats::GROUP) => Some((rows * columns) as u64),
            _ => None,
        }
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
        let bytes = self.bytes(entry)?;
        let placed = Tensor::from_raw_buffer(&bytes, found, entry.layout.dims(), &Device::Cpu)
            .and_then(|tensor| match found {
                // candle 0.11 hangs when it converts F8E4M3 to f64 directly.
                DType::F8E4M3 => tensor.to_dtype(DType::F32),
                _ => Ok(tensor),
            })
            .and_then(|tensor| place(&tensor, dtype, device));
        placed.map_err(|source| self.misplaced(name, source))
    }

    /// Reads a scale of quantised weights in f32.
    fn scale(&self, name: &str) -> Result<Tensor, WeightsError> {
        let entry = self.entry(name)?;
        if entry.dtype != Dtype::F8_E8M0 {
            return self.read(name, None, DType::F32, &Device::Cpu);
        }
        // Eight bits of exponent: powers of two from -127 on, and the last is no number.
        let powers = self.bytes(entry)?.into_iter().map(|exponent| match exponent {
            u8::MAX => f32::NAN,
            exponent => (f32::from(exponent) - 127.).exp2(),
        });
        let scale = Tensor::from_vec(powers.collect(), entry.layout.dims(), &Device::Cpu);
        scale.map_err(|source| self.misplaced(name, source))
    }

    /// Reads quantised tensor `name` times its scale, which may be in another file.
    pub(crate) fn read_scaled(
        &self,
        name: &str,
        shape: Option<&Shape>,
        (scale, of): (&str, &Self),
        quantization: Quantization,
        (dtype, device): (DType, &Device),
    ) -> Result<Tensor, WeightsError> {
        let weight = self.read(name, shape, DType::F32, &Device::Cpu)?;
        let scaled = scale::scaled(&weight, &of.scale(scale)?, quantization);
        let scaled = scaled.map_err(|reason| self.unscaled(name, format!("`{scale}`: {reason}")))?;
        place(&scaled, dtype, device).map_err(|source| self.misplaced(name, source))
    }

    /// The bytes of a tensor of 8-bit floats.
    pub(crate) fn read_bytes(&self, name: &str) -> Result<Tensor, WeightsError> {
        let entry = self.entry(name)?;
        let bytes = Tensor::from_vec(self.bytes(entry)?, entry.layout.shape(), &Device::Cpu);
        bytes.map_err(|source| self.misplaced(name, source))
    }

    /// The scales of `group` neighbours each of a matrix' rows; `None` where some neighbours have different ones, and for other tensors.
    pub(crate) fn read_scales(
        &self,
        name: &str,
        scale: Option<(&str, &Self)>,
        quantization: Quantization,
        group: usize,
    ) -> Result<Option<Tensor>, WeightsError> {
        let shape = self.entry(name)?.layout.dims();
        if shape.len() != 2 {
            return Ok(None);
        }
        let (scale, of) = match scale {
            Some((scale, of)) => (of.scale(scale)?, format!("`{scale}`: ")),
            // They were rounded and not scaled.
            None => (Tensor::ones((), DType::F32, &Device::Cpu).map_err(|e| self.misplaced(name, e))?, String::new()),
        };
        let groups = scale::of_groups(shape, &scale, quantization, group);
        groups.map_err(|reason| self.unscaled(name, format!("{of}{reason}")))
    }

    /// An error about the scale of tensor `name`.
    pub(crate) fn unscaled(&self, name: &str, reason: String) -> WeightsError {
        WeightsError::Scale { name: name.to_owned(), file: self.path.clone(), reason }
    }

    fn misplaced(&self, name: &str, source: candle::Error) -> WeightsError {
        WeightsError::Place { name: name.to_owned(), file: self.path.clone(), source: Box::new(source) }
    }

    /// Do two tensors of two files have the same shape and the same bits?
    pub(crate) fn is_same(&self, name: &str, other: (&str, &Self)) -> Result<bool, WeightsError> {
        let (one, two) = (self.entry(name)?, other.1.entry(other.0)?);
        if one.dtype != two.dtype || one.layout.dims() != two.layout.dims() {
            return Ok(false);
        }
        if !one.layout.is_contiguous() || !two.layout.is_contiguous() {
            return Ok(self.bytes(one)? == other.1.bytes(two)?);
        }
        let same = || -> io::Result<bool> {
            let (mut left, mut right) = (self.reader(one)?, other.1.reader(two)?);
            loop {
                let (a, b) = (left.fill_buf()?, right.fill_buf()?);
                let length = a.len().min(b.len());
                if length == 0 || a[..length] != b[..length] {
                    return Ok(a.is_empty() && b.is_empty());
                }
                left.consume(length);
                right.consume(length);
            }
        };
        same().map_err(|source| WeightsError::Read { path: self.path.clone(), source })
    }

    fn bytes(&self, entry: &Entry) -> Result<Vec<u8>, WeightsError> {
        self.elements(entry).map_err(|source| WeightsError::Read { path: self.path.clone(), source })
    }

    /// The bytes of a tensor as they lie in the file.
    fn reader(&self, entry: &Entry) -> io::Result<impl BufRead> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(entry.bytes.start))?;
        Ok(BufReader::with_capacity(1 << 20, file).take(entry.bytes.end - entry.bytes.start))
    }

    /// Reads the bytes of a tensor's elements in row-major order.
    fn elements(&self, entry: &Entry) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; (entry.bytes.end - entry.bytes.start) as usize];
        self.reader(entry)?.read_exact(&mut bytes)?;
        if entry.layout.is_contiguous() {
            return Ok(bytes);
        }
        Ok(row_major(&bytes, &entry.layout, entry.dtype.bitsize() / 8))
    }
}

/// Converts before the transfer: not every device supports every conversion, and this way all devices get the same bits.
fn place(tensor: &Tensor, dtype: DType, device: &Device) -> candle::Result<Tensor> {
    tensor.to_dtype(dtype)?.to_device(device)
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
