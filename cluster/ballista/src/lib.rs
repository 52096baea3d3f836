//! Bulk inference with DataFusion on one machine, and with Apache Ballista on many.
//!
//! - [`Models`] are the text models of a process by their names, and [`ModelOptions`] the flags that load them.
//! - [`embed`] is SQL's function `embed(text)` and `embed(text, model)`, which runs batches of Arrow rows on them.
//! - [`session`] makes sessions that have the function, on this machine or on a cluster; [`query`] answers one query.
//! - [`scheduler`] and [`executor`] are Ballista's processes with the function.
//!
//! ```
//! use datafusion::prelude::SessionContext;
//! use opara_ballista::{embed, Models};
//! use opara_serve::{batch::Buckets, embed::{Size, TextModel}};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = TextModel::random(Size::Tiny, 7);
//! let embedder = model.embedder(&candle::Device::Cpu, candle::DType::F32, &Buckets::new([1, 4], [16], 64)?)?;
//! let session = SessionContext::new();
//! session.register_udf(embed(Models::new([("bert".to_string(), embedder)])));
//! let rows = session.sql("select embed('a cat sleeps') as vector").await?.collect().await?;
//! assert_eq!(rows[0].num_rows(), 1);
//! # Ok(())
//! # }
//! ```

mod function;
mod models;
mod options;
mod output;

pub mod executor;
pub mod query;
pub mod scheduler;
pub mod session;

pub use function::{embed, Embed};
pub use models::Models;
pub use options::{DeviceName, ModelOptions};
