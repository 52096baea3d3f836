//! Layers of experts.

use candle::{DType, Result, Tensor, D};
use opara_candle::ops::{self, Activation};
use opara_candle::Mode;

use super::{assert_near, both};
use crate::common::{gpu, replayed, same_bits, waves, CPU};

/// Experts, of a row, rows, hidden, inner.
const LAYERS: [[usize; 5]; 6] = [
    [8, 2, 1, 64, 96],
    [8, 2, 40, 64, 96],
    [128, 8, 1, 512, 192],
    [16, 4, 23, 1032, 200],
    [60, 4, 7, 128, 8],
    [3, 3, 300, 64, 64],
];

fn ids(rows: usize, chosen: usize, experts: usize) -> Result<Tensor> {
    let id = |i: usize| ((i / chosen * 7 + i % chosen * (experts / chosen)) % experts) as u32;
    Tensor::from_iter((0..rows * chosen).map(id), CPU)?.reshape((rows, chosen))
}

#[test]
fn layers_of_experts_agree_with_f64() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let numbers = opara_weights::seeded(7, DType::F32, CPU);
    for [experts, chosen, rows, hidden, inner] in LAYERS {
        for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 1e-5), (DType::F16, 4e-3), (DType::BF16, 3e-2)] {
            if dtype == DType::F64 && experts * hidden * inner > 1 << 22 {
                continue;
            }
            let of = format!("{rows} rows of {hidden}, {chosen} of {experts} experts of {inner}, in {dtype:?}");
            // Rows of the weights have a variance of one over their length.
            let drawn = |name, shape: &[usize]| {
                let (all, length) = (shape.iter().product::<usize>(), shape[shape.len() - 1]);
                numbers.get((all / length, length), name)?.reshape(shape)
            };
            let (x, x_gpu) = both(&(drawn("x", &[rows, hidden])? * (hidden as f64).sqrt())?, dtype, &device)?;
            let (gate_up, gate_up_gpu) = both(&drawn("gate_up", &[experts, 2 * inner, hidden])?, dtype, &device)?;
            let (down, down_gpu) = both(&drawn("down", &[experts, hidden, inner])?, dtype, &device)?;
            let (weights, weights_gpu) = both(&drawn("weights", &[rows, chosen])?, dtype, &device)?;
            let ids = ids(rows, chosen, experts)?;
            let ids_gpu = ids.to_device(&device)?;
            let expected = ops::moe(&x, (&weights, &ids), &gate_up, &down, Activation::Silu)?;
            let run = |rows: std::ops::Range<usize>| {
                let part = |t: &Tensor| t.narrow(0, rows.start, rows.len());
                let routing = (&part(&weights_gpu)?, &part(&ids_gpu)?);
                ops::moe(&part(&x_gpu)?, routing, &gate_up_gpu, &down_gpu, Activation::Silu)
            };
            let got = run(0..rows)?;
            assert_near(&got, &expected, tolerance, &of);
            // A row alone, whose experts have no other rows, has other tiles.
            if dtype != DType::F64 {
                assert!(same_bits(&run(rows - 1..rows)?, &got.narrow(0, rows - 1, 1)?)?, "{of}: a row alone");
                assert!(same_bits(&run(0..rows)?, &got)?, "{of}: again");
            }
        }
    }
    Ok(())
}

#[test]
fn an_expert_that_there_is_not_gives_nan_in_its_row_alone() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let on = |t: Tensor| t.to_device(&device);
    let (x, weights) = (on(waves(0, (3, 64))?.to_dtype(DType::F32)?)?, Tensor::ones((3, 2), DType::F32, &device)?);
    let gate_up = on(waves(1, (4, 32, 64))?.to_dtype(DType::F32)?)?;
    let down = on(waves(2, (4, 64, 16))?.to_dtype(DType::F32)?)?;
    let ids = Tensor::new(&[[0u32, 1], [2, 4], [u32::MAX, 3]], &device)?;
    let y = ops::moe(&x, (&weights, &ids), &gate_up, &down, Activation::Silu)?.to_vec2::<f32>()?;
    assert!(y[0].iter().all(|y| y.is_finite()));
    assert!(y[1..].iter().flatten().all(|y| y.is_nan()));
    Ok(())
}

#[test]
fn one_graph_serves_every_routing() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let on = |t: Result<Tensor>| t?.to_dtype(DType::F32)?.to_device(&device);
    let (router, gate_up, down) = (on(waves(4, (16, 64)))?, on(waves(1, (16, 64, 64)))?, on(waves(2, (16, 64, 32)))?);
    let layer = move |x: &[Tensor]| {
        let (weights, ids) = ops::top_k(&ops::softmax_last_dim(&ops::linear(&x[0], &router, None)?)?, 3)?;
        let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?;
        let y = ops::moe(&x[0], (&weights, &ids), &gate_up, &down, Activation::Silu)?;
        Ok(vec![y, ids.to_dtype(DType::F32)?])
    };
    let inputs = |i: usize| Ok(vec![waves(i, (5, 64))?.to_dtype(DType::F32)?.to_device(&device)?]);
    let ids = |i: usize| layer(&inputs(i)?)?[1].to_vec2::<f32>();
    assert_ne!(ids(0)?, ids(1)?, "both inputs have the same experts");
    replayed(Mode::Graph, layer.clone(), inputs);
    Ok(())
}
