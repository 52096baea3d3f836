//! A step with a cache, for tests of the CPU and of GPUs.

use candle::{DType, Device, Result, Tensor};
use opara_candle::{ops, StepState};

/// A cache of rows, the position of the next row, and a sum of all rows that were read.
#[derive(Debug)]
pub struct Writing {
    position: Tensor,
    cache: Tensor,
    sum: Tensor,
}

const ROWS: usize = 120;
const WIDTH: usize = 3;

impl Writing {
    pub fn new(device: &Device) -> Result<Self> {
        Ok(Self {
            position: Tensor::zeros(1, DType::U32, device)?,
            cache: Tensor::zeros((ROWS, WIDTH), DType::F32, device)?,
            sum: Tensor::zeros(WIDTH, DType::F32, device)?,
        })
    }

    pub fn position(&self) -> Result<u32> {
        Ok(self.position.to_vec1::<u32>()?[0])
    }
}

impl StepState for Writing {
    fn tensors(&self) -> Vec<Tensor> {
        vec![self.position.clone(), self.cache.clone(), self.sum.clone()]
    }

    fn with(&self, tensors: Vec<Tensor>) -> Self {
        let [position, cache, sum] = <[Tensor; 3]>::try_from(tensors).expect("three tensors");
        Self { position, cache, sum }
    }
}

/// Writes the input as the next row, reads all rows, adds them to the sum.
pub fn step(x: &[Tensor], s: &Writing) -> Result<Vec<Tensor>> {
    let before = ops::sum_keepdim(&s.cache, 0)?;
    ops::write_rows(&s.cache, &x[0], &s.position)?;
    let read = ops::sum_keepdim(&ops::affine(&s.cache, 0.5, 0.25)?, 0)?;
    let read = ops::squeeze(&ops::sub(&read, &before)?, 0)?;
    ops::assign(&s.sum, &ops::add(&s.sum, &read)?)?;
    ops::advance(&s.position, 1)?;
    Ok(vec![s.sum.clone(), s.position.clone(), read])
}

/// The input of a step.
pub fn input(i: usize, device: &Device) -> Result<[Tensor; 1]> {
    Ok([Tensor::new(&[[i as f32, 0.5 - i as f32, 0.1 * i as f32]], device)?])
}

#[track_caller]
pub fn assert_same(got: &[Tensor], expected: &[Tensor]) {
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(expected) {
        let values = |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
        assert_eq!(values(got).expect("values"), values(expected).expect("values"));
    }
}
