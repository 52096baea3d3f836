//! The relative position bias: added to an attention score by the distance of the two tokens.

use candle::{bail, DType, Device, Result, Tensor};
use candle_nn::{Init, VarBuilder};
use opara_candle::{ops, scope};

use super::Config;
use crate::mask;

/// Positions on the device. Made once, so that no forward pass computes anything on the host.
#[derive(Debug, Clone)]
pub(super) struct Positions {
    /// At `(query, key)` the column of [`RelativeBias`] for that pair: `n_positions - 1 + key - query`.
    columns: Tensor,
    max: usize,
}

impl Positions {
    pub fn new(config: &Config, device: &Device) -> Result<Self> {
        let max = config.n_positions;
        let columns = (0..max).flat_map(|query| (0..max).map(move |key| (max - 1 + key - query) as u32));
        Ok(Self { columns: Tensor::from_iter(columns, device)?.reshape((max, max))?, max })
    }

    /// Fails where a sequence is too long.
    pub fn check(&self, len: usize) -> Result<()> {
        if len > self.max {
            bail!("{len} tokens are more than the {} of n_positions: raise that in the configuration", self.max);
        }
        Ok(())
    }

    /// The first `len` positions against each other, `(len * len)`.
    fn square(&self, len: usize) -> Result<Tensor> {
        self.check(len)?;
        let columns = ops::narrow(&ops::narrow(&self.columns, 0, 0, len)?, 1, 0, len)?;
        ops::reshape(&columns, len * len)
    }
}

/// The bias of one stack. Its first layer has the weights, and all its layers use them.
pub(super) struct RelativeBias {
    /// By head and by key less query, from `1 - n_positions` to `n_positions - 1`.
    by_distance: Tensor,
    positions: Positions,
}

impl RelativeBias {
    /// `bidirectional` is the encoder's; in the decoder later tokens are hidden from earlier ones.
    pub fn load(bidirectional: bool, positions: &Positions, vb: VarBuilder, config: &Config) -> Result<Self> {
        let (buckets, heads) = (config.relative_attention_num_buckets, config.num_heads);
        let init = Init::Randn { mean: 0., stdev: 1. };
        let weight = vb.get_with_hints((buckets, heads), "weight", init)?;
        let (max, max_distance) = (config.n_positions, config.relative_attention_max_distance);
        let until = if bidirectional { 2 * max - 1 } else { max };
        let ids = (0..until).map(|column| {
            let (distance, after) = (column.abs_diff(max - 1), column > max - 1);
            let (buckets, first) = match (bidirectional, after) {
                (true, true) => (buckets / 2, buckets / 2),
                (true, false) => (buckets / 2, 0),
                (false, _) => (buckets, 0),
            };
            (first + bucket(distance, buckets, max_distance)) as u32
        });
        let ids = Tensor::from_iter(ids, vb.device())?;
        let mut by_distance = weight.index_select(&ids, 0)?.t()?.contiguous()?;
        if !bidirectional {
            let later = Tensor::full(mask::hidden(vb.dtype()) as f32, (heads, max - 1), vb.device())?;
            by_distance = Tensor::cat(&[&by_distance, &later.to_dtype(vb.dtype())?], 1)?;
        }
        Ok(Self { by_distance, positions: positions.clone() })
    }

    /// Type of the scores.
    pub fn dtype(&self) -> DType {
        self.by_distance.dtype()
    }

    /// Between the first `len` positions, `(heads, 1, len, len)`.
    pub fn square(&self, len: usize) -> Result<Tensor> {
        let _scope = scope("position_bias");
        let bias = ops::index_select(&self.by_distance, &self.positions.square(len)?, 1)?;
        ops::reshape(&bias, (self.by_distance.dim(0)?, 1, len, len))
    }

    /// Of a query and a key that is so many tokens before it, in f32: `(heads, n_positions)`.
    pub fn backwards(&self) -> Result<Tensor> {
        let columns = (0..self.positions.max as u32).rev();
        self.by_distance.index_select(&Tensor::from_iter(columns, self.by_distance.device())?, 1)?.to_dtype(DType::F32)
    }
}

/// The bucket of a distance. The first half of the buckets hold one distance each, the others grow geometrically up to
/// `max_distance`, and the last holds all greater distances.
fn bucket(distance: usize, buckets: usize, max_distance: usize) -> usize {
    let exact = buckets / 2;
    if distance < exact {
        return distance;
    }
    // In f32 as in the original, so that a distance on an edge falls to the same side.
    let growth = (max_distance as f64 / exact as f64).ln() as f32;
    let steps = (distance as f32 / exact as f32).ln() / growth * (buckets - exact) as f32;
    (exact + steps as usize).min(buckets - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The distances at which a bucket starts, by transformers 5.23.
    #[test]
    fn buckets_start_where_the_original_has_them() {
        let starts = |buckets: usize| -> Vec<usize> {
            let bucket = |distance| bucket(distance, buckets, 128);
            (0..600).filter(|&d| d == 0 || bucket(d) != bucket(d - 1)).collect()
        };
        assert_eq!(starts(16), [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]);
        let exact: Vec<usize> = (0..16).collect();
        let rest = [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113];
        assert_eq!(starts(32), [exact.as_slice(), &rest].concat());
    }
}
