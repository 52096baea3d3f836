//! The launches.

use std::array::from_fn;

use candle::cuda_backend::CudaDType;
use candle::{bail, DType, Result, Tensor, WithDType};
use cudarc::driver::DeviceRepr;

use super::average::Average;
use super::launch;
use crate::cuda::driver::kernels::{ptx, written};
use crate::cuda::operator::tables::{blocks_of, of_blocks, table, views, Blocks, TENSORS};
use crate::cuda::operator::tensor_of;

/// Each tensor, `(outer, rows, columns, inner)`, with channels as the last dimension if they `are_last`, else as the second. `None` in the
/// places of those for which there is no kernel.
pub(super) fn turned(all: &[Tensor], are_last: bool) -> Result<Vec<Option<Tensor>>> {
    let mut made = vec![None; all.len()];
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let is_of =
            |of: &Tensor| of.dtype() == dtype && of.device().is_cuda() && of.is_contiguous() && of.elem_count() > 0;
        let some: Vec<usize> = (0..all.len()).filter(|&at| is_of(&all[at])).collect();
        for some in some.chunks(TENSORS) {
            let of: Vec<&Tensor> = some.iter().map(|&at| &all[at]).collect();
            let turned = for_kernel_float!(dtype, turned_some(&of, are_last)).transpose()?.unwrap_or_default();
            some.iter().zip(turned).for_each(|(&at, turned)| made[at] = Some(turned));
        }
    }
    Ok(made)
}

/// The matrices of a tensor.
fn matrices(of: &Tensor, are_last: bool) -> Result<[usize; 2]> {
    let (_, a, b, c) = of.dims4()?;
    Ok(if are_last { [a * b, c] } else { [a, b * c] })
}

fn turned_some<T: CudaDType + WithDType + DeviceRepr>(some: &[&Tensor], are_last: bool) -> Result<Vec<Tensor>> {
    let [first, ..] = some else { return Ok(Vec::new()) };
    let device = first.device().as_cuda_device()?;
    let Blocks { numels, ends, all } = Blocks::of(some.iter().copied(), blocks_of::<T>)?;
    let sizes = some.iter().map(|of| matrices(of, are_last)).collect::<Result<Vec<_>>>()?;
    let [rows, columns] = [0, 1].map(|axis| from_fn(|at| sizes.get(at).map_or(1, |sizes| sizes[axis])));
    let held: Vec<_> = some.iter().map(|of| of.storage_and_layout()).collect();
    let from = views::<T>(&held)?;
    let made = some.iter().map(|of| written::<T>(device, of.elem_count(), |_| Ok(())));
    let made = made.collect::<Result<Vec<_>>>()?;
    let to: Vec<_> = made.iter().map(|made| made.as_view()).collect();
    let of = launch::Turn { numels, ends, rows, columns, from: table(&from), to: table(&to) };
    of.launch(device, T::DTYPE.as_str(), ptx::TABLES, of_blocks(all))?;
    drop(to);
    let shaped = |(made, of): (_, &&Tensor)| {
        let (outer, a, b, c) = of.dims4()?;
        tensor_of(made, device, if are_last { (outer, c, a, b) } else { (outer, b, c, a) })
    };
    made.into_iter().zip(some).map(shaped).collect()
}

pub(super) fn average(all: &[Average]) -> Result<()> {
    for Average { of, new, .. } in all {
        let are_alike = of.dtype() == DType::F32 && new.dtype() == DType::F32 && of.device().same_device(new.device());
        if !are_alike || of.elem_count() != new.elem_count() || !of.is_contiguous() || !new.is_contiguous() {
            bail!("an average of {:?} by {:?}", of.shape(), new.shape())
        }
    }
    let some: Vec<&Average> = all.iter().filter(|average| average.of.elem_count() > 0).collect();
    for some in some.chunks(TENSORS) {
        let device = some[0].of.device().as_cuda_device()?;
        let Blocks { numels, ends, all } = Blocks::of(some.iter().map(|average| average.of), blocks_of::<f32>)?;
        let held: Vec<_> = some.iter().map(|average| average.new.storage_and_layout()).collect();
        let from = views::<f32>(&held)?;
        let held: Vec<_> = some.iter().map(|average| average.of.storage_and_layout()).collect();
        let to = views::<f32>(&held)?;
        let [kept, taken] = [0, 1].map(|part| from_fn(|at| some.get(at).map_or(0., |average| average.parts[part])));
        let of = launch::Average { numels, ends, kept, taken, from: table(&from), to: table(&to) };
        of.launch(device, "f32", ptx::TABLES, of_blocks(all))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use candle::Device;

    use super::super::{average, turned};
    use super::*;
    use crate::test_device::gpu;

    /// Needs a GPU; skips without one.
    #[test]
    fn many_tensors_are_turned_and_averaged() -> Result<()> {
        let Some(device) = gpu() else { return Ok(()) };
        let made = |at: usize| {
            let shape = (1 + at % 5, 1 + at * 7 % 50, 1 + at % 3, 1 + at % 4);
            let count = shape.0 * shape.1 * shape.2 * shape.3;
            let dtype = [DType::F32, DType::BF16, DType::F16][at % 3];
            Tensor::arange(0f32, count as f32, &device)?.reshape(shape)?.to_dtype(dtype)
        };
        let all = (0..150).map(made).collect::<Result<Vec<_>>>()?;
        let values = |t: &Tensor| t.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
        let last = turned(&all, false)?;
        for (last, of) in last.iter().zip(&all) {
            assert!(last.permute((0, 2, 3, 1))?.is_contiguous() && last.dims() == of.dims());
            assert_eq!(values(last)?, values(of)?);
        }
        for (back, of) in turned(&last, true)?.iter().zip(&all) {
            assert!(back.is_contiguous());
            assert_eq!(values(back)?, values(of)?);
        }
        let of = (1..100).map(|len| Tensor::arange(0f32, len as f32, &device)).collect::<Result<Vec<_>>>()?;
        let averages = of.iter().map(|new| new.ones_like()).collect::<Result<Vec<_>>>()?;
        let both = averages.iter().zip(&of);
        average(&both.map(|(of, new)| Average { of, new, parts: [0.75, 0.25] }).collect::<Vec<_>>())?;
        for (average, new) in averages.iter().zip(&of) {
            let expected = new.to_device(&Device::Cpu)?.affine(0.25, 0.75)?.to_vec1::<f32>()?;
            assert_eq!(average.to_vec1::<f32>()?, expected);
        }
        Ok(())
    }
}
