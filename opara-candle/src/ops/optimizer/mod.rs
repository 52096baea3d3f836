//! The parts of an optimizer's step: the sums of squares of gradients, the numbers of the step, and the update of a tensor. All numbers
//! that change from step to step lie on the device, in the control block of [`rule`], so that a captured step is right at every replay.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(super) mod launch;
pub(crate) mod rule;

use candle::{bail, CpuStorage, InplaceOp1, InplaceOp2, Layout, Result, Storage, Tensor};

pub(crate) use self::rule::{Update, SUMS};
use crate::cpu::record::apply_in_place;

/// Writes sums of squares of a gradient to `sums`, [`SUMS`] numbers of f64: together they are the whole sum.
///
/// # Errors
/// Tensors on several devices, and no floats.
pub(crate) fn square_sums(sums: &Tensor, gradient: &Tensor) -> Result<()> {
    apply_in_place("square_sums", &[sums, gradient], |t| t[0].inplace_op2(&t[1].contiguous()?, &SquareSums))
}

/// Goes one step on. `sums` are those of all gradients, one behind the other.
///
/// # Errors
/// A failed launch.
pub(crate) fn tick(control: &Tensor, sums: Option<&Tensor>) -> Result<()> {
    match sums {
        Some(sums) => apply_in_place("tick", &[control, sums], |t| t[0].inplace_op2(t[1], &Tick)),
        None => apply_in_place("tick", &[control], |t| t[0].inplace_op1(&Tick)),
    }
}

impl Update {
    /// Updates a value by its gradient.
    ///
    /// # Errors
    /// Tensors that differ in dtype, shape or device, a value that is not contiguous, and a failed launch.
    pub fn apply(&self, value: &Tensor, gradient: &Tensor, control: &Tensor) -> Result<()> {
        if value.shape() != gradient.shape() || value.dtype() != gradient.dtype() || !value.is_contiguous() {
            bail!(
                "a gradient has its value's shape and dtype, which is contiguous, not {:?} {:?} for {:?} {:?}",
                gradient.shape(),
                gradient.dtype(),
                value.layout(),
                value.dtype()
            )
        }
        value.inplace_op2(&gradient.contiguous()?, &Updated { of: self, control })
    }
}

struct SquareSums;

impl InplaceOp2 for SquareSums {
    fn name(&self) -> &'static str {
        "square_sums"
    }

    fn cpu_fwd(&self, sums: &mut CpuStorage, to: &Layout, gradient: &CpuStorage, at: &Layout) -> Result<()> {
        let sum = cpu::square_sum(gradient, at.start_offset(), at.shape().elem_count())?;
        let CpuStorage::F64(sums) = sums else { bail!("sums are of f64") };
        sums[to.start_offset()..][..SUMS].fill(0.);
        sums[to.start_offset()] = sum;
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        sums: &mut candle::CudaStorage,
        to: &Layout,
        gradient: &candle::CudaStorage,
        at: &Layout,
    ) -> Result<()> {
        cuda::square_sums(sums, to, gradient, at)
    }
}

struct Tick;

impl InplaceOp1 for Tick {
    fn name(&self) -> &'static str {
        "tick"
    }

    fn cpu_fwd(&self, control: &mut CpuStorage, _: &Layout) -> Result<()> {
        let CpuStorage::F64(control) = control else { bail!("a control block is of f64") };
        cpu::tick(control, &[]);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, control: &mut candle::CudaStorage, _: &Layout) -> Result<()> {
        cuda::tick(control, None)
    }
}

impl InplaceOp2 for Tick {
    fn name(&self) -> &'static str {
        "tick"
    }

    fn cpu_fwd(&self, control: &mut CpuStorage, _: &Layout, sums: &CpuStorage, _: &Layout) -> Result<()> {
        let (CpuStorage::F64(control), CpuStorage::F64(sums)) = (control, sums) else {
            bail!("a control block and sums are of f64")
        };
        cpu::tick(control, sums);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        control: &mut candle::CudaStorage,
        _: &Layout,
        sums: &candle::CudaStorage,
        _: &Layout,
    ) -> Result<()> {
        cuda::tick(control, Some(sums))
    }
}

struct Updated<'a> {
    of: &'a Update,
    control: &'a Tensor,
}

impl InplaceOp2 for Updated<'_> {
    fn name(&self) -> &'static str {
        "update"
    }

    fn cpu_fwd(&self, value: &mut CpuStorage, to: &Layout, gradient: &CpuStorage, from: &Layout) -> Result<()> {
        let (storage, _) = self.control.storage_and_layout();
        let (Storage::Cpu(CpuStorage::F64(control)), Storage::Cpu(moments)) = (&*storage, &mut *self.of.moments.lock())
        else {
            bail!("the optimizer's numbers are on another device than the value")
        };
        let at = [to.start_offset(), from.start_offset()];
        cpu::update(self.of, control, (value, gradient), (at, to.shape().elem_count()), moments)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        value: &mut candle::CudaStorage,
        to: &Layout,
        gradient: &candle::CudaStorage,
        from: &Layout,
    ) -> Result<()> {
        cuda::update(self.of, self.control, (value, to), (gradient, from))
    }
}
