//! Layer norm of sums on the CPU, in f32.

use candle::{DType, Result, Storage, Tensor, WithDType};
use pulp::{Arch, Simd, WithSimd};

use crate::cpu::kernels::{each, joined, sum_of_squares, WORTH_A_THREAD};
use crate::gradient::made_on_cpu;

/// The cost of one element, in operations of [`WORTH_A_THREAD`].
const ELEMENT: usize = 100;

/// Elements per parallel task.
const TASK: usize = 8_192;

/// Layer norm of `x + bias + residual`. `None` if the kernel does not support the operands: the caller then runs candle's
/// operators, which also report errors.
pub(super) fn layer_norm(
    x: &Tensor,
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
    scale: &Tensor,
    shift: &Tensor,
    eps: f32,
) -> Result<Option<Tensor>> {
    let Some(&columns) = x.dims().last() else { return Ok(None) };
    let vectors = [bias, Some(scale), Some(shift)].into_iter().flatten();
    let agree = vectors.clone().all(|t| t.dims() == [columns]) && residual.is_none_or(|t| t.dims() == x.dims());
    let of_f32 = vectors.chain(residual).chain([x]).all(|t| t.dtype() == DType::F32);
    if !(agree && of_f32) || x.elem_count() == 0 {
        return Ok(None);
    }
    let together = |x: Option<&Tensor>| x.map(Tensor::contiguous).transpose();
    let (x, residual, bias) = (x.contiguous()?, together(residual)?, together(bias)?);
    let (scale, shift) = (scale.contiguous()?, shift.contiguous()?);
    let held = [Some(&x), residual.as_ref(), bias.as_ref(), Some(&scale), Some(&shift)];
    let held = held.map(|t| t.map(Tensor::storage_and_layout));
    let mut slices = [None; 5];
    for (slice, held) in slices.iter_mut().zip(&held) {
        let Some((storage, layout)) = held else { continue };
        let Storage::Cpu(storage) = &**storage else { return Ok(None) };
        *slice = Some(&f32::cpu_storage_as_slice(storage)?[layout.start_offset()..][..layout.shape().elem_count()]);
    }
    let [Some(x_elements), residual, bias, Some(scale), Some(shift)] = slices else { return Ok(None) };
    let mut y = x_elements.to_vec();
    let per_task = TASK.div_ceil(columns) * columns;
    let tasks = y.chunks_mut(per_task).enumerate().collect();
    each(x_elements.len() * ELEMENT > WORTH_A_THREAD, tasks, |(task, y)| {
        let residual = residual.map(|residual| &residual[task * per_task..][..y.len()]);
        Arch::new().dispatch(Rows { residual, bias, scale, shift, eps, y });
    });
    made_on_cpu(y, x.shape()).map(Some)
}

/// Some rows.
struct Rows<'a> {
    residual: Option<&'a [f32]>,
    bias: Option<&'a [f32]>,
    scale: &'a [f32],
    shift: &'a [f32],
    eps: f32,
    y: &'a mut [f32],
}

impl WithSimd for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { residual, bias, scale, shift, eps, y } = self;
        let columns = scale.len();
        for (i, y) in y.chunks_exact_mut(columns).enumerate() {
            if let Some(bias) = bias {
                y.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
            }
            if let Some(residual) = residual {
                y.iter_mut().zip(&residual[i * columns..][..columns]).for_each(|(y, residual)| *y += residual);
            }
            let mean = joined(y, 0., |a, b| a + b) / columns as f32;
            y.iter_mut().for_each(|y| *y -= mean);
            let variance = sum_of_squares(y) / columns as f32;
            let inverse = (variance + eps).sqrt().recip();
            for ((y, scale), shift) in y.iter_mut().zip(scale).zip(shift) {
                *y = *y * inverse * scale + shift;
            }
        }
    }
}
