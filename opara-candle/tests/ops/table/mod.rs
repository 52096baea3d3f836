//! Every operator and layer with its operands, for tests that hold for all of them.

mod elements;
mod images;
mod layers;
mod products;
mod rows;
mod texts;
mod views;

use candle::{DType, Device::Cpu, Result, Tensor};

use crate::values;

/// Sizes that shapes are made of: of batches, rows, columns, and what a matrix has besides.
pub type Sizes = [usize; 4];

/// Sizes that are not zero.
pub const SOME: Sizes = [2, 4, 6, 3];

/// An operand of an operator.
#[derive(Clone, Debug)]
pub enum Operand {
    /// Floats of this shape.
    Floats(Vec<usize>),
    /// Integers of u32 of this shape, below this number.
    Ids(Vec<usize>, u32),
    /// Zeros and ones of u8.
    Bits(Vec<usize>),
}

use Operand::{Bits, Floats, Ids};

impl Operand {
    /// Contiguous values.
    pub fn values(&self, seed: usize, dtype: DType) -> Result<Tensor> {
        let ids = |shape: &[usize], below: u32| {
            let n = shape.iter().product::<usize>();
            Tensor::from_iter((0..n).map(|i| ((i * 7 + seed) as u32) % below.max(1)), &Cpu)?.reshape(shape)
        };
        match self {
            Floats(shape) => values(seed, shape, dtype),
            Ids(shape, below) => ids(shape, *below),
            Bits(shape) => ids(shape, 2)?.to_dtype(DType::U8),
        }
    }

    pub fn shape(&self) -> &[usize] {
        match self {
            Floats(shape) | Ids(shape, _) | Bits(shape) => shape,
        }
    }
}

type Shapes = Box<dyn Fn(Sizes) -> Vec<Vec<usize>>>;

/// Computes outputs of inputs.
pub type Run = dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync;

/// An operator on its operands.
pub struct Case {
    pub name: &'static str,
    pub operands: Box<dyn Fn(Sizes) -> Vec<Operand>>,
    /// The shapes of its results.
    pub results: Shapes,
    pub run: Box<Run>,
}

fn case<O, R, F>(name: &'static str, operands: O, results: R, run: F) -> Case
where
    O: Fn(Sizes) -> Vec<Operand> + 'static,
    R: Fn(Sizes) -> Vec<usize> + 'static,
    F: Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
{
    let (results, run) = (move |sizes| vec![results(sizes)], move |t: &[Tensor]| Ok(vec![run(t)?]));
    Case { name, operands: Box::new(operands), results: Box::new(results), run: Box::new(run) }
}

fn floats(shapes: &[&[usize]]) -> Vec<Operand> {
    shapes.iter().map(|shape| Floats(shape.to_vec())).collect()
}

/// All cases.
pub fn cases() -> Vec<Case> {
    let parts =
        [elements::cases, views::cases, products::cases, rows::cases, images::cases, layers::cases, texts::cases];
    parts.into_iter().flat_map(|part| part()).collect()
}

/// Operators that write in place, which have no results.
pub const IN_PLACE: [&str; 4] = ["advance", "assign", "mark_seen", "write_rows"];
