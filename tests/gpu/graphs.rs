//! Modules on a GPU that must be captured: in-place writes, slices, convolutions, matmuls, long chains, wide graphs.
//! Tests skip without a GPU or the feature `cuda`, and say so.

use crate::common::{answers_like, assert_branches_are_free, counts, gpu, one_on, replayed, waves};
use candle::{DType, Result, Tensor};
use opara_candle::{Mode, OparaExecutor};

#[test]
fn a_module_may_write_to_its_own_results() {
    let Some(device) = gpu() else { return };
    let function = |t: &[Tensor]| {
        let (x, ids, device) = (&t[0], &t[1], t[0].device());
        let padded = Tensor::zeros((6, 6), DType::F32, device)?;
        padded.slice_set(x, 0, 1)?;
        let early = padded.sum(1)?;
        padded.slice_set(&x.narrow(0, 2, 1)?, 0, 5)?;
        let set = Tensor::zeros((4, 8), DType::F32, device)?;
        set.scatter_set(ids, x, 1)?;
        let gathered = set.gather(ids, 1)?;
        set.scatter_add_set(ids, x, 1)?;
        let spread = set.scatter_add(ids, x, 1)?;
        set.narrow(1, 2, 3)?.one_set()?;
        let rows = padded.index_add(&Tensor::new(&[0u32, 5, 0, 2], device)?, x, 0)?;
        Ok(vec![padded.sqr()?, early, gathered, spread, rows, padded, set])
    };
    replayed(Mode::Graph, function, |i| {
        let ids = counts(i, (4, 6), DType::U32)?.clamp(0u32, 7u32)?;
        Ok(vec![waves(i, (4, 6))?.to_device(&device)?, ids.to_device(&device)?])
    });
}

#[test]
fn concatenation_and_splitting_of_many_parts() {
    let Some(device) = gpu() else { return };
    let function = |t: &[Tensor]| {
        let part = |i: usize| t[0].narrow(1, i % 5, 1 + i % 2)?.affine(i as f64, 1.);
        let mut parts = (0..40).map(part).collect::<Result<Vec<_>>>()?;
        // One part is strided when it is concatenated.
        parts.push(t[0].t()?.contiguous()?.t()?.narrow(1, 1, 4)?);
        let columns = Tensor::cat(&parts, 1)?;
        let rows = Tensor::cat(&[&columns, &columns, &columns], 0)?;
        Ok([columns.chunk(4, 1)?, rows.chunk(5, 0)?, vec![rows]].concat())
    };
    replayed(Mode::Graph, function, |i| one_on(i, &device));
}

#[test]
fn grouped_and_transposed_convolutions_and_pools() {
    let Some(device) = gpu() else { return };
    let weight =
        |i: usize, shape: Vec<usize>| counts(i, shape, DType::F32).and_then(|w| w.to_device(&device)).expect("weight");
    let (row, row_transposed) = (weight(1, vec![6, 2, 3]), weight(2, vec![4, 3, 3]));
    let (plane, depthwise, transposed) =
        (weight(3, vec![5, 4, 3, 3]), weight(4, vec![4, 1, 3, 3]), weight(5, vec![4, 3, 2, 2]));
    let function = move |t: &[Tensor]| {
        let x = t[0].reshape((2, 4, 6, 5))?;
        Ok(vec![
            t[0].conv1d(&row, 1, 2, 1, 2)?,
            t[0].conv_transpose1d(&row_transposed, 0, 0, 2, 1, 1)?,
            t[0].conv_transpose1d(&row_transposed, 1, 1, 2, 1, 1)?,
            x.conv2d(&plane, 1, 2, 1, 1)?,
            x.conv2d(&depthwise, 1, 1, 1, 4)?,
            x.conv_transpose2d(&transposed, 0, 1, 2, 1)?,
            x.max_pool2d(2)?,
            x.avg_pool2d((3, 2))?,
            x.upsample_nearest2d(9, 10)?,
        ])
    };
    replayed(Mode::Graph, function, |i| Ok(vec![counts(i, (2, 4, 30), DType::F32)?.to_device(&device)?]));
}

#[test]
fn convolutions_with_a_common_input_are_independent() {
    let Some(device) = gpu() else { return };
    let weight = |i: usize| waves(i, (16, 16, 3, 3)).and_then(|w| w.to_device(&device)).expect("a weight");
    let weights: Vec<Tensor> = (0..5).map(weight).collect();
    let function = move |t: &[Tensor]| {
        let stem = t[0].conv2d(&weights[4], 1, 1, 1, 1)?;
        let branch = |i: usize| {
            let _scope = opara_candle::scope(&format!("branch-{i}"));
            stem.conv2d(&weights[i], 1, 1, 1, 1)
        };
        let branches = (0..4).map(branch).collect::<Result<Vec<_>>>()?;
        Ok(vec![Tensor::cat(&branches, 1)?])
    };
    let inputs = |i| Ok(vec![waves(i, (1, 16, 32, 32))?.to_device(&device)?]);
    let fast = replayed(Mode::Graph, function, inputs);
    assert!(fast.report().counts().width >= 4 && fast.report().counts().streams >= 4, "{}", fast.report());
    assert_branches_are_free(&fast, inputs(0), 4);
}

/// cuDNN 9.19 computes such a convolution of bf16 on streams of its handle, which fork from the captured one (seen on an H100; other versions
/// may choose other kernels).
#[test]
fn convolutions_that_fork_streams_of_their_own() {
    let Some(device) = gpu() else { return };
    let numbers = |i: usize, shape: [usize; 4]| waves(i, shape.as_slice())?.to_dtype(DType::BF16)?.to_device(&device);
    let weight = numbers(7, [96, 32, 3, 3]).expect("a weight");
    let function = move |t: &[Tensor]| {
        let once = t[0].conv2d(&weight, 1, 2, 1, 1)?.relu()?;
        let again = t[0].neg()?.conv2d(&weight, 1, 2, 1, 1)?;
        Ok(vec![(once + again)?])
    };
    replayed(Mode::Graph, function, |i| Ok(vec![numbers(i, [1, 32, 56, 56])?]));
}

#[test]
fn matmuls_with_a_common_input_are_independent() {
    let Some(device) = gpu() else { return };
    for dtype in [DType::F16, DType::F32] {
        let weight = |i: usize, n: usize| waves(i, (64, n))?.to_dtype(dtype)?.to_device(&device);
        let weights: Vec<Tensor> = (0..4).map(|i| weight(i, 512)).collect::<Result<_>>().expect("weights");
        let stem = weight(9, 64).expect("a weight");
        let function = move |t: &[Tensor]| {
            let h = t[0].matmul(&stem)?;
            let branch = |i: usize| {
                let _scope = opara_candle::scope(&format!("branch-{i}"));
                h.matmul(&weights[i])
            };
            (0..4).map(branch).collect()
        };
        let inputs = |i: usize| Ok(vec![waves(i, (512, 64))?.to_dtype(dtype)?.to_device(&device)?]);
        let fast = replayed(Mode::Graph, function, inputs);
        assert!(fast.report().counts().width >= 4 && fast.report().counts().streams >= 4, "{}", fast.report());
        assert_branches_are_free(&fast, inputs(0), 4);
    }
}

#[test]
fn chained_matmuls() {
    let Some(device) = gpu() else { return };
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let weight =
            |i: usize, shape: (usize, usize)| waves(i, shape)?.affine(0.1, 0.)?.to_dtype(dtype)?.to_device(&device);
        let weights = [weight(1, (32, 48)), weight(2, (48, 40)), weight(3, (40, 32))].map(|w| w.expect("a weight"));
        let function = move |t: &[Tensor]| {
            let x = &t[0];
            let flat = x.reshape((8 * 24, 32))?;
            let chain = flat.matmul(&weights[0])?.matmul(&weights[1])?.matmul(&weights[2])?;
            let scores = x.matmul(&x.transpose(1, 2)?.contiguous()?)?;
            let mixed = scores.matmul(x)?.broadcast_matmul(&weights[0])?;
            Ok(vec![chain, mixed, scores, x.narrow(0, 3, 1)?.squeeze(0)?.matmul(&weights[0])?])
        };
        let inputs = |i: usize| Ok(vec![waves(i, (8, 24, 32))?.to_dtype(dtype)?.to_device(&device)?]);
        replayed(Mode::Graph, function, inputs);
    }
}

#[test]
fn a_chain_of_five_thousand_kernels() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let chain = |t: &[Tensor]| {
        let step = |x: Tensor, i: usize| x.affine(if i.is_multiple_of(2) { 0.5 } else { 2. }, 0.25);
        Ok(vec![(0..5_000).try_fold(t[0].clone(), step)?])
    };
    let fast = OparaExecutor::builder().fuse(false).build_fn(chain, &one_on(0, &device)?)?;
    let report = fast.report();
    assert_eq!(
        (report.mode(), report.counts().depth, report.counts().streams, report.counts().waits),
        (Mode::Graph, 5_000, 1, 0),
        "{report}"
    );
    answers_like(&fast, chain, |i| one_on(i, &device));
    Ok(())
}

#[test]
fn two_thousand_parallel_kernels() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let parallel = |t: &[Tensor]| {
        let parts = (0..2_000).map(|i| t[0].affine(i as f64, 1.)).collect::<Result<Vec<_>>>()?;
        Ok(vec![Tensor::cat(&parts, 0)?])
    };
    let fast = OparaExecutor::builder().build_fn(parallel, &one_on(0, &device)?)?;
    let report = fast.report();
    assert_eq!((report.mode(), report.counts().width, report.counts().depth), (Mode::Graph, 2_000, 2), "{report}");
    answers_like(&fast, parallel, |i| one_on(i, &device));
    Ok(())
}
