//! Products with quantised weights, and their elements, on a GPU.

use candle::backend::BackendStorage;
use candle::cuda_backend::{CudaDType, CudaStorage};
use candle::{bail, CpuStorage, CudaDevice, CustomOp1, DType, Layout, Result, Shape, Tensor};
use cudarc::driver::DeviceRepr;
use half::{bf16, f16};

use super::blocks::Format;
use super::launch::{self, Codes, Gemv, Operands};
use super::weight::QuantizedWeight;
use super::{floats, warpgroup};
use crate::cuda::driver::kernels::{written, Capabilities};
use crate::cuda::operator::{begin_wide, elements, launched, takes, with_elements, Call, Kernel};
use crate::gradient::applied;
use crate::ops::gemv::launch::{self as gemv, Epilogue};
use crate::ops::gemv::warpgroup::Sizes;
use crate::ops::{rms_norm, Activation, RmsScale};

/// `residual + norm(x) * weightᵀ + bias`, or the gated unit; `None` where other operators have to do it, or have to refuse.
pub(super) fn product(
    x: &Tensor,
    norm: Option<RmsScale>,
    weight: &QuantizedWeight,
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
    gate: Option<Activation>,
) -> Result<Option<Tensor>> {
    let ((weights, inner), scale) = (weight.dims(), norm.map(|(scale, _)| scale));
    let columns = if gate.is_some() { weights / 2 } else { weights };
    let shape = [&x.dims()[..x.rank().saturating_sub(1)], &[columns]].concat();
    let go_together = x.dims().last() == Some(&inner)
        && scale.is_none_or(|scale| scale.dims() == [inner])
        && bias.is_none_or(|bias| bias.dims() == [weights])
        && residual.is_none_or(|residual| residual.dims() == shape);
    let is_together = weight.codes.device().same_device(x.device());
    let Some(code) = launch::code(x.dtype()) else { return Ok(None) };
    if !go_together || !is_together || !takes(x, &[scale, bias, residual]) {
        return Ok(None);
    }
    let sizes = [x.elem_count() / inner.max(1), columns, inner];
    let (device, contiguous) =
        (x.device().as_cuda_device()?, |of: Option<&Tensor>| of.map(Tensor::contiguous).transpose());
    let epilogue = gate.map_or(Epilogue::Added(Activation::None), Epilogue::Gated);
    // One row of floats has a kernel that is faster than that of all rows.
    let of_floats = floats::sizes(weight.format, x.dtype(), sizes, epilogue, &Capabilities::of(device, floats::CODE)?);
    let is_wide = x.is_contiguous() && begin_wide([Some(x), scale].into_iter().flatten())?;
    let of_floats = of_floats.filter(|_| is_wide);
    let on_warpgroups =
        warpgroup::sizes(weight.format, x.dtype(), sizes, epilogue, &Capabilities::of(device, warpgroup::CODE)?);
    let eps = norm.map_or(0., |(_, eps)| eps);
    if let (Some(of), None) = (on_warpgroups, of_floats) {
        let x = x.contiguous()?;
        // A norm's result is new memory, which begins at such a multiple.
        if begin_wide([&weight.codes, &weight.scales])? && (norm.is_some() || begin_wide([&x])?) {
            // A launch of its own: while it runs, the product's kernel asks for codes.
            let x = norm.map_or(Ok(x.clone()), |(scale, eps)| rms_norm(&x, scale, eps))?;
            let (bias, residual) = (contiguous(bias)?, contiguous(residual)?);
            let few = Few { of: Way::Warpgroups(of), eps, weight: weight.clone(), scale: None, bias, residual };
            return launched(few, &x, shape).map(Some);
        }
    }
    let of_codes = Gemv::new(x.dtype(), weight.format, sizes, gate, &Capabilities::of(device, code)?);
    let Some(of) = of_floats.map(Way::Floats).or(of_codes.map(Way::Codes)) else { return Ok(None) };
    let (x, scale) = (x.contiguous()?, contiguous(scale)?);
    if !begin_wide([Some(&x), Some(&weight.codes), Some(&weight.scales), scale.as_ref()].into_iter().flatten())? {
        return Ok(None);
    }
    let (bias, residual) = (contiguous(bias)?, contiguous(residual)?);
    launched(Few { of, eps, weight: weight.clone(), scale, bias, residual }, &x, shape).map(Some)
}

/// Are there kernels for products of floats of 8 bits with rows of this type?
pub(super) fn multiplies_floats(dtype: DType, device: &CudaDevice) -> Result<bool> {
    let (sizes, epilogue) = ([2, Format::FLOATS.group, Format::FLOATS.group], Epilogue::Added(Activation::None));
    let capabilities = Capabilities::of(device, warpgroup::CODE)?;
    Ok(warpgroup::sizes(Format::FLOATS, dtype, sizes, epilogue, &capabilities).is_some())
}

/// Which kernels compute a product.
enum Way {
    /// Those that multiply codes.
    Codes(Gemv),
    /// Those of one row and 8-bit floats.
    Floats(gemv::Sizes),
    Warpgroups(Sizes),
}

struct Few {
    of: Way,
    eps: f32,
    weight: QuantizedWeight,
    scale: Option<Tensor>,
    bias: Option<Tensor>,
    residual: Option<Tensor>,
}

impl Kernel for Few {
    const NAME: &'static str = "quantized_gemv";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, x, y, .. }: Call<T>) -> Result<()> {
        with_codes(&self.weight, |weight| {
            let operands = [self.scale.as_ref(), self.bias.as_ref(), self.residual.as_ref()];
            with_elements(operands, |[norm, bias, residual]| {
                let (norm, bias, residual) = (norm.as_ref(), bias.as_ref(), residual.as_ref());
                let operands = Operands { norm, eps: self.eps, weight, bias, residual };
                match &self.of {
                    Way::Codes(of) => launch::gemv(device, of, &x, &operands, y),
                    Way::Floats(of) => floats::product(device, of, &x, &operands, y),
                    Way::Warpgroups(of) => warpgroup::product(device, of, self.weight.format, &x, &operands, y),
                }
            })
        })
    }
}

/// The weight's rows at `ids`, or all of them; `None` without kernels for `dtype`.
pub(super) fn expanded(weight: &QuantizedWeight, ids: Option<&Tensor>, dtype: DType) -> Result<Option<Tensor>> {
    if launch::code(dtype).is_none() {
        return Ok(None);
    }
    let (rows, columns) = weight.dims();
    let shape = match ids {
        Some(ids) => [ids.dims(), &[columns]].concat(),
        None => vec![rows, columns],
    };
    let ids = ids.map(Tensor::contiguous).transpose()?;
    let of = Dequantize { format: weight.format, scales: weight.scales.clone(), ids, dtype, shape: shape.into() };
    applied(&weight.codes, &of).map(Some)
}

/// Elements of codes.
struct Dequantize {
    format: Format,
    scales: Tensor,
    ids: Option<Tensor>,
    dtype: DType,
    shape: Shape,
}

impl Dequantize {
    fn run<T: CudaDType + DeviceRepr>(&self, codes: &CudaStorage, layout: &Layout) -> Result<CudaStorage> {
        let device = &codes.device;
        let (rows, bytes) = layout.shape().dims2()?;
        let size = [rows, bytes * 8 / self.format.bits];
        let codes = elements::<u8>(codes, layout)?;
        let y = with_elements::<f16, _, 1>([Some(&self.scales)], |[scales]| {
            let Some(scales) = scales else { bail!("there are scales") };
            let weight = Codes { codes: &codes, scales: &scales };
            with_elements::<u32, _, 1>([self.ids.as_ref()], |[ids]| {
                written::<T>(device, self.shape.elem_count(), |y| {
                    launch::dequantize(device, self.dtype, self.format, size, weight, ids.as_ref(), y)
                })
            })
        })?;
        Ok(CudaStorage::wrap_cuda_slice(y, device.clone()))
    }
}

impl CustomOp1 for Dequantize {
    fn name(&self) -> &'static str {
        "dequantize"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        bail!("this operator needs a tensor on a GPU")
    }

    fn cuda_fwd(&self, codes: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let y = match self.dtype {
            DType::F16 => self.run::<f16>(codes, layout)?,
            DType::BF16 => self.run::<bf16>(codes, layout)?,
            DType::F32 => self.run::<f32>(codes, layout)?,
            other => bail!("no quantised weights in {other:?}, codes in {:?}", codes.dtype()),
        };
        Ok((y, self.shape.clone()))
    }
}

/// Calls `f` with the codes and scales of a weight.
fn with_codes<R>(weight: &QuantizedWeight, f: impl FnOnce(Codes) -> Result<R>) -> Result<R> {
    with_elements::<u8, _, 1>([Some(&weight.codes)], |[codes]| {
        with_elements::<f16, _, 1>([Some(&weight.scales)], |[scales]| match (&codes, &scales) {
            (Some(codes), Some(scales)) => f(Codes { codes, scales }),
            _ => bail!("a weight has codes and scales"),
        })
    })
}
