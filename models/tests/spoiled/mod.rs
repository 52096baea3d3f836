//! Models of seeded weights with tokens whose embedding is no number: what they give is NaN, in the cache, too.

use candle::{DType, Device, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use opara_models::decoder::{Config, Decoder};

struct Spoiled {
    of: VarBuilder<'static>,
    tokens: Vec<u32>,
}

impl SimpleBackend for Spoiled {
    fn get(&self, shape: Shape, name: &str, _: Init, _: DType, device: &Device) -> candle::Result<Tensor> {
        let whole = self.of.get(shape, name)?;
        if !name.ends_with("embed_tokens.weight") {
            return Ok(whole);
        }
        let (rows, columns) = whole.dims2()?;
        let is_spoiled = (0..rows as u32).map(|row| u8::from(self.tokens.contains(&row)));
        let is_spoiled = Tensor::from_iter(is_spoiled, device)?.reshape((rows, 1))?.broadcast_as((rows, columns))?;
        let nan = Tensor::full(f32::NAN, (rows, columns), device)?.to_dtype(whole.dtype())?;
        is_spoiled.contiguous()?.where_cond(&nan, &whole)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, _: &Device) -> candle::Result<Tensor> {
        self.of.get_unchecked_dtype(name, dtype)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.of.contains_tensor(name)
    }
}

/// A model in which these tokens are spoiled. Its head has a weight of its own, which is whole.
pub fn model(config: &Config, context: usize, tokens: &[u32], dtype: DType, device: &Device) -> Decoder {
    let config = Config { tied: false, ..config.clone() };
    let spoiled = Spoiled { of: opara_weights::seeded(5, dtype, device), tokens: tokens.to_vec() };
    let vb = VarBuilder::from_backend(Box::new(spoiled), dtype, device.clone());
    Decoder::load(vb, &config, context).expect("seeded weights fit")
}
