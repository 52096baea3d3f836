//! The parts of an optimizer's step: the sums of squares of gradients, the numbers of the step, and the update of a tensor. All numbers
//! that change from step to step lie on the device, in the control block of [`rule`], so that a captured step is right at every replay.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(super) mod launch;
pub(crate) mod rule;

use candle::{bail, CpuStorage, InplaceOp1, InplaceOp2, Layout, Result, Storage, Tensor};

use self::rule::Rule;
pub(crate) use self::rule::{sums_of, Update, Updated};
use crate::cpu::record::apply_in_place;
use crate::trace::scope;

/// Writes the sums of squares of contiguous gradients to `sums`, numbers of f64, of which each gradient has [`sums_of`] its elements:
/// together they are the whole sum.
///
/// # Errors
/// Tensors on several devices, and no floats.
pub(crate) fn square_sums(sums: &Tensor, gradients: &[Tensor]) -> Result<()> {
    let _scope = scope::scope("square_sums");
    sums.inplace_op1(&SquareSums { gradients })
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

/// Updates values by their gradients, which are contiguous.
///
/// # Errors
/// Tensors that differ in dtype, shape or device, a value that is not contiguous, and a failed launch.
pub(crate) fn update(rule: Rule, all: &[Updated], control: &Tensor) -> Result<()> {
    let _scope = scope::scope("update");
    for Updated { value, gradient, .. } in all {
        let is_alike = value.shape() == gradient.shape() && value.dtype() == gradient.dtype();
        if !is_alike || !value.is_contiguous() || !gradient.device().same_device(control.device()) {
            bail!(
                "a gradient has its value's shape, dtype and device, which is contiguous, not {:?} {:?} for {:?} {:?}",
                gradient.shape(),
                gradient.dtype(),
                value.layout(),
                value.dtype()
            )
        }
    }
    #[cfg(feature = "cuda")]
    if control.device().is_cuda() {
        return cuda::update(rule, all, control);
    }
    all.iter().try_for_each(|of| of.value.inplace_op2(of.gradient, &OnCpu { rule, by: of.by, control }))
}

struct SquareSums<'a> {
    gradients: &'a [Tensor],
}

impl InplaceOp1 for SquareSums<'_> {
    fn name(&self) -> &'static str {
        "square_sums"
    }

    fn cpu_fwd(&self, sums: &mut CpuStorage, to: &Layout) -> Result<()> {
        let CpuStorage::F64(sums) = sums else { bail!("sums are of f64") };
        let mut from = to.start_offset();
        for gradient in self.gradients {
            let (storage, at) = gradient.storage_and_layout();
            let Storage::Cpu(storage) = &*storage else { bail!("a gradient is on another device") };
            let (numel, count) = (at.shape().elem_count(), sums_of(at.shape().elem_count()));
            let places = &mut sums[from..from + count];
            places.fill(0.);
            if let [first, ..] = places {
                *first = cpu::square_sum(storage, at.start_offset(), numel)?;
            }
            from += count;
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, sums: &mut candle::CudaStorage, to: &Layout) -> Result<()> {
        cuda::square_sums(sums, to, self.gradients)
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

struct OnCpu<'a> {
    rule: Rule,
    by: &'a Update,
    control: &'a Tensor,
}

impl InplaceOp2 for OnCpu<'_> {
    fn name(&self) -> &'static str {
        "update"
    }

    fn cpu_fwd(&self, value: &mut CpuStorage, to: &Layout, gradient: &CpuStorage, from: &Layout) -> Result<()> {
        let (storage, _) = self.control.storage_and_layout();
        let (Storage::Cpu(CpuStorage::F64(control)), Storage::Cpu(moments)) = (&*storage, &mut *self.by.moments.lock())
        else {
            bail!("the optimizer's numbers are on another device than the value")
        };
        let at = [to.start_offset(), from.start_offset()];
        cpu::update((self.rule, self.by), control, (value, gradient), (at, to.shape().elem_count()), moments)
    }
}
