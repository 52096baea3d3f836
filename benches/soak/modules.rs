//! The modules that executors wrap. Each maps rows of 64 numbers to as many rows of 64.

use std::cell::RefCell;
use std::sync::Arc;

use candle::{Device, Result, Tensor};
use opara_candle::ops;
use parking_lot::Mutex;

/// Numbers in a row.
pub const WIDTH: usize = 64;

/// The kinds of modules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The library's operators in three branches.
    Branches,
    /// candle's own operators.
    Plain,
    /// A convolution.
    Convolution,
    /// A module that reads a number back to the host and so cannot be captured.
    ReadsBack,
    /// A module that caches a table for the shape of its last call.
    Table,
    /// A module of whose table each thread has its own.
    Masked,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 6] =
        [Self::Branches, Self::Plain, Self::Convolution, Self::ReadsBack, Self::Table, Self::Masked];

    /// The kind's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Branches => "branches",
            Self::Plain => "plain",
            Self::Convolution => "convolution",
            Self::ReadsBack => "reads back",
            Self::Table => "table",
            Self::Masked => "masked",
        }
    }

    /// Must an executor be able to replay the module? On the CPU, modules of candle's own operators run eagerly.
    pub fn can_be_captured(self, on_cpu: bool) -> bool {
        match self {
            Self::Branches => true,
            Self::Plain | Self::Convolution => !on_cpu,
            // The executor cannot replay these: they read back or replace their table.
            Self::ReadsBack | Self::Table | Self::Masked => false,
        }
    }
}

thread_local! {
    static MASK: RefCell<Option<Tensor>> = const { RefCell::new(None) };
}

/// A table with this many rows.
fn table(rows: usize, device: &Device) -> Result<Tensor> {
    Tensor::arange(0f32, (rows * WIDTH) as f32, device)?.reshape((rows, WIDTH))?.cos()
}

/// The cached table, replaced if it has another number of rows than `x`.
fn kept(table_kept: &mut Option<Tensor>, x: &Tensor) -> Result<Tensor> {
    match table_kept {
        Some(table) if table.dims() == x.dims() => Ok(table.clone()),
        kept => Ok(kept.insert(table(x.dim(0)?, x.device())?).clone()),
    }
}

/// Multiplies by the thread's own table.
///
/// # Errors
/// An error of candle.
pub fn masked(x: &Tensor) -> Result<Tensor> {
    MASK.with_borrow_mut(|mask| ops::mul(x, &kept(mask, x)?))
}

/// Weights shared by all modules.
#[derive(Clone)]
pub struct Weights {
    /// A square matrix.
    pub product: Tensor,
    /// Four filters of one channel. The values are whole numbers, so that convolution sums are exact in any order.
    pub filter: Tensor,
}

impl Weights {
    /// # Errors
    /// An error of candle.
    pub fn new(device: &Device) -> Result<Self> {
        let count = (WIDTH * WIDTH) as f32;
        let product = Tensor::arange(0f32, count, &Device::Cpu)?.sin()?.affine(0.1, 0.)?.reshape((WIDTH, WIDTH))?;
        let filter = Tensor::from_iter((0..36).map(|i| (i % 5) as f32 - 2.), &Device::Cpu)?.reshape((4, 1, 3, 3))?;
        Ok(Self { product: product.to_device(device)?, filter: filter.to_device(device)? })
    }
}

/// A module.
#[derive(Clone)]
pub struct Module {
    pub kind: Kind,
    weights: Weights,
    table: Arc<Mutex<Option<Tensor>>>,
}

impl Module {
    /// Creates a module, with its own table if its kind has one.
    pub fn new(kind: Kind, weights: &Weights) -> Self {
        Self { kind, weights: weights.clone(), table: Arc::default() }
    }
}

impl candle::Module for Module {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let product = &self.weights.product;
        match self.kind {
            Kind::Branches => {
                let branch = |scale: f64| ops::tanh(&ops::matmul(&ops::affine(x, scale, 0.1)?, product)?);
                let sum = ops::add(&branch(0.1)?, &branch(0.2)?)?;
                ops::softmax_last_dim(&ops::add(&sum, &branch(0.3)?)?)
            }
            Kind::Plain => {
                let hidden = x.matmul(product)?.gelu()?;
                candle_nn::ops::softmax_last_dim(&hidden.matmul(product)?)? + x
            }
            Kind::Convolution => convolve(x, &self.weights),
            Kind::ReadsBack => x.affine(f64::from(x.max(1)?.max(0)?.to_scalar::<f32>()?), 1.),
            Kind::Table => {
                let table = kept(&mut self.table.lock(), x)?;
                ops::relu(&ops::mul(x, &table)?)
            }
            Kind::Masked => ops::relu(&masked(x)?),
        }
    }
}

/// Convolves each row, as an image, with the four filters.
///
/// # Errors
/// An error of candle.
pub fn convolve(x: &Tensor, weights: &Weights) -> Result<Tensor> {
    let rows = x.dim(0)?;
    let images = x.reshape((rows, 1, 8, 8))?.conv2d(&weights.filter, 1, 1, 1, 1)?;
    images.relu()?.sum(1)?.reshape((rows, WIDTH))
}
