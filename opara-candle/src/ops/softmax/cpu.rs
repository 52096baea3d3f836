//! Softmax of rows on the CPU.

use candle::{bail, CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Tensor};
use pulp::{Arch, Simd, WithSimd};

use super::bias::RowStarts;
use crate::cpu::kernels::{each, elements, softmax_in_place, Element, Sum, WORTH_A_THREAD};
use crate::gradient::{applied, applied2};

/// Elements per parallel task: 12 microseconds of one core, which is the most that a core waits for others at the end.
const TASK: usize = 4096;

/// The cost of one element, in operations of [`WORTH_A_THREAD`].
const ELEMENT: usize = 110;

/// Softmax of `x + bias`. `None` if the kernel does not support the operands: the caller then runs candle's operators,
/// which also report errors.
pub(super) fn softmax(x: &Tensor, bias: Option<&(Tensor, RowStarts)>) -> Result<Option<Tensor>> {
    if x.elem_count() == 0 || bias.is_some_and(|(bias, _)| bias.dtype() != x.dtype()) {
        return Ok(None);
    }
    let x = x.contiguous()?;
    match bias {
        None => applied(&x, &Softmax { starts: None }).map(Some),
        Some((bias, starts)) => applied2(&x, bias, &Softmax { starts: Some(*starts) }).map(Some),
    }
}

/// The custom operator on contiguous rows.
struct Softmax {
    /// Offsets of the bias's rows, if there is a bias.
    starts: Option<RowStarts>,
}

impl Softmax {
    fn run(&self, x: (&CpuStorage, &Layout), bias: Option<(&CpuStorage, &Layout)>) -> Result<(CpuStorage, Shape)> {
        let shape = x.1.shape();
        let Some(&columns) = shape.dims().last() else { bail!("softmax needs at least one dimension") };
        macro_rules! run {
            ($t:ty) => {{
                let bias = match bias.zip(self.starts) {
                    None => None,
                    Some(((bias, layout), starts)) => {
                        let slice = <$t as candle::WithDType>::cpu_storage_as_slice(bias)?;
                        Some((&slice[layout.start_offset()..], starts))
                    }
                };
                let y = rows::<$t>(columns, elements(x.0, x.1)?, bias);
                <$t as candle::WithDType>::to_cpu_storage_owned(y)
            }};
        }
        let y = of_floats!(x.0, run, "softmax");
        Ok((y, shape.clone()))
    }
}

impl CustomOp1 for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        self.run((x, layout), None)
    }
}

impl CustomOp2 for Softmax {
    fn name(&self) -> &'static str {
        "add_softmax"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout, bias: &CpuStorage, bl: &Layout) -> Result<(CpuStorage, Shape)> {
        self.run((x, xl), Some((bias, bl)))
    }
}

/// Softmax of each row of `columns` elements, with a row of the bias added first.
fn rows<T: Element>(columns: usize, x: &[T], bias: Option<(&[T], RowStarts)>) -> Vec<T> {
    let mut y = vec![T::zero(); x.len()];
    let per_task = TASK.div_ceil(columns);
    let tasks = x.chunks(per_task * columns).zip(y.chunks_mut(per_task * columns)).enumerate().collect();
    each(is_worth_threads(x.len()), tasks, |(task, (x, y))| {
        T::Sum::scratch(2 * columns, |scratch| {
            let (values, second) = scratch.split_at_mut(columns);
            for (i, (x, y)) in x.chunks_exact(columns).zip(y.chunks_exact_mut(columns)).enumerate() {
                let x = match (T::as_sums(x), &bias) {
                    (Some(x), None) => x,
                    (_, None) => {
                        T::widen(x, values);
                        &*values
                    }
                    (_, Some((bias, starts))) => {
                        T::widen(x, values);
                        T::widen(&bias[starts.of_row(task * per_task + i)..][..columns], second);
                        values.iter_mut().zip(&*second).for_each(|(x, &bias)| *x += bias);
                        &*values
                    }
                };
                match T::as_sums_mut(y) {
                    Some(y) => softmax_of(x, y),
                    None => {
                        softmax_of(x, second);
                        T::narrow(second, y);
                    }
                }
            }
        });
    });
    y
}

fn is_worth_threads(elements: usize) -> bool {
    elements * ELEMENT > WORTH_A_THREAD
}

/// Writes the softmax of a row to `y`.
fn softmax_of<A: Sum>(x: &[A], y: &mut [A]) {
    struct Row<'a, A>(&'a [A], &'a mut [A]);

    impl<A: Sum> WithSimd for Row<'_, A> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            self.1.copy_from_slice(self.0);
            softmax_in_place(self.1);
        }
    }
    Arch::new().dispatch(Row(x, y));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_scores_of_short_texts_use_threads() {
        // BERT-base with 12 heads, and the smallest BERT with 2 heads.
        assert!(is_worth_threads(12 * 128 * 128) && is_worth_threads(12 * 64 * 64));
        assert!(!is_worth_threads(2 * 64 * 64));
    }
}
