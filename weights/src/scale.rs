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

/// The weight times its scale, in f32: one scale for all elements, one for each row, or one for each block.
///
/// # Errors
/// Why the scale does not fit the weight.
pub(crate) fn scaled(weight: &Tensor, scale: &Tensor, quantization: Quantization) -> Result<Tensor, String> {
    let candles = |error: candle::Error| error.to_string();
    let (shape, scales) = (weight.dims(), scale.dims());
    let (rows, columns) = match *shape {
        [rows, columns] => (rows, columns),
        _ => (1, weight.elem_count()),
    };
    let (height, width) = quantization.block;
    let (height, width) = match *scales {
        [] | [1] => (rows, columns),
        [n] | [n, 1] if n == rows => (1, columns),
        [n, m] if (n, m) == (rows.div_ceil(height), columns.div_ceil(width)) => (height, width),
        [1, 1] => (rows, columns),
        _ => {
            return Err(format!(
                "a scale of shape {scales:?} does not fit its shape {shape:?}: neither one for all, nor one for each row, nor \
                 one for each block of {height} x {width}"
            ))
        }
    };
    let factors = scale.flatten_all().and_then(|scale| scale.to_vec1::<f32>()).map_err(candles)?;
    if let Some(factor) = factors.iter().find(|factor| !factor.is_finite()) {
        return Err(format!("one of its scales is {factor}"));
    }
    let mut elements =
        weight.to_dtype(DType::F32).and_then(|weight| weight.flatten_all()?.to_vec1::<f32>()).map_err(candles)?;
    let across = columns.div_ceil(width.max(1));
    for (row, elements) in elements.chunks_mut(columns.max(1)).enumerate() {
        let factors = &factors[row / height.max(1) * across..];
        for (elements, factor) in elements.chunks_mut(width.max(1)).zip(factors) {
            elements.iter_mut().for_each(|element| *element *= factor);
        }
    }
    Tensor::from_vec(elements, shape, &Device::Cpu).map_err(candles)
}
