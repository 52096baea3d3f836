//! A layer of experts by other operators.

use candle::{bail, Result, Tensor};

use crate::ops::{gated, linear, Activation};

/// The operands of a layer of experts: rows of `x` and pairs, `(rows, k)`.
pub(super) struct Layer<'a> {
    pub x: &'a Tensor,
    pub weights: &'a Tensor,
    pub ids: &'a Tensor,
    pub gate_up: &'a Tensor,
    pub down: &'a Tensor,
}

impl Layer<'_> {
    /// By other operators.
    pub fn composed(&self, activation: Activation) -> Result<Tensor> {
        let weights = self.weights.to_dtype(self.x.dtype())?;
        match self.x.device().is_cpu() {
            true => self.by_expert(&weights, activation),
            false => self.gathered(&weights, activation),
        }
    }

    /// Each expert's rows together. The host reads which they are.
    fn by_expert(&self, weights: &Tensor, activation: Activation) -> Result<Tensor> {
        let (experts, chosen) = (self.down.dim(0)?, self.ids.dim(1)?);
        let ids = self.ids.flatten_all()?.to_vec1::<u32>()?;
        if let Some(id) = ids.iter().find(|id| **id as usize >= experts) {
            bail!("expert {id} of {experts}")
        }
        let (mut y, weights) = (self.x.zeros_like()?, weights.flatten_all()?);
        for expert in 0..experts {
            let pairs: Vec<u32> = (0..ids.len() as u32).filter(|pair| ids[*pair as usize] as usize == expert).collect();
            if pairs.is_empty() {
                continue;
            }
            let rows: Vec<u32> = pairs.iter().map(|pair| pair / chosen as u32).collect();
            let (pairs, rows) = (Tensor::new(pairs, self.x.device())?, Tensor::new(rows, self.x.device())?);
            let of = gated(&linear(&self.x.index_select(&rows, 0)?, &self.gate_up.get(expert)?, None)?, activation)?;
            let weight = weights.index_select(&pairs, 0)?.unsqueeze(1)?;
            let of = linear(&of, &self.down.get(expert)?, None)?.broadcast_mul(&weight)?;
            y = y.index_add(&rows, &of, 0)?;
        }
        Ok(y)
    }

    /// Each pair with a copy of its expert's weights.
    fn gathered(&self, weights: &Tensor, activation: Activation) -> Result<Tensor> {
        let (rows, chosen) = self.ids.dims2()?;
        let ids = self.ids.flatten_all()?;
        let product = |x: &Tensor, weight: &Tensor| weight.index_select(&ids, 0)?.matmul(&x.unsqueeze(2)?)?.squeeze(2);
        let x = self.x.unsqueeze(1)?.repeat((1, chosen, 1))?.flatten_to(1)?;
        let of = product(&gated(&product(&x, self.gate_up)?, activation)?, self.down)?;
        of.reshape((rows, chosen, ()))?.broadcast_mul(&weights.unsqueeze(2)?)?.sum(1)
    }
}
