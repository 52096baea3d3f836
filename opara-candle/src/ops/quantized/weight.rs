//! A quantised weight on a device.

use candle::quantized::{GgmlDType, QTensor};
use candle::{bail, DType, Device, Result, Tensor};
use half::f16;

use super::blocks::{self, halves, Format, Groups};

/// A weight `(rows, columns)` whose elements are `scale * code`, or `scale * code + minimum`, with codes of 4 or 8 bits, and a scale and
/// a minimum in f16 for each group of 32 or 16 neighbours of a row.
///
/// GGUF's types Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and Q2_K to Q6_K become this without a change of their codes. An element takes 5 bits
/// for those of 4 bits, 8.5 for Q5_0 and Q8_0, 10 for Q2_K, and 9 for the others.
///
/// Codes may be floats of 8 bits, too ([`of_floats`](Self::of_floats)), with a scale in f32 for each 128 neighbours: 8.25 bits an element.
#[derive(Debug, Clone)]
pub struct QuantizedWeight {
    pub(super) format: Format,
    /// `(rows, columns * bits / 8)` of u8. Of each 32 codes of 4 bits, byte `i` has code `i` in its lower half and `i + 16` in its upper
    /// half. Codes of 8 bits are signed, or floats.
    pub(super) codes: Tensor,
    /// `(rows, columns / group, 1 or 2)` of f16: a scale, and a minimum if the format has one. Of floats, the halves of a scale in f32.
    pub(super) scales: Tensor,
}

impl QuantizedWeight {
    /// Bytes on the device of so many elements of a GGUF type; `None` for types that there are no codes for.
    pub fn bytes(dtype: GgmlDType, elements: usize) -> Option<usize> {
        blocks::format(dtype).map(|format| format.bytes(elements))
    }

    /// One weight of the rows of several, in their order. Weights of different types take the bits, the groups and the minimum that all of
    /// them can have: 9 bits an element, or 10 where one has a minimum and another one groups of 16.
    ///
    /// # Errors
    /// Weights that are no matrices, of different or odd lengths of rows (a multiple of 32 is needed), or of a type that
    /// [`bytes`](Self::bytes) does not know; no memory left.
    pub fn new(weights: &[&QTensor], device: &Device) -> Result<Self> {
        let Some(first) = weights.first() else { bail!("no quantised weights were given") };
        let (_, columns) = first.shape().dims2()?;
        let (mut rows, mut all) = (0, Vec::with_capacity(weights.len()));
        for weight in weights {
            let (of_weight, inner) = weight.shape().dims2()?;
            if inner != columns || !inner.is_multiple_of(32) || inner == 0 {
                bail!("quantised rows of {inner} and {columns} elements: they must be alike, and multiples of 32")
            }
            rows += of_weight;
            all.push((weight.dtype(), weight.data()?));
        }
        // A GPU reads blocks of one type faster than the host does.
        #[cfg(feature = "cuda")]
        {
            let dtype = first.dtype();
            let are_one = all.iter().all(|(of, _)| *of == dtype) && blocks::format(dtype).is_some();
            if device.is_cuda() && are_one && u32::try_from(rows * columns).is_ok() {
                let parts = all.iter().zip(weights).map(|((_, data), weight)| {
                    let rows = weight.shape().dims()[0];
                    Tensor::from_slice(data, (rows, data.len() / rows.max(1)), device)
                });
                return Self::of_blocks(dtype, &Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, 0)?);
            }
        }
        let all: Vec<(GgmlDType, &[u8])> = all.iter().map(|(dtype, data)| (*dtype, &data[..])).collect();
        let Groups { format, codes, scales } = Groups::of(&all)?;
        Ok(Self {
            format,
            codes: Tensor::from_vec(codes, (rows, columns * format.bits / 8), device)?,
            scales: Tensor::from_vec(scales, (rows, columns / format.group, format.numbers()), device)?,
        })
    }

    /// One weight of the rows of several, in their order, whose elements are floats of 8 bits (e4m3) times a scale: of each, the floats'
    /// bytes `(rows, columns)` of u8, and `(rows, columns / 128)` of f32, a scale for each 128 neighbours of a row.
    ///
    /// ```
    /// # use candle::{DType, Device::Cpu, Tensor};
    /// # use opara_candle::ops::QuantizedWeight;
    /// let ones = Tensor::full(0x38u8, (2, 256), &Cpu)?;
    /// let scales = Tensor::new(&[[0.5f32, 2.], [1., 3.]], &Cpu)?;
    /// let weight = QuantizedWeight::of_floats(&[(&ones, &scales)], &Cpu)?;
    /// assert_eq!(weight.dequantize(DType::F32)?.get(0)?.sum_all()?.to_scalar::<f32>()?, 320.);
    /// # Ok::<(), candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// Shapes or types that do not agree, rows that 128 does not divide; no memory left.
    pub fn of_floats(weights: &[(&Tensor, &Tensor)], device: &Device) -> Result<Self> {
        let format = Format::FLOATS;
        let mut all = Vec::with_capacity(weights.len());
        for (floats, scales) in weights {
            let (rows, columns) = floats.dims2()?;
            let groups = columns / format.group;
            if floats.dtype() != DType::U8 || !columns.is_multiple_of(format.group) || scales.dims() != [rows, groups] {
                bail!(
                    "floats of 8 bits are bytes (u8) with a scale for each {} neighbours, not {:?} of {:?} with scales {:?}",
                    format.group,
                    floats.dims(),
                    floats.dtype(),
                    scales.dims()
                )
            }
            let halves = scales.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?.into_iter().flat_map(halves);
            let scales = Tensor::from_iter(halves, &Device::Cpu)?.reshape((rows, groups, 2))?.to_device(device)?;
            all.push(Self { format, codes: floats.to_device(device)?, scales });
        }
        Self::joined(&all.iter().collect::<Vec<_>>())
    }

    /// One weight of the rows of several, in their order, of one format.
    ///
    /// # Errors
    /// Weights of different formats or lengths of rows, or none; no memory left.
    pub fn joined(weights: &[&Self]) -> Result<Self> {
        let Some(first) = weights.first() else { bail!("no quantised weights were given") };
        if weights.iter().any(|weight| weight.format != first.format) {
            bail!("quantised weights of different formats have no common one")
        }
        if weights.len() == 1 {
            return Ok((*first).clone());
        }
        let all =
            |of: fn(&Self) -> &Tensor| Tensor::cat(&weights.iter().map(|weight| of(weight)).collect::<Vec<_>>(), 0);
        Ok(Self { format: first.format, codes: all(|weight| &weight.codes)?, scales: all(|weight| &weight.scales)? })
    }

    /// The weight whose rows are blocks of a type: `bytes` is `(rows, bytes of a row)`. On a GPU, launches alone make it, so that a
    /// capture records them.
    ///
    /// # Errors
    /// Bytes that are no whole blocks, a type that [`bytes`](Self::bytes) does not know, or rows that 32 does not divide.
    #[cfg(any(feature = "cuda", test))]
    pub(crate) fn of_blocks(dtype: GgmlDType, bytes: &Tensor) -> Result<Self> {
        let Some(format) = blocks::format(dtype) else { bail!("{dtype:?} has no codes for a quantised weight") };
        let (rows, of_row) = bytes.dims2()?;
        let columns = of_row / dtype.type_size() * dtype.block_size();
        if !of_row.is_multiple_of(dtype.type_size()) || !columns.is_multiple_of(32) {
            bail!("rows of {of_row} bytes are no blocks of {dtype:?}, or no multiple of 32 elements")
        }
        let of_codes = (rows, columns * format.bits / 8);
        let of_scales = (rows, columns / format.group, format.numbers());
        let bytes = bytes.contiguous()?;
        #[cfg(feature = "cuda")]
        if bytes.device().is_cuda() {
            let [codes, scales] = super::of_blocks::parts(dtype, &bytes, of_codes.into(), of_scales.into())?;
            return Ok(Self { format, codes, scales });
        }
        let Groups { codes, scales, .. } = Groups::of(&[(dtype, &bytes.flatten_all()?.to_vec1::<u8>()?)])?;
        let [codes, scales] =
            [Tensor::from_vec(codes, of_codes, bytes.device())?, Tensor::from_vec(scales, of_scales, bytes.device())?];
        Ok(Self { format, codes, scales })
    }

    /// Rows and columns.
    pub fn dims(&self) -> (usize, usize) {
        (self.codes.dims()[0], self.codes.dims()[1] * 8 / self.format.bits)
    }

    pub(super) fn of_parts(format: Format, codes: &Tensor, scales: &Tensor) -> Self {
        Self { format, codes: codes.clone(), scales: scales.clone() }
    }

    /// The weight in `dtype`, where it lies on the CPU.
    pub(super) fn on_cpu(&self, dtype: DType) -> Result<Tensor> {
        let codes = self.codes.flatten_all()?.to_vec1::<u8>()?;
        let scales = self.scales.flatten_all()?.to_vec1::<f16>()?;
        let elements = Groups { format: self.format, codes, scales }.elements();
        Tensor::from_vec(elements, self.dims(), &Device::Cpu)?.to_dtype(dtype)
    }
}
