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
pub(crate) use self::rule::{sums_of, Blend, Update, Updated};
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
    check_pairs(&all.iter().map(|of| (of.value, of.gradient)).collect::<Vec<_>>(), control)?;
    #[cfg(feature = "cuda")]
    if control.device().is_cuda() {
        return cuda::update(rule, all, control);
    }
    all.iter().try_for_each(|of| of.value.inplace_op2(of.gradient, &OnCpu { rule, by: of.by, control }))
}

/// Blends contiguous tensors into others: pairs of the one that is changed, and the other.
///
/// # Errors
/// Tensors that differ in dtype, shape or device, and a failed launch.
pub(crate) fn blend(of: Blend, pairs: &[(&Tensor, &Tensor)], control: &Tensor) -> Result<()> {
    let _scope = scope::scope("blend");
    check_pairs(pairs, control)?;
    #[cfg(feature = "cuda")]
    if control.device().is_cuda() {
        return cuda::blend(of, pairs, control);
    }
    pairs.iter().try_for_each(|(to, from)| to.inplace_op2(from, &BlendOnCpu { of, control }))
}

/// Rounds values of f32 to contiguous copies of 16 bits: pairs of copy and value.
///
/// # Errors
/// Values of another dtype, tensors that differ in shape or device, and a failed launch.
pub(crate) fn round(pairs: &[(&Tensor, &Tensor)]) -> Result<()> {
    let _scope = scope::scope("round");
    #[cfg(feature = "cuda")]
    if pairs.iter().any(|(copy, _)| copy.device().is_cuda()) {
        return cuda::round(pairs);
    }
    pairs.iter().try_for_each(|(copy, value)| super::assign(copy, &value.detach().to_dtype(copy.dtype())?))
}

/// # Errors
/// Tensors that differ, or are not contiguous.
fn check_pairs(pairs: &[(&Tensor, &Tensor)], control: &Tensor) -> Result<()> {
    for (to, from) in pairs {
        let is_alike = to.shape() == from.shape() && to.dtype() == from.dtype();
        if !is_alike || !to.is_contiguous() || !from.is_contiguous() || !from.device().same_device(control.device()) {
            bail!(
                "a gradient has its value's shape, dtype and device, which is contiguous, not {:?} {:?} for {:?} {:?}",
                from.shape(),
                from.dtype(),
                to.layout(),
                to.dtype()
            )
        }
    }
    Ok(())
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

struct BlendOnCpu<'a> {
    of: Blend,
    control: &'a Tensor,
}

impl InplaceOp2 for BlendOnCpu<'_> {
    fn name(&self) -> &'static str {
        "blend"
    }

    fn cpu_fwd(&self, to: &mut CpuStorage, at: &Layout, from: &CpuStorage, of: &Layout) -> Result<()> {
        let (storage, _) = self.control.storage_and_layout();
        let Storage::Cpu(CpuStorage::F64(control)) = &*storage else { bail!("a control block is of f64") };
        let begins = [at.start_offset(), of.start_offset()];
        cpu::blend(self.of, control, (to, from), (begins, at.shape().elem_count()))
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
