//! Ids that start at 1: building an executor must not pass the module an integer outside the range of its example.
//! Tests skip without a GPU or the feature `cuda`, and say so.

use anyhow::ensure;
use candle::{DType, Device, Result, Tensor};
use opara_candle::OparaExecutor;

use crate::common::{assert_same, gpu, isolated, waves};

/// Rows of the table.
const ROWS: usize = 10;

/// An embedding with ids from 1 to 10. Any other id fails in the kernel, after which the process cannot use the GPU.
fn from_one(device: &Device) -> Result<impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Clone + Send + Sync + 'static> {
    let table = waves(1, (ROWS, 6))?.to_device(device)?;
    Ok(move |t: &[Tensor]| {
        let zero_based = (&t[0] - t[0].ones_like()?)?;
        Ok(vec![table.index_select(&zero_based, 0)?.sqr()?])
    })
}

fn ids(ids: &[u32], dtype: DType, device: &Device) -> Result<Vec<Tensor>> {
    Ok(vec![Tensor::new(ids, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)?])
}

fn assert_ids_stay_in_range(example: &[u32]) -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in [DType::U32, DType::I64, DType::U8] {
        for verify in [true, false] {
            let module = from_one(&device)?;
            let of = format!("{dtype:?}, {example:?}, verify {verify}");
            let fast = OparaExecutor::builder()
                .verify(verify)
                .build_fn(module.clone(), &ids(example, dtype, &device)?)
                .map_err(|error| anyhow::anyhow!("{of}: {error}"))?;
            for other in [example, &[1, 5, 10], &[10, 1, 10], &[2, 3, 4]] {
                let inputs = ids(other, dtype, &device)?;
                assert_same(&fast.call(&inputs)?, &module(&inputs)?, format_args!("{of}, then {other:?}"));
            }
            // Ids of another shape.
            let inputs = ids(&[10, 1, 7, 3], dtype, &device)?;
            assert_same(&fast.call(&inputs)?, &module(&inputs)?, format_args!("{of}, then four"));
        }
    }
    // The process can still use its GPU.
    let ones = Tensor::ones(4, DType::F32, &device)?;
    ensure!((&ones + &ones)?.to_vec1::<f32>()? == [2.; 4]);
    Ok(())
}

#[test]
fn an_example_with_only_the_smallest_id() -> anyhow::Result<()> {
    isolated(|| {
        assert_ids_stay_in_range(&[1])?;
        assert_ids_stay_in_range(&[1, 1, 1])
    })
}

#[test]
fn an_example_with_only_the_largest_id() -> anyhow::Result<()> {
    isolated(|| assert_ids_stay_in_range(&[10, 10, 10]))
}

#[test]
fn an_example_with_different_ids() -> anyhow::Result<()> {
    isolated(|| assert_ids_stay_in_range(&[1, 10, 4]))
}
