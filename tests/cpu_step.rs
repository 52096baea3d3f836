//! Steps that carry a state on, on the CPU.

use std::sync::Arc;

use candle::{DType, Device, Result, Tensor};
use opara_candle::trace::Role;
use opara_candle::{ops, Builder, Carry, Error, Mode, OnUncapturable, OparaExecutor, Snapshot, StepExecutor};

const CPU: &Device = &Device::Cpu;

fn strict() -> Builder {
    OparaExecutor::builder().on_uncapturable(OnUncapturable::Error)
}

/// A cache of rows, where the next one goes, and a sum of what was read.
#[derive(Debug)]
struct Writing {
    position: Tensor,
    cache: Tensor,
    sum: Tensor,
}

const ROWS: usize = 120;
const WIDTH: usize = 3;

impl Writing {
    fn new() -> Result<Self> {
        Ok(Self {
            position: Tensor::zeros(1, DType::U32, CPU)?,
            cache: Tensor::zeros((ROWS, WIDTH), DType::F32, CPU)?,
            sum: Tensor::zeros(WIDTH, DType::F32, CPU)?,
        })
    }

    fn position(&self) -> Result<u32> {
        Ok(self.position.to_vec1::<u32>()?[0])
    }
}

impl Carry for Writing {
    fn tensors(&self) -> Vec<Tensor> {
        vec![self.position.clone(), self.cache.clone(), self.sum.clone()]
    }

    fn with(&self, tensors: Vec<Tensor>) -> Self {
        let [position, cache, sum] = <[Tensor; 3]>::try_from(tensors).expect("three tensors");
        Self { position, cache, sum }
    }
}

/// Writes the input as the next row, reads all rows, adds them to the sum.
fn step(x: &[Tensor], s: &Writing) -> Result<Vec<Tensor>> {
    ops::write_rows(&s.cache, &x[0], &s.position)?;
    let read = ops::squeeze(&ops::sum_keepdim(&ops::affine(&s.cache, 0.5, 0.25)?, 0)?, 0)?;
    ops::assign(&s.sum, &ops::add(&s.sum, &read)?)?;
    ops::advance(&s.position, 1)?;
    Ok(vec![s.sum.clone(), s.position.clone(), read])
}

fn input(i: usize) -> Result<[Tensor; 1]> {
    Ok([Tensor::new(&[[i as f32, 0.5 - i as f32, 0.1 * i as f32]], CPU)?])
}

fn built(state: &Writing) -> opara_candle::Result<StepExecutor<Writing>> {
    strict().build_step(step, &input(1)?, state)
}

#[track_caller]
fn assert_same(got: &[Tensor], expected: &[Tensor]) {
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(expected) {
        let values = |t: &Tensor| t.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
        assert_eq!(values(got).unwrap(), values(expected).unwrap());
    }
}

#[test]
fn a_hundred_steps_are_those_of_eager_execution() -> opara_candle::Result<()> {
    let (mut state, eager) = (Writing::new()?, Writing::new()?);
    let step_by_executor = built(&state)?;
    let report = step_by_executor.report();
    assert_eq!((report.mode, report.verified, &report.reason), (Mode::Lanes, true, &None), "{report}");
    assert_same(&state.tensors(), &Writing::new()?.tensors());
    for i in 0..100 {
        let outputs = step_by_executor.step(&input(i)?, &mut state)?;
        assert_same(&outputs, &step(&input(i)?, &eager)?);
        assert_same(&state.tensors(), &eager.tensors());
    }
    assert_eq!(state.position()?, 100);
    Ok(())
}
