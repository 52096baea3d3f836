//! The index of the largest element of each row, on the CPU.

use candle::{bail, CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use crate::cpu::kernels::elements;

pub(super) fn argmax(x: &Tensor) -> Result<Tensor> {
    x.contiguous()?.apply_op1_no_bwd(&Argmax)
}

struct Argmax;

impl CustomOp1 for Argmax {
    fn name(&self) -> &'static str {
        "argmax"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let Some((&columns, outer)) = layout.dims().split_last() else { bail!("an argmax of a single number") };
        macro_rules! run {
            ($t:ty) => {
                elements::<$t>(x, layout)?.chunks_exact(columns).map(first_largest).collect()
            };
        }
        let largest: Vec<u32> = of_floats!(x, run, "argmax");
        Ok((CpuStorage::U32(largest), outer.into()))
    }
}

/// The index of the largest element, the first of equals. A NaN counts as larger than any number.
pub(crate) fn first_largest<T: PartialOrd + Copy>(row: &[T]) -> u32 {
    let mut best = 0;
    for (i, x) in row.iter().enumerate() {
        #[allow(clippy::eq_op, reason = "NaN alone differs from itself")]
        let is_nan = |x: &T| x != x;
        if !is_nan(&row[best]) && (is_nan(x) || *x > row[best]) {
            best = i;
        }
    }
    best as u32
}
