//! Batches that are made and uploaded ahead.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use candle::{bail, DType, Device, Tensor};
use opara_candle::Loader;

/// Rows as floats, and their squares as integers.
fn squares(rows: &[usize]) -> candle::Result<Vec<Tensor>> {
    let numbers: Vec<f32> = rows.iter().map(|&row| row as f32).collect();
    let x = Tensor::new(numbers, &Device::Cpu)?;
    Ok(vec![x.reshape(((), 1))?, x.sqr()?.to_dtype(DType::U32)?])
}

fn rows_of(batch: &[Tensor]) -> candle::Result<Vec<u32>> {
    let rows: Vec<u32> = batch[0].flatten_all()?.to_vec1::<f32>()?.into_iter().map(|row| row as u32).collect();
    assert_eq!(batch[1].to_vec1::<u32>()?, rows.iter().map(|row| row * row).collect::<Vec<_>>());
    Ok(rows)
}

/// Every epoch has other rows in another order, each once; a position has the same batch whenever it comes; and batches that are kept stay.
pub fn assert_batches_follow_their_order(device: &Device) -> anyhow::Result<()> {
    const EPOCHS: usize = 5;
    let mut loader = Loader::new(70, 16, device, squares).shuffle(3);
    let kept = loader.by_ref().take(4 * EPOCHS).collect::<candle::Result<Vec<_>>>()?;
    assert_eq!(loader.position(), 4 * EPOCHS as u64);
    let batches = kept.iter().map(|batch| rows_of(batch)).collect::<candle::Result<Vec<_>>>()?;
    for epoch in batches.chunks(4) {
        let rows: BTreeSet<u32> = epoch.iter().flatten().copied().collect();
        assert_eq!((rows.len(), rows.last() < Some(&70)), (64, true), "rows of an epoch, each once");
    }
    assert_ne!(batches[0], batches[4], "epochs differ");
    for position in [9, 0, 18] {
        loader.seek(position);
        assert_eq!(rows_of(&loader.next().expect("no end")?)?, batches[position as usize], "position {position}");
    }
    let mut in_order = Loader::new(5, 2, device, squares);
    let firsts = in_order.by_ref().take(3).map(|batch| rows_of(&batch?)).collect::<candle::Result<Vec<_>>>()?;
    assert_eq!(firsts, [[0, 1], [2, 3], [0, 1]]);
    Ok(())
}

/// Errors and panics of the function arrive at their batch, and the next call goes on from there.
pub fn assert_faults_arrive(device: &Device) -> anyhow::Result<()> {
    let calls = Arc::new(AtomicUsize::new(0));
    let faulty = move |rows: &[usize]| match calls.fetch_add(1, Ordering::Relaxed) {
        1 => bail!("no such file"),
        2 => panic!("a bug"),
        _ => squares(rows),
    };
    let mut loader = Loader::new(8, 2, device, faulty);
    assert_eq!(rows_of(&loader.next().expect("no end")?)?, [0, 1]);
    for reason in ["no such file", "the function that makes batches panicked"] {
        let error = loader.next().expect("no end").err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(reason), "{error}");
        assert_eq!(loader.position(), 1);
    }
    assert_eq!(rows_of(&loader.next().expect("no end")?)?, [2, 3]);
    let none = Loader::new(3, 4, device, squares).next().expect("no end");
    assert!(none.is_err_and(|error| error.to_string().contains("3 rows fill no batch of 4")));
    Ok(())
}
