//! Scales of quantised weights.

use candle::{DType, Device, Tensor};

use crate::quantization::Quantization;

/// What the name of a weight is followed by in the name of its scale. Both are factors: `inv` means that the scale is the
/// inverse of what the weight was multiplied by.
pub(crate) const SUFFIXES: [&str; 2] = ["_scale_inv", "_scale"];

/// Scales of what flows through a product with a quantised weight, in place of `weight` in its name. They say how activations and
/// cached keys and values would be rounded to 8 bits. Nothing here rounds them, so that these change nothing.
pub(crate) const OF_ACTIVATIONS: [&str; 6] =
    ["input_scale", "output_scale", "q_scale", "k_scale", "v_scale", "prob_output_scale"];

/// The scales of a weight's blocks of `height` rows and `width` columns: one for all elements, one for each row, or one for each block.
struct Blocks {
    rows: usize,
    columns: usize,
    height: usize,
    width: usize,
    factors: Vec<f32>,
}

impl Blocks {
    /// # Errors
    /// Why the scale does not fit a weight of this shape.
    fn of(shape: &[usize], scale: &Tensor, quantization: Quantization) -> Result<Self, String> {
        let (rows, columns) = match *shape {
            [rows, columns] => (rows, columns),
            _ => (1, shape.iter().product()),
        };
        let (height, width) = quantization.block;
        let (height, width) = match *scale.dims() {
            [] | [1] => (rows, columns),
            [n] | [n, 1] if n == rows => (1, columns),
            [n, m] if (n, m) == (rows.div_ceil(height), columns.div_ceil(width)) => (height, width),
            [1, 1] => (rows, columns),
            _ => {
                return Err(format!(
                    "a scale of shape {:?} does not fit its shape {shape:?}: neither one for all, nor one for each row, nor \
                     one for each block of {height} x {width}",
                    scale.dims()
                ))
            }
        };
        let factors =
            scale.flatten_all().and_then(|scale| scale.to_vec1::<f32>()).map_err(|error| error.to_string())?;
        if let Some(factor) = factors.iter().find(|factor| !factor.is_finite()) {
            return Err(format!("one of its scales is {factor}"));
        }
        Ok(Self { rows, columns, height: height.max(1), width: width.max(1), factors })
    }

    /// Those of a row.
    fn of_row(&self, row: usize) -> &[f32] {
        let across = self.columns.div_ceil(self.width);
        &self.factors[row / self.height * across..][..across]
    }
}

/// The weight times its scale, in f32.
///
/// # Errors
/// Why the scale does not fit the weight.
pub(crate) fn scaled(weight: &Tensor, scale: &Tensor, quantization: Quantization) -> Result<Tensor, String> {
    let candles = |error: candle::Error| error.to_string();
    let blocks = Blocks::of(weight.dims(), scale, quantization)?;
    let mut elements =
        weight.to_dtype(DType::F32).and_then(|weight| weight.flatten_all()?.to_vec1::<f32>()).map_err(candles)?;
    for (row, elements) in elements.chunks_mut(blocks.columns.max(1)).enumerate() {
        for (elements, factor) in elements.chunks_mut(blocks.width).zip(blocks.of_row(row)) {
            elements.iter_mut().for_each(|element| *element *= factor);
        }
    }
    Tensor::from_vec(elements, weight.dims(), &Device::Cpu).map_err(candles)
}

/// The scales of `group` neighbours of a row each, `(rows, columns / group)` in f32; `None` where some neighbours have different ones.
///
/// # Errors
/// Why the scale does not fit a weight of this shape.
pub(crate) fn of_groups(
    shape: &[usize],
    scale: &Tensor,
    quantization: Quantization,
    group: usize,
) -> Result<Option<Tensor>, String> {
    let blocks = Blocks::of(shape, scale, quantization)?;
    let Blocks { rows, columns, width, .. } = blocks;
    if !columns.is_multiple_of(group) || !(width == columns || width.is_multiple_of(group)) {
        return Ok(None);
    }
    let groups = columns / group;
    let of_row = |row: usize| {
        let of_row = blocks.of_row(row);
        (0..groups).map(move |at| of_row[at * group / width])
    };
    let factors = (0..rows).flat_map(of_row).collect();
    Tensor::from_vec(factors, (rows, groups), &Device::Cpu).map(Some).map_err(|error| error.to_string())
}
