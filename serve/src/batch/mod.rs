//! The batcher: rows of many requests become batches of a few shapes.
//!
//! A [`Batcher`] owns a bounded queue and worker threads. A worker that is free takes the row that is due, and with it as many
//! rows behind it as a batch holds; it waits for no further rows. Under load the queue fills while workers are busy, and
//! batches grow by themselves. Rows are padded to one of the [`Buckets`], or lie side by side in one, and all plans were built ahead by
//! [`Batcher::warm_up`].
//!
//! ```
//! use candle::{DType, Device::Cpu, Tensor};
//! use opara_candle::{ops, OparaExecutor};
//! use opara_serve::batch::{Axis, Batcher, Buckets, Job, Rows, Settings};
//!
//! let table = Tensor::randn(0f32, 1., (100, 8), &Cpu)?;
//! let forward = move |x: &[Tensor]| Ok(vec![ops::embedding(&table, &x[0])?]);
//! let buckets = Buckets::new([1, 4], [16, 32], 128)?; // at most 128 tokens a batch
//! let example = Tensor::zeros((1, 16), DType::U32, &Cpu)?;
//! let executor = OparaExecutor::builder().max_shapes(buckets.len()).build_fn(forward, &[example])?;
//! let engine = Rows::new(executor, Cpu, [Axis::Length { pad: 0. }], [Axis::Length { pad: 0. }]);
//! let batcher = Batcher::start([engine], buckets, Settings::default());
//! let pending = batcher.submit(Job::of([vec![Tensor::new(&[5u32, 6, 7], &Cpu)?]]))?;
//! let answers = pending.wait()?; // or `pending.answers().await`
//! assert_eq!(answers[0][0].dims(), [3, 8]); // padded to 16 tokens, and cut back to 3
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Promises
//! - Each request gets one answer or one error. A panic of an engine fails the requests of its batch and no others.
//! - A row is run once. Only if its worker's device is lost is it run again, once, on another device.
//! - [`Pending`] that is dropped cancels its rows: those that wait are not run.
//! - Rows are taken in fair order among [clients](Job::client), and in order of arrival for each.

mod batcher;
mod bucket;
mod busy;
mod call;
mod engine;
mod engine_error;
mod error;
mod labels;
mod metrics;
mod pace;
mod queue;
mod rows;
mod settings;
mod share;
mod shared;
mod text_metrics;
mod vllm_metrics;
mod worker;

pub use batcher::{Batcher, Job};
pub(crate) use bucket::rows_of;
pub use bucket::{Bucket, Buckets};
pub use call::Pending;
pub use engine::{Engine, Health};
pub use engine_error::EngineError;
pub use error::{Error, Result};
pub use metrics::{Metrics, Registry, Stage};
pub(crate) use pace::Pace;
pub(crate) use queue::Queue;
pub use rows::{Axis, Rows};
pub use settings::Settings;
pub use text_metrics::TextMetrics;
