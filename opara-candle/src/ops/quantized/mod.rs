//! Matmuls with a quantised weight: codes of 4 or 8 bits, which stay so in memory.

mod blocks;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(super) mod floats;
#[cfg(feature = "cuda")]
pub(super) mod launch;
#[cfg(feature = "cuda")]
pub(super) mod of_blocks;
#[cfg(feature = "cuda")]
pub(super) mod warpgroup;
mod weight;

#[cfg(test)]
pub(crate) use blocks::TYPES;
pub use weight::QuantizedWeight;

use candle::{bail, DType, Device, Result, Tensor};

use super::few_rows::as_few;
use super::gemv::{gated, Operands};
use super::matmul::matmul_flops;
use super::{add, linear, own_or, rms_norm, Activation, RmsScale};
use crate::cpu::record::apply;

/// `residual + norm(x) * weightᵀ + bias`, as [`norm_linear`](super::norm_linear), with a quantised weight.
///
/// On a GPU, up to eight rows of `x` are one launch, which reads the codes once. It rounds each group of 32 neighbours of `norm(x)` to
/// 8 bits, with a scale for each group, and sums products of integers, as llama.cpp does. A group with an infinity or NaN makes its row
/// NaN. More rows, and the CPU, multiply with the weight in the type of `x`.
///
/// On Hopper in f16 and bf16, 9 to 256 rows are a norm, and a launch in which codes become elements of that type on their way to the tensor
/// cores. So the weight is not expanded in memory, and `x` keeps its bits. A row's result does not depend on how many there are. This
/// needs rows of a length that 64 divides. [8-bit floats](QuantizedWeight::of_floats) need 128, and have that launch for 2 to 256 rows. One
/// row of `x` has another one, with the norm, where it fits into shared memory: up to 36,000 elements.
///
/// ```
/// # use candle::quantized::{GgmlDType, QTensor};
/// # use candle::{DType, Device::Cpu, Tensor};
/// # use opara_candle::ops::{self, QuantizedWeight};
/// let weight = QTensor::quantize(&Tensor::ones((32, 64), DType::F32, &Cpu)?, GgmlDType::Q4_0)?; // (out, in)
/// let weight = QuantizedWeight::new(&[&weight], &Cpu)?;
/// let x = Tensor::ones((2, 1, 64), DType::F32, &Cpu)?; // (.., in)
/// let y = ops::quantized_linear(&x, None, &weight, None, None)?;
/// assert_eq!(y.dims(), [2, 1, 32]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Shapes or dtypes that do not agree.
pub fn quantized_linear(
    x: &Tensor,
    norm: Option<RmsScale>,
    weight: &QuantizedWeight,
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
) -> Result<Tensor> {
    product("quantized_linear", x, norm, weight, bias, residual, None)
}

/// `activation(norm(x) * gateᵀ) * (norm(x) * upᵀ)`, as [`norm_gated`](super::norm_gated), with a quantised weight of shape `(2 * out,
/// in)`; see [`quantized_linear`].
///
/// # Errors
/// Shapes or dtypes that do not agree.
pub fn quantized_gated(
    x: &Tensor,
    norm: Option<RmsScale>,
    weight: &QuantizedWeight,
    bias: Option<&Tensor>,
    activation: Activation,
) -> Result<Tensor> {
    let (rows, _) = weight.dims();
    if !rows.is_multiple_of(2) {
        bail!("a gated unit's weight has {rows} rows, which are not two halves")
    }
    product("quantized_gated", x, norm, weight, bias, None, Some(activation))
}

fn product(
    name: &'static str,
    x: &Tensor,
    norm: Option<RmsScale>,
    weight: &QuantizedWeight,
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
    gate: Option<Activation>,
) -> Result<Tensor> {
    let ((out, inner), format) = (weight.dims(), weight.format);
    if x.dims().last() != Some(&inner) {
        bail!("{name}: rows of {:?} do not have the {inner} elements of the weight's rows", x.dims())
    }
    let flops = matmul_flops(x.elem_count() / inner.max(1) * out, inner);
    let operands =
        Operands { eps: norm.map(|(_, eps)| eps), has_bias: bias.is_some(), has_residual: residual.is_some() };
    let run = move |t: &[&Tensor]| {
        let (weight, others) = (QuantizedWeight::of_parts(format, t[1], t[2]), [&t[..2], &t[3..]].concat());
        let (x, norm, _, bias, residual) = operands.of(&others);
        let own = || gpu!(cuda::product(x, norm, &weight, bias, residual, gate));
        own_or(x, own, || {
            let x = norm.map_or_else(|| Ok(x.clone()), |(scale, eps)| rms_norm(x, scale, eps))?;
            let expanded = expanded(&weight, None, x.dtype())?;
            let y = as_few(&x, |x| linear(x, &expanded, bias))?;
            match (gate, residual) {
                (Some(activation), _) => gated(&y, activation),
                (None, Some(residual)) => add(residual, &y),
                (None, None) => Ok(y),
            }
        })
    };
    let given = [Some(x), Some(&weight.codes), Some(&weight.scales), norm.map(|(scale, _)| scale), bias, residual];
    apply(name, &given.into_iter().flatten().collect::<Vec<_>>(), flops, run)
}

/// Rows of a quantised table at `ids`, in `dtype`: shape of `ids` with the length of a row appended.
///
/// # Errors
/// Ids that are not of type u32; on the CPU, ids out of range. On a GPU those are an assertion failure, as in
/// [`embedding`](super::embedding).
pub fn quantized_embedding(table: &QuantizedWeight, ids: &Tensor, dtype: DType) -> Result<Tensor> {
    let format = table.format;
    apply("quantized_embedding", &[&table.codes, &table.scales, ids], 0, move |t| {
        expanded(&QuantizedWeight::of_parts(format, t[0], t[1]), Some(t[2]), dtype)
    })
}

impl QuantizedWeight {
    /// Are there kernels for products of floats of 8 bits with rows of this type? On other devices they are expanded at each product.
    ///
    /// # Errors
    /// A failed driver call.
    pub fn multiplies_floats(dtype: DType, device: &Device) -> Result<bool> {
        #[cfg(feature = "cuda")]
        if let Device::Cuda(device) = device {
            return cuda::multiplies_floats(dtype, device);
        }
        let _ = (dtype, device);
        Ok(false)
    }

    /// The weight in `dtype`: `(rows, columns)`.
    ///
    /// # Errors
    /// A dtype that is none of floats; no memory left.
    pub fn dequantize(&self, dtype: DType) -> Result<Tensor> {
        let format = self.format;
        apply("dequantize", &[&self.codes, &self.scales], 0, move |t| {
            expanded(&QuantizedWeight::of_parts(format, t[0], t[1]), None, dtype)
        })
    }
}

/// The rows at `ids`, or all rows.
fn expanded(weight: &QuantizedWeight, ids: Option<&Tensor>, dtype: DType) -> Result<Tensor> {
    if let Some(ids) = ids.filter(|ids| ids.dtype() != DType::U32) {
        bail!("ids of a quantised table are u32, not {:?}", ids.dtype())
    }
    if !weight.codes.device().is_cuda() {
        let all = weight.on_cpu(dtype)?;
        let Some(ids) = ids else { return Ok(all) };
        let shape = [ids.dims(), &[weight.dims().1]].concat();
        return all.index_select(&ids.flatten_all()?, 0)?.reshape(shape);
    }
    match gpu!(cuda::expanded(weight, ids, dtype))? {
        Some(expanded) => Ok(expanded),
        None => bail!("no quantised weights in {dtype:?} on this GPU"),
    }
}
