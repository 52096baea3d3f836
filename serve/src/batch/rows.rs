//! Any executor as an engine: rows of tensors, padded to a bucket and cut back.

use candle::{Device, Tensor};
use opara_candle::{Mode, OparaExecutor};
use parking_lot::Mutex;

use super::{Bucket, Buckets, Engine, EngineError, Health};

/// The first dimension of a row's tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Axis {
    /// Its size is the same in all rows, or there is none.
    Fixed,
    /// It is the length of the row. Inputs are padded with this value, outputs are cut.
    Length {
        /// What padding consists of; of no meaning for outputs.
        pad: f64,
    },
}

/// An executor as an engine. A row has one tensor for each input, without the dimension of the batch; an answer has one for
/// each output.
///
/// Tensors are stacked along a new first dimension. A batch that is not full is filled up with copies of its first row. A
/// model with attention needs a mask against padding: make that a further input.
pub struct Rows {
    executor: OparaExecutor,
    device: Device,
    inputs: Vec<Axis>,
    outputs: Vec<Axis>,
    /// A row to build from, taken from the executor's first batch or from [`Rows::example`].
    example: Mutex<Option<Vec<Tensor>>>,
}

impl Rows {
    /// This executor, whose inputs and outputs are like these, on its device.
    pub fn new(
        executor: OparaExecutor,
        device: Device,
        inputs: impl IntoIterator<Item = Axis>,
        outputs: impl IntoIterator<Item = Axis>,
    ) -> Self {
        let (inputs, outputs) = (inputs.into_iter().collect(), outputs.into_iter().collect());
        Self { executor, device, inputs, outputs, example: Mutex::new(None) }
    }

    /// A row of the kind that is to come, of any length. [`Batcher::warm_up`](super::Batcher::warm_up) needs it.
    pub fn example(self, row: Vec<Tensor>) -> Self {
        *self.example.lock() = Some(row);
        self
    }

    /// The executor.
    pub fn executor(&self) -> &OparaExecutor {
        &self.executor
    }

    /// The batch of these rows, one tensor for each input.
    fn stacked(&self, bucket: Bucket, rows: &[&Vec<Tensor>]) -> candle::Result<Vec<Tensor>> {
        let stack = |(index, axis): (usize, &Axis)| {
            let part = |row: &&Vec<Tensor>| padded(&row[index].to_device(&self.device)?, *axis, bucket.length);
            let mut parts = rows.iter().map(part).collect::<candle::Result<Vec<_>>>()?;
            let filler = parts[0].clone();
            parts.resize(bucket.batch, filler);
            Tensor::stack(&parts, 0)
        };
        self.inputs.iter().enumerate().map(stack).collect()
    }

    /// A batch for building: the example, cut or padded to the bucket.
    fn example_batch(&self, bucket: Bucket) -> Result<Option<Vec<Tensor>>, EngineError> {
        let Some(row) = self.example.lock().clone() else { return Ok(None) };
        let cut = |(tensor, axis): (&Tensor, &Axis)| match axis {
            Axis::Length { .. } => tensor.narrow(0, 0, tensor.dim(0)?.min(bucket.length)),
            Axis::Fixed => Ok(tensor.clone()),
        };
        let row = row.iter().zip(&self.inputs).map(cut).collect::<candle::Result<Vec<_>>>()?;
        Ok(Some(self.stacked(bucket, &[&row])?))
    }
}

/// `tensor` with its first dimension padded to `length`, if it is one of rows.
fn padded(tensor: &Tensor, axis: Axis, length: usize) -> candle::Result<Tensor> {
    let Axis::Length { pad } = axis else { return Ok(tensor.clone()) };
    let missing = length.saturating_sub(tensor.dim(0)?);
    if missing == 0 {
        return Ok(tensor.clone());
    }
    let mut dims = tensor.dims().to_vec();
    dims[0] = missing;
    let padding = Tensor::full(pad, dims, tensor.device())?.to_dtype(tensor.dtype())?;
    Tensor::cat(&[tensor, &padding], 0)
}

impl Engine for Rows {
    type Row = Vec<Tensor>;
    type Answer = Vec<Tensor>;

    fn length(&self, row: &Self::Row) -> usize {
        let lengths = row.iter().zip(&self.inputs).filter(|(_, axis)| matches!(axis, Axis::Length { .. }));
        lengths.filter_map(|(tensor, _)| tensor.dims().first().copied()).max().unwrap_or(1)
    }

    fn run(&self, bucket: Bucket, rows: &[&Self::Row]) -> Result<Vec<Self::Answer>, EngineError> {
        let count = self.inputs.len();
        if rows.len() > bucket.batch {
            return Err(EngineError::new("rows of tensors do not lie side by side: give padded buckets"));
        }
        if let Some(row) = rows.iter().find(|row| row.len() != count) {
            return Err(EngineError::new(format!("a row has {} tensors, and the executor {count} inputs", row.len())));
        }
        let outputs = self.executor.call(&self.stacked(bucket, rows)?)?;
        if outputs.len() != self.outputs.len() {
            let (got, expected) = (outputs.len(), self.outputs.len());
            return Err(EngineError::new(format!("the executor has {got} outputs, and {expected} were described")));
        }
        let cut = |index: usize, length: usize| {
            let row = |(output, axis): (&Tensor, &Axis)| match axis {
                Axis::Fixed => output.get(index),
                Axis::Length { .. } => output.get(index)?.narrow(0, 0, length),
            };
            outputs.iter().zip(&self.outputs).map(row).collect::<candle::Result<Vec<_>>>()
        };
        Ok(rows.iter().enumerate().map(|(index, row)| cut(index, self.length(row))).collect::<candle::Result<_>>()?)
    }

    fn prepare(&self, bucket: Bucket) -> Result<(), EngineError> {
        if let Some(inputs) = self.example_batch(bucket)? {
            self.executor.call(&inputs)?;
        }
        Ok(())
    }

    fn health(&self, buckets: &Buckets) -> Health {
        let mut health = Health::default();
        for bucket in buckets.iter() {
            let Ok(Some(inputs)) = self.example_batch(bucket) else { continue };
            let Ok(report) = self.executor.report_for(&inputs) else { continue };
            health.note(bucket, &report);
        }
        health
    }
}

impl Health {
    /// Adds what an executor reports of one bucket.
    pub fn note(&mut self, bucket: Bucket, report: &opara_candle::Report) {
        match report.mode() {
            Mode::Eager => self.eager.push((bucket, report.reason().unwrap_or_default().to_owned())),
            _ => self.built += 1,
        }
        // These two are of the executor, not of the bucket.
        (self.rechecks, self.mismatches) = (report.rechecks(), report.mismatches());
    }
}
