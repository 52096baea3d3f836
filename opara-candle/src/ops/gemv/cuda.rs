//! Products with few rows in one launch.

use candle::cuda_backend::CudaDType;
use candle::{bail, Result, Tensor};
use cudarc::driver::DeviceRepr;

use super::launch::{self, Epilogue, Operands, Sizes};
use super::{many, warpgroup};
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
    let (device, rows) = (x.device().as_cuda_device()?, x.elem_count() / inner.max(1));
    let sizes = [rows, columns, inner];
    // More rows of one text are a prompt's, of which there may be any number: a library's products are faster for these.
    let capabilities = Capabilities::of(device, warpgroup::CODE)?;
    let few = warpgroup::Sizes::new(x.dtype(), sizes, epilogue, &capabilities).map(Way::Warpgroups);
    let many = || many::Sizes::new(x.dtype(), sizes, epilogue, &capabilities).map(Way::Many);
    let of_warpgroups = few.or_else(|| if matches!(x.dims(), [.., 1, _]) { many() } else { None });
    let of_warps = Sizes::new(x.dtype(), sizes, epilogue, &Capabilities::of(device, launch::CODE)?);
    // Copies are launches: there are none for a product that no kernel here computes.
    if of_warpgroups.is_none() && of_warps.is_none() {
        return Ok(None);
    }
    let contiguous = |tensor: Option<&Tensor>| tensor.map(Tensor::contiguous).transpose();
    let (x, bias, residual) = (x.contiguous()?, contiguous(bias)?, contiguous(residual)?);
    match of_warpgroups {
        // A norm's result is new memory, which begins at such a multiple.
        Some(of) if begin_wide([weight])? && (norm.is_some() || begin_wide([&x])?) => {
            // A launch of its own: while it runs, the product's kernel asks for weights.
            let x = norm.map_or(Ok(x.clone()), |(scale, eps)| rms_norm(&x, scale, eps))?;
            let few = Few { of, eps: 0., weight: weight.clone(), scale: None, bias, residual };
            return launched(few, &x, shape).map(Some);
        }
        _ => {}
    }
    let Some(of) = of_warps else { return Ok(None) };
    let scale = contiguous(scale)?;
    if !begin_wide([Some(&x), Some(weight), scale.as_ref()].into_iter().flatten())? {
        return Ok(None);
    }
    let eps = norm.map_or(0., |(_, eps)| eps);
    launched(Few { of: Way::Warps(of), eps, weight: weight.clone(), scale, bias, residual }, &x, shape).map(Some)
}

/// Which kernels compute a product.
enum Way {
    Warps(Sizes),
    Warpgroups(warpgroup::Sizes),
    Many(many::Sizes),
}

struct Few {
    of: Way,
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
            let operands = Operands { scale, eps: self.eps, weight, bias, residual };
            match &self.of {
                Way::Warps(of) => launch::gemv(device, of, &x, &operands, y),
                Way::Warpgroups(of) => warpgroup::product(device, of, &x, &operands, y),
                Way::Many(of) => many::product(device, of, &x, &operands, y),
            }
        })
    }
}
