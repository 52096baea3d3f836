//! Any module behind a batcher: tensors in, tensors out, with rows along the first dimension.

use std::time::Instant;

use anyhow::{ensure, Result};
use candle::{DType, Device};
use opara_candle::OparaExecutor;

use super::{BoxFuture, Context, Datatype, Failure, Kind, Model, Tensor, TensorSpec, Values};
use crate::batch::{Axis, Batcher, Buckets, Health, Job, Metrics, Rows, Settings, Stage};
use crate::embed::TextOptions;

/// Any module behind a batcher. Its inputs and outputs have rows along their first dimension, and rows of many requests run together.
///
/// Floats of any type are FP32 in requests and answers, and integers INT64.
pub struct TensorModel {
    batcher: Batcher<Rows>,
    inputs: Vec<Described>,
    outputs: Vec<Described>,
    metrics: Metrics,
}

/// A tensor of one row.
#[derive(Clone)]
struct Described {
    name: String,
    dims: Vec<usize>,
    dtype: DType,
}

impl Described {
    /// Of these tensors, which have the same number of rows.
    fn all(tensors: &[candle::Tensor], kind: &str) -> Result<Vec<Self>> {
        let rows = tensors.first().and_then(|tensor| tensor.dims().first().copied());
        let described = |(index, tensor): (usize, &candle::Tensor)| {
            ensure!(
                rows.is_some_and(|rows| rows > 0) && tensor.dims().first().copied() == rows,
                "{kind} {index} has the shape {:?}: all have the same number of rows, their first dimension",
                tensor.dims()
            );
            let name = format!("{kind}_{index}");
            Ok(Self { name, dims: tensor.dims()[1..].to_vec(), dtype: tensor.dtype() })
        };
        tensors.iter().enumerate().map(described).collect()
    }

    fn datatype(&self) -> Datatype {
        if self.dtype.is_float() {
            Datatype::Fp32
        } else {
            Datatype::Int64
        }
    }

    fn spec(&self) -> TensorSpec {
        let shape = std::iter::once(-1).chain(self.dims.iter().map(|&dim| dim as i64)).collect();
        TensorSpec { name: self.name.clone().into(), datatype: self.datatype(), shape }
    }

    /// The rows of a request's tensor.
    fn rows(&self, tensor: Tensor) -> super::Result<Vec<candle::Tensor>> {
        let Tensor { name, datatype, shape, values } = tensor;
        let wrong = |what: String| Failure::invalid(format!("input {name:?} {what}"));
        if shape.is_empty() || shape[1..] != self.dims {
            return Err(wrong(format!("has shape {shape:?} and must have (n, {:?})", self.dims)));
        }
        let all = match values {
            Values::Floats(values) if self.dtype.is_float() => {
                candle::Tensor::from_vec(values, shape.clone(), &Device::Cpu)
            }
            Values::Ints(values) if !self.dtype.is_float() => {
                let range = match self.dtype {
                    DType::U8 => 0..=i64::from(u8::MAX),
                    DType::U32 => 0..=i64::from(u32::MAX),
                    _ => i64::MIN..=i64::MAX,
                };
                if let Some(value) = values.iter().find(|value| !range.contains(value)) {
                    return Err(wrong(format!("has {value}, and elements are {}", self.dtype.as_str())));
                }
                candle::Tensor::from_vec(values, shape.clone(), &Device::Cpu)
            }
            _ => return Err(wrong(format!("is {datatype} and must be {}", self.datatype()))),
        };
        let all = all.and_then(|all| all.to_dtype(self.dtype)).map_err(internal)?;
        (0..shape[0]).map(|row| all.get(row).map_err(internal)).collect()
    }

    /// The tensor of an answer, of its rows.
    fn told(&self, rows: &[candle::Tensor]) -> candle::Result<Tensor> {
        let all = candle::Tensor::stack(rows, 0)?;
        let shape = all.dims().to_vec();
        let flat = all.flatten_all()?;
        let values = match self.dtype.is_float() {
            true => Values::Floats(flat.to_dtype(DType::F32)?.to_vec1()?),
            false => Values::Ints(flat.to_dtype(DType::I64)?.to_vec1()?),
        };
        Ok(Tensor { name: self.name.clone(), datatype: self.datatype(), shape, values })
    }
}

fn internal(error: candle::Error) -> Failure {
    Failure::new(Kind::Internal, error.to_string())
}

impl TensorModel {
    /// This executor, for batches of these numbers of rows. `example` is what it was built for; its outputs have as many rows. Plans of
    /// all batches are built at once: [`Builder::max_shapes`](opara_candle::Builder::max_shapes) must be at least their number.
    ///
    /// # Errors
    /// Tensors without rows, and what calls of the executor may fail with.
    pub fn new(
        executor: OparaExecutor,
        example: &[candle::Tensor],
        batches: impl IntoIterator<Item = usize>,
        metrics: Metrics,
    ) -> Result<Self> {
        let inputs = Described::all(example, "input")?;
        let outputs = executor.call(example)?;
        let outputs = Described::all(&outputs, "output")?;
        let device = example.first().map_or(&Device::Cpu, |tensor| tensor.device()).clone();
        let row = example.iter().map(|tensor| tensor.get(0)).collect::<candle::Result<Vec<_>>>()?;
        let axes = |described: &[Described]| vec![Axis::Fixed; described.len()];
        let shares_cores = device.is_cpu();
        let rows = Rows::new(executor, device, axes(&inputs), axes(&outputs)).example(row);
        let buckets = Buckets::of_rows(batches)?;
        let settings = Settings::default().in_flight(2).share_cores(shares_cores).metrics(metrics.clone());
        let batcher = Batcher::start([rows], buckets, settings);
        batcher.warm_up(|_, _, _| ())?;
        Ok(Self { batcher, inputs, outputs, metrics })
    }

    /// Sets the names of inputs and outputs. By default they are `input_0`, `output_0` and so on.
    ///
    /// # Errors
    /// Other numbers of names than there are tensors; a name that is there twice.
    pub fn named(mut self, inputs: &[&str], outputs: &[&str]) -> Result<Self> {
        for (described, names) in [(&mut self.inputs, inputs), (&mut self.outputs, outputs)] {
            ensure!(described.len() == names.len(), "{} names for {} tensors", names.len(), described.len());
            for (index, (tensor, name)) in described.iter_mut().zip(names).enumerate() {
                ensure!(!names[..index].contains(name), "two tensors have the name {name:?}");
                tensor.name = (*name).to_owned();
            }
        }
        Ok(self)
    }

    /// The rows of a request's tensors.
    fn rows(&self, tensors: Vec<Tensor>) -> super::Result<Vec<Vec<candle::Tensor>>> {
        let mut given: Vec<Option<Tensor>> = vec![None; self.inputs.len()];
        for tensor in tensors {
            let place = self.inputs.iter().position(|input| input.name == tensor.name);
            let names = || self.inputs.iter().map(|input| input.name.as_str()).collect::<Vec<_>>().join(", ");
            let unknown = || Failure::invalid(format!("there is no input {:?}: give {}", tensor.name, names()));
            let place = place.ok_or_else(unknown)?;
            if let Some(first) = given[place].replace(tensor) {
                return Err(Failure::invalid(format!("input {:?} is given twice", first.name)));
            }
        }
        let mut rows: Vec<Vec<candle::Tensor>> = Vec::new();
        for (index, (input, tensor)) in self.inputs.iter().zip(given).enumerate() {
            let missing = || Failure::invalid(format!("input {:?} is missing", input.name));
            let parts = input.rows(tensor.ok_or_else(missing)?)?;
            if index == 0 {
                rows = parts.iter().map(|_| Vec::with_capacity(self.inputs.len())).collect();
            }
            if parts.len() != rows.len() {
                return Err(Failure::invalid(format!(
                    "input {:?} has {} rows, and the first {}",
                    input.name,
                    parts.len(),
                    rows.len()
                )));
            }
            rows.iter_mut().zip(parts).for_each(|(row, part)| row.push(part));
        }
        match rows.is_empty() {
            true => Err(Failure::invalid("the inputs have no rows")),
            false => Ok(rows),
        }
    }

    async fn answers(&self, tensors: Vec<Tensor>, context: Context) -> super::Result<Vec<Tensor>> {
        let start = Instant::now();
        let rows = self.rows(tensors)?;
        self.metrics.time(Stage::Parse, start.elapsed());
        let job = Job::of(rows).client(context.client).deadline(context.deadline);
        let answers = self.batcher.submit(job)?.answers().await?;
        let outputs = self.outputs.clone();
        // A device is waited for.
        let told = tokio::task::spawn_blocking(move || {
            let output = |(index, output): (usize, &Described)| {
                let rows: Vec<candle::Tensor> = answers.iter().map(|answer| answer[index].clone()).collect();
                output.told(&rows)
            };
            outputs.iter().enumerate().map(output).collect::<candle::Result<Vec<_>>>()
        });
        told.await.map_err(|_| Failure::new(Kind::Internal, "an answer could not be read"))?.map_err(internal)
    }
}

impl Model for TensorModel {
    fn inputs(&self) -> Vec<TensorSpec> {
        self.inputs.iter().map(Described::spec).collect()
    }

    fn outputs(&self) -> Vec<TensorSpec> {
        self.outputs.iter().map(Described::spec).collect()
    }

    fn platform(&self) -> &'static str {
        "opara_candle_module"
    }

    fn infer(
        &self,
        inputs: Vec<Tensor>,
        options: TextOptions,
        context: Context,
    ) -> BoxFuture<'_, super::Result<Vec<Tensor>>> {
        Box::pin(async move {
            match options == TextOptions::default() {
                true => self.answers(inputs, context).await,
                false => Err(Failure::invalid("`prompt`, `prompt_name` and `truncate` are for texts")),
            }
        })
    }

    fn is_ready(&self) -> bool {
        self.batcher.is_ready()
    }

    fn is_lost(&self) -> bool {
        self.batcher.is_lost()
    }

    fn health(&self) -> Health {
        self.batcher.health()
    }

    fn drain(&self) {
        self.batcher.drain();
    }
}
