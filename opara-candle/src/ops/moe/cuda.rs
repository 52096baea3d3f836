//! A layer of experts on a GPU.

use candle::cuda_backend::{CudaDType, CudaStorage};
use candle::{bail, CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor};
use cudarc::driver::DeviceRepr;
use half::{bf16, f16};

use super::launch::{self, Sizes};
use super::layer::Layer;
use crate::cuda::driver::kernels::written;
use crate::cuda::operator::{begin_wide, elements, takes, with_elements};
use crate::ops::Activation;

/// Operands are contiguous and go together. `None` where other operators have to do it.
pub(super) fn moe(of: &Layer, activation: Activation) -> Result<Option<Tensor>> {
    let Layer { x, weights, ids, gate_up, down } = *of;
    let ((rows, hidden), chosen, (experts, _, inner)) = (x.dims2()?, ids.dim(1)?, down.dims3()?);
    let of = Sizes { dtype: x.dtype(), rows, hidden, experts, chosen, inner };
    let are_together = [weights, ids].iter().all(|other| other.device().same_device(x.device()));
    if !of.are_known() || !are_together || !takes(x, &[Some(gate_up), Some(down)]) {
        return Ok(None);
    }
    if !begin_wide([x, gate_up, down])? {
        return Ok(None);
    }
    let groups = ids.apply_op1_no_bwd(&Step { of, kind: Kind::Groups })?;
    let weights = weights.to_dtype(DType::F32)?;
    let kind = Kind::Gated { activation, groups: groups.clone(), weight: gate_up.clone() };
    let inner = x.apply_op1_no_bwd(&Step { of, kind })?;
    let parts = inner.apply_op1_no_bwd(&Step { of, kind: Kind::Down { groups, weight: down.clone() } })?;
    parts.apply_op1_no_bwd(&Step { of, kind: Kind::Sums { ids: ids.clone(), weights } }).map(Some)
}

/// A launch of a layer.
struct Step {
    of: Sizes,
    kind: Kind,
}

enum Kind {
    /// Of the ids.
    Groups,
    /// Of `x`.
    Gated { activation: Activation, groups: Tensor, weight: Tensor },
    /// Of the gated units.
    Down { groups: Tensor, weight: Tensor },
    /// Of the products, which are f32.
    Sums { ids: Tensor, weights: Tensor },
}

impl Step {
    fn groups(&self, ids: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let (of, ids_) = (&self.of, elements::<u32>(ids, layout)?);
        let y = written(&ids.device, of.groups(), |y| launch::groups(&ids.device, of, &ids_, y))?;
        Ok((CudaStorage::wrap_cuda_slice(y, ids.device.clone()), of.groups().into()))
    }

    fn product<T: CudaDType + DeviceRepr>(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let (of, device, from) = (&self.of, &x.device, elements::<T>(x, layout)?);
        let (Kind::Gated { groups, weight, .. } | Kind::Down { groups, weight }) = &self.kind else {
            bail!("a product has a weight")
        };
        with_elements::<u32, _, 1>([Some(groups)], |[groups]| {
            with_elements::<T, _, 1>([Some(weight)], |[weight]| {
                let (Some(groups), Some(weight)) = (groups, weight) else { bail!("a product has a weight") };
                let operands = [&from, &weight];
                if let Kind::Gated { activation, .. } = self.kind {
                    let shape = (of.pairs(), of.inner);
                    let y = written::<T>(device, of.pairs() * of.inner, |y| {
                        launch::gated(device, (of, activation), &groups, operands, y)
                    })?;
                    return Ok((CudaStorage::wrap_cuda_slice(y, device.clone()), shape.into()));
                }
                let shape = (of.pairs(), of.hidden);
                let y =
                    written::<f32>(device, of.pairs() * of.hidden, |y| launch::down(device, of, &groups, operands, y))?;
                Ok((CudaStorage::wrap_cuda_slice(y, device.clone()), shape.into()))
            })
        })
    }

    fn sums<T: CudaDType + DeviceRepr>(&self, parts: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let (of, device, parts) = (&self.of, &parts.device, elements::<f32>(parts, layout)?);
        let Kind::Sums { ids, weights } = &self.kind else { bail!("a sum has weights") };
        with_elements::<u32, _, 1>([Some(ids)], |[ids]| {
            with_elements::<f32, _, 1>([Some(weights)], |[weights]| {
                let (Some(ids), Some(weights)) = (ids, weights) else { bail!("a sum has weights") };
                let y = written::<T>(device, of.rows * of.hidden, |y| {
                    launch::sums(device, of, &ids, [&weights, &parts], y)
                })?;
                Ok((CudaStorage::wrap_cuda_slice(y, device.clone()), (of.rows, of.hidden).into()))
            })
        })
    }
}

/// Calls a function with the type of these elements.
macro_rules! in_type {
    ($dtype:expr, $step:ident.$run:ident($($argument:expr),*)) => {
        match $dtype {
            DType::F16 => $step.$run::<f16>($($argument),*),
            DType::BF16 => $step.$run::<bf16>($($argument),*),
            _ => $step.$run::<f32>($($argument),*),
        }
    };
}

impl CustomOp1 for Step {
    fn name(&self) -> &'static str {
        "moe"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        bail!("this operator is for tensors on a GPU")
    }

    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        match self.kind {
            Kind::Groups => self.groups(x, layout),
            Kind::Gated { .. } | Kind::Down { .. } => in_type!(self.of.dtype, self.product(x, layout)),
            Kind::Sums { .. } => in_type!(self.of.dtype, self.sums(x, layout)),
        }
    }
}
