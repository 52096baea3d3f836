//! Embedding tables.

use candle::{Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};

use super::weights::name_of;
use crate::ops;
use crate::trace::scope::scope;

/// A table of rows; made by [`embedding`].
#[derive(Debug, Clone)]
pub struct Embedding {
    name: String,
    table: Tensor,
}

/// Loads `weight` of shape `(rows, hidden)`.
///
/// ```
/// # use candle::{DType, Device::Cpu, Module, Tensor};
/// # use candle_nn::VarBuilder;
/// # use opara_candle::{nn, ops};
/// let table = nn::embedding(100, 8, VarBuilder::zeros(DType::F32, &Cpu))?;
/// assert_eq!(table.forward(&Tensor::new(&[[1u32, 2, 3]], &Cpu)?)?.dims(), [1, 3, 8]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// A tensor that is missing or has another shape.
pub fn embedding(rows: usize, hidden: usize, vb: VarBuilder) -> Result<Embedding> {
    let table = vb.get_with_hints((rows, hidden), "weight", Init::Randn { mean: 0., stdev: 1. })?;
    Ok(Embedding { name: name_of(&vb), table })
}

impl Module for Embedding {
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let _scope = scope(&self.name);
        ops::embedding(&self.table, ids)
    }
}
