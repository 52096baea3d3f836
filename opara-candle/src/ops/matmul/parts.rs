//! Products of parts of prompts, of [`PART`] rows each: a row's bits do not depend on how many parts there are. A library chooses its
//! kernels by the number of rows. Here one is chosen whose bits all numbers have, and for each number the fastest with these bits.

use std::cell::OnceCell;

use candle::{CudaDevice, DType, Result, Tensor};

use super::cuda::{by_algorithm, fits};
use crate::cuda::driver::cublaslt::{self, Algorithm};
use crate::cuda::driver::matmul::Matmul;
use crate::cuda::operator::choice::{self, Choices};
use crate::ops::{Activation, ProductPrecision};

/// Rows of a part.
const PART: usize = 128;

/// How many parts there may be.
const COUNTS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Columns of a product at most: no layer has more, and trying algorithms for a vocabulary would take seconds.
const MOST_COLUMNS: usize = 1 << 16;

/// Parts whose products are compared at least: sums in another order differ in few of their elements.
const COMPARED: usize = 8;

/// Algorithms that are tried, of those that cuBLASLt proposes for the fewest parts and for the most.
const ALGORITHMS: usize = 6;

/// How a product is computed.
#[derive(Clone, Copy)]
enum Way {
    /// As others are: no algorithm gives all parts the same bits.
    AsOthers,
    /// For so many parts at most.
    Algorithm(Algorithm, usize),
}

impl choice::Implementation for Way {
    fn name(&self) -> String {
        match self {
            Self::AsOthers => "as others".into(),
            Self::Algorithm(algorithm, most) => format!("{}, {most} parts", algorithm.name()),
        }
    }
}

/// An algorithm with the bits that all numbers of parts have.
impl choice::Implementation for Algorithm {
    fn name(&self) -> String {
        self.name()
    }
}

/// For each product of one part.
static WAYS: Choices<Matmul, Way> = Choices::new("product of parts");

/// For each product of a number of parts.
static FASTEST: Choices<Matmul, Algorithm> = Choices::new("product of a number of parts");

/// `x * weightᵀ` where `x` has as many parts as a number of [`COUNTS`] says. `None` for other operands, and where no algorithm gives these
/// parts the bits that each has alone.
pub(in crate::ops) fn in_parts(x: &Tensor, weight: &Tensor) -> Result<Option<Tensor>> {
    let (columns, inner) = weight.dims2()?;
    let rows = x.elem_count() / inner.max(1);
    let are_parts = COUNTS.iter().any(|count| count * PART == rows);
    let is_known = matches!(x.dtype(), DType::F16 | DType::BF16) && x.device().is_cuda();
    if !are_parts || !is_known || columns > MOST_COLUMNS {
        return Ok(None);
    }
    let x = &x.contiguous()?;
    if !fits(x, weight, None)? {
        return Ok(None);
    }
    let device = x.device().as_cuda_device()?;
    let of = Matmul {
        dtype: x.dtype(),
        precision: ProductPrecision::High,
        rows: PART,
        inner,
        columns,
        bias: false,
        activation: Activation::None,
    };
    let trial = OnceCell::new();
    let ways = || {
        let trial = trial.get_or_init(|| Trial { of, weight, rows: most_rows_of(&of, x) });
        let ways = trial.ways(device)?;
        Ok(if ways.is_empty() { vec![(Way::AsOthers, 1.)] } else { ways })
    };
    let tried = |way| trial.get().map_or(Ok(()), |trial: &Trial| trial.run(way)).map(|()| way);
    match WAYS.run(device, of, ways, || Ok(Way::AsOthers), tried)? {
        Way::Algorithm(_, most) if rows > most * PART => Ok(None),
        Way::AsOthers => Ok(None),
        Way::Algorithm(algorithm, _) => {
            let shape = [&x.dims()[..x.rank() - 1], &[columns]].concat();
            let alike = || {
                let trial = Trial { of, weight, rows: rows_of(&of, x, (rows / PART).max(COMPARED)) };
                // Without memory for others there is the one that is known.
                let alike = trial.like(device, algorithm, rows / PART).unwrap_or_else(|_| vec![algorithm]);
                Ok(alike.into_iter().map(|algorithm| (algorithm, 1.)).collect())
            };
            let run = |algorithm| by_algorithm(Matmul { rows, ..of }, algorithm, x, weight, &shape);
            FASTEST.run(device, Matmul { rows, ..of }, alike, || Ok(algorithm), run).map(Some)
        }
    }
}

/// [`rows_of`] the most parts that there is memory for.
fn most_rows_of(of: &Matmul, like: &Tensor) -> Result<Tensor> {
    let mut all = COUNTS.iter().rev().map(|parts| rows_of(of, like, *parts));
    let most = all.next().unwrap_or_else(|| candle::bail!("no number of parts"));
    most.or_else(|error| all.find_map(Result::ok).ok_or(error))
}

/// Rows of `parts` parts for a trial. The first part has various numbers. Each further part has the same numbers, rotated by some columns.
fn rows_of(of: &Matmul, like: &Tensor, parts: usize) -> Result<Tensor> {
    let number = |at: u32| (at.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.;
    let numbers = (0..(PART * of.inner) as u32).map(number);
    let first = Tensor::from_iter(numbers, &candle::Device::Cpu)?.reshape((PART, of.inner))?.to_dtype(of.dtype)?;
    let first = first.to_device(like.device())?;
    let part = |at: usize| {
        let from = at * 7 % of.inner;
        Tensor::cat(&[first.narrow(1, from, of.inner - from)?, first.narrow(1, 0, from)?], 1)
    };
    Tensor::cat(&(0..parts).map(part).collect::<Result<Vec<_>>>()?, 0)
}

/// Has an element of two matrices other bits? Only the signs of zeros are not seen.
fn differ(a: &Tensor, b: &Tensor) -> Result<bool> {
    Ok(a.ne(b)?.max(1)?.max(0)?.to_scalar::<u8>()? != 0)
}

/// What is tried on the weight of a product.
struct Trial<'a> {
    of: Matmul,
    weight: &'a Tensor,
    rows: Result<Tensor>,
}

impl Trial<'_> {
    /// The product of `count` parts from one on.
    fn product(&self, algorithm: Algorithm, first: usize, count: usize) -> Result<Tensor> {
        let rows = self.rows.as_ref().map_err(|error| candle::Error::msg(error.to_string()))?;
        let of = Matmul { rows: count * PART, ..self.of };
        by_algorithm(of, algorithm, &rows.narrow(0, first * PART, of.rows)?, self.weight, &[of.rows, of.columns])
    }

    /// The algorithms that give a part the same bits beside any number of others. If there are none for the most parts, those for half as many,
    /// and so on.
    fn ways(&self, device: &CudaDevice) -> Result<Vec<(Way, f64)>> {
        for counts in (2..=COUNTS.len()).rev().map(|of| &COUNTS[..of]) {
            let (mut known, most) = (Vec::<Algorithm>::new(), counts[counts.len() - 1]);
            let all: Vec<Matmul> = counts.iter().map(|count| Matmul { rows: count * PART, ..self.of }).collect();
            for of in [all[all.len() - 1], all[0]] {
                for algorithm in cublaslt::algorithms(device, &of, ALGORITHMS)? {
                    let Some(algorithm) = cublaslt::for_all(device, &algorithm, &all)? else { continue };
                    if known.iter().all(|known| known.name() != algorithm.name())
                        && self.is_alike(algorithm, counts).unwrap_or(false)
                    {
                        known.push(algorithm);
                    }
                }
            }
            if !known.is_empty() {
                return Ok(known.into_iter().map(|algorithm| (Way::Algorithm(algorithm, most), 1.)).collect());
            }
        }
        Ok(Vec::new())
    }

    /// Does each part have the same bits alone and beside others?
    fn is_alike(&self, algorithm: Algorithm, counts: &[usize]) -> Result<bool> {
        let most = counts[counts.len() - 1];
        let all = self.product(algorithm, 0, most)?;
        let of_part = |of: &Tensor, part: usize| of.narrow(0, part * PART, PART);
        for part in 0..most {
            let part = of_part(&all, part)?;
            // All weights' products are alike that are zeros.
            if !differ(&part, &part.zeros_like()?)? {
                return Ok(false);
            }
        }
        // Each part alone, and then some of them together.
        let alone = (0..most).map(|part| (part, 1));
        for (first, count) in alone.chain(counts[1..counts.len() - 1].iter().map(|count| (most - count, *count))) {
            let some = self.product(algorithm, first, count)?;
            for part in 0..count {
                if differ(&of_part(&some, part)?, &of_part(&all, first + part)?)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The algorithms of `count` parts with the bits of this one, which comes first.
    fn like(&self, device: &CudaDevice, algorithm: Algorithm, count: usize) -> Result<Vec<Algorithm>> {
        let all = count.max(COMPARED);
        let expected = self.product(algorithm, 0, all)?;
        let mut alike = vec![algorithm];
        for other in cublaslt::algorithms(device, &Matmul { rows: count * PART, ..self.of }, ALGORITHMS)? {
            let is_like = || -> Result<bool> {
                for first in (0..all).step_by(count) {
                    let expected = expected.narrow(0, first * PART, count * PART)?;
                    if differ(&self.product(other, first, count)?, &expected)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            };
            if other.name() != algorithm.name() && is_like().unwrap_or(false) {
                alike.push(other);
            }
        }
        Ok(alike)
    }

    /// Runs an algorithm for its time: on the most parts once, and on one part eight times, since a request may come alone.
    fn run(&self, way: Way) -> Result<()> {
        let Way::Algorithm(algorithm, most) = way else { return Ok(()) };
        for count in [&[most][..], &[COUNTS[0]; 8]].concat() {
            self.product(algorithm, 0, count)?;
        }
        Ok(())
    }
}
