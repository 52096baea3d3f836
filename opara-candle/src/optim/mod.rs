//! Optimizers for training loops: candle's [`Optimizer`](candle_nn::Optimizer)s in one launch for each 64 variables, on a CPU, too.
//!
//! ```
//! use candle::{DType, Device::Cpu, Tensor};
//! use candle_nn::{Module, Optimizer, VarBuilder, VarMap};
//! use opara_candle::optim::{AdamW, Schedule};
//!
//! let weights = VarMap::new();
//! let layer = candle_nn::linear(4, 1, VarBuilder::from_varmap(&weights, DType::F32, &Cpu))?;
//! let mut optimizer = AdamW::of(&weights, candle_nn::ParamsAdamW { lr: 0.05, ..Default::default() })?
//!     .clip_norm(1.)?
//!     .schedule(Schedule::Cosine { warm_up: 5, steps: 60, remains: 0.1 })?
//!     .no_decay("*bias")?;
//! let x = Tensor::new(&[[0f32, 1., 2., 3.], [1., -1., 1., -1.]], &Cpu)?;
//! let y = Tensor::new(&[[1f32], [2.]], &Cpu)?;
//! let loss = || candle_nn::loss::mse(&layer.forward(&x)?, &y);
//! let before = loss()?.to_scalar::<f32>()?;
//! for _ in 0..60 {
//!     optimizer.backward_step(&loss()?)?;
//! }
//! assert!(loss()?.to_scalar::<f32>()? < before / 10.);
//! assert_eq!(optimizer.steps()?, 60);
//! # Ok::<(), candle::Error>(())
//! ```

mod check;
mod checkpoint;
mod claim;
mod fused;
mod gradients;
mod loss_scale;
mod mixed_precision;
mod names;
mod params;
mod schedule;
mod slot;
mod state;

pub use self::checkpoint::CheckpointError;
pub(crate) use self::claim::Claim;
pub use self::fused::{Adam, AdamW, Fused, Lion, SGD};
pub use self::gradients::check_gradients;
pub use self::loss_scale::LossScale;
pub use self::mixed_precision::MixedPrecision;
pub use self::names::Names;
pub use self::params::{Params, ParamsAdam, ParamsLion, ParamsSGD};
pub use self::schedule::Schedule;
pub use crate::error::UnreachedError;
