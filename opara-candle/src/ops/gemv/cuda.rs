//! Products with few rows in one launch.

use candle::cuda_backend::CudaDType;
use candle::{bail, Result, Tensor};
use cudarc::driver::DeviceRepr;

use super::launch::{self, Epilogue, Operands, Sizes};
use super::warpgroup;
use crate::cuda::driver::kernels::Capabilities;
use crate::cuda::operator::{begin_wide, launched, takes, with_elements, Call, Kernel};
use crate::ops::{rms_norm, Activation, RmsScale};

/// `residual + activation(norm(x) * weightᵀ + bias)`; `None` where other operators have to do it, or have to refuse.
pub(super) fn norm_linear(
    x: &Tensor,
    norm: Option<RmsScale>,
    weight: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
    residual: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    run(x, norm, weight, bias, residual, Epilogue::Added(activation))
}

/// `activation(norm(x) * gateᵀ) * (norm(x) * upᵀ)`; `None` likewise.
pub(super) fn norm_gated(
    x: &Tensor,
    norm: Option<RmsScale>,
    weight: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
) -> Result<Option<Tensor>> {
    run(x, norm, weight, bias, None, Epilogue::Gated(activation))
}

fn run(
    x: &Tensor,
    norm: Option<RmsScale>,
    weight: &Tensor,
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
    epilogue: Epilogue,
) -> Result<Option<Tensor>> {
    let ((weights, inner), scale) = (weight.dims2()?, norm.map(|(scale, _)| scale));
    let columns = weights / epilogue.rows();
    let shape = [&x.dims()[..x.rank().saturating_sub(1)], &[columns]].concat();
    let go_together = x.dims().last() == Some(&inner)
        && scale.is_none_or(|scale| scale.dims() == [inner])
        && bias.is_none_or(|bias| bias.dims() == [weights])
        && residual.is_none_or(|residual| residual.dims() == shape);
    if !go_together || !takes(x, &[Some(weight), scale, bias, residual]) || !weight.is_contiguous() {
        return Ok(None);
    }
    let rows = x.elem_count() / inner.max(1);
    let capabilities = Capabilities::of(x.device().as_cuda_device()?, warpgroup::CODE)?;
    if let Some(of) = warpgroup::Sizes::new(x.dtype(), [rows, columns, inner], epilogue, &capabilities) {
        // A launch of its own: while it runs, the product's kernel asks for weights.
        let x = norm.map_or_else(|| x.contiguous(), |(scale, eps)| rms_norm(x, scale, eps))?;
        let contiguous = |tensor: Option<&Tensor>| tensor.map(Tensor::contiguous).transpose();
        let (bias, residual) = (contiguous(bias)?, contiguous(residual)?);
        if begin_wide([&x, weight])? {
            return launched(Rows { of, weight: weight.clone(), bias, residual }, &x, shape).map(Some);
        }
    }
    let capabilities = Capabilities::of(x.device().as_cuda_device()?, launch::CODE)?;
    let Some(of) = Sizes::new(x.dtype(), [rows, columns, inner], epilogue, &capabilities) else { return Ok(None) };
    let contiguous = |tensor: Option<&Tensor>| tensor.map(Tensor::contiguous).transpose();
    let (x, scale) = (x.contiguous()?, contiguous(scale)?);
    if !begin_wide([Some(&x), Some(weight), scale.as_ref()].into_iter().flatten())? {
        return Ok(None);
    }
    let eps = norm.map_or(0., |(_, eps)| eps);
    let (bias, residual) = (contiguous(bias)?, contiguous(residual)?);
    launched(Few { of, eps, weight: weight.clone(), scale, bias, residual }, &x, shape).map(Some)
}

struct Few {
    of: Sizes,
    eps: f32,
    weight: Tensor,
    scale: Option<Tensor>,
    bias: Option<Tensor>,
    residual: Option<Tensor>,
}

impl Kernel for Few {
    const NAME: &'static str = "gemv";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, x, y, .. }: Call<T>) -> Result<()> {
        let operands = [Some(&self.weight), self.scale.as_ref(), self.bias.as_ref(), self.residual.as_ref()];
        with_elements(operands, |[weight, scale, bias, residual]| {
            let Some(weight) = &weight else { bail!("there is a weight") };
            let (scale, bias, residual) = (scale.as_ref(), bias.as_ref(), residual.as_ref());
            launch::gemv(device, &self.of, &x, &Operands { scale, eps: self.eps, weight, bias, residual }, y)
        })
    }
}

struct Rows {
    of: warpgroup::Sizes,
    weight: Tensor,
    bias: Option<Tensor>,
    residual: Option<Tensor>,
}

impl Kernel for Rows {
    const NAME: &'static str = "gemv_warpgroup";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, x, y, .. }: Call<T>) -> Result<()> {
        let operands = [Some(&self.weight), self.bias.as_ref(), self.residual.as_ref()];
        with_elements(operands, |[weight, bias, residual]| {
            let Some(weight) = &weight else { bail!("there is a weight") };
            let (bias, residual) = (bias.as_ref(), residual.as_ref());
            warpgroup::product(device, &self.of, &x, &warpgroup::Operands { weight, bias, residual }, y)
        })
    }
}
