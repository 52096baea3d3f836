//! What most programs need: `use opara_candle::prelude::*;`
//!
//! ```
//! use opara_candle::candle::{Device, Tensor};
//! use opara_candle::ops;
//! use opara_candle::prelude::*;
//!
//! let x = Tensor::new(&[-1f32, 2.], &Device::Cpu)?;
//! let fast = OparaExecutor::new(|x: &Tensor| ops::relu(x), &x)?;
//! assert_eq!(fast.forward(&x)?.to_vec1::<f32>()?, [0., 2.]);
//! assert_eq!(fast.report().mode(), Mode::Threads);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use crate::{Builder, BuiltIn, Mode, Numerics, OnStateful, OnUncapturable, OparaExecutor, Report, Search};
pub use candle::Module;
