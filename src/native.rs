//! The models of `opara_models` by name, with inputs of the usual shapes.

use candle::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use clap::ValueEnum;
use opara_models::bert::{self, BertModel};
use opara_models::deepfm::{self, DeepFm};
use opara_models::googlenet::{self, GoogLeNet};
use opara_models::inception::{self, InceptionV3};
use opara_models::nasnet::{self, NasNet};
use opara_models::t5::{self, T5Encoder};
use opara_weights::{seeded, seeded_with_gain};

use crate::Model;

/// Tokens per text.
const TOKENS: usize = 128;

/// A model with one input, in the size used in papers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Native {
    /// BERT-base, 128 tokens.
    Bert,
    /// T5-small's encoder, 128 tokens.
    T5,
    /// DeepFM, 26 fields.
    Deepfm,
    /// GoogLeNet.
    Googlenet,
    /// Inception-v3.
    Inception,
    /// NASNet-A-Mobile.
    NasnetMobile,
    /// NASNet-A-Large.
    Nasnet,
}

impl Native {
    /// The name on command lines.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Factor for seeded convolution kernels ([`seeded_with_gain`](opara_weights::seeded_with_gain)), so that the
    /// output depends noticeably on the input.
    pub fn gain(self) -> f32 {
        match self {
            Native::Bert | Native::T5 | Native::Deepfm => 1.,
            Native::Googlenet | Native::Inception => std::f32::consts::SQRT_2,
            Native::NasnetMobile | Native::Nasnet => 1.2,
        }
    }

    /// Loads the model with seeded weights.
    ///
    /// # Errors
    /// An error of the device.
    pub fn load_seeded(self, seed: u64, dtype: DType, device: &Device) -> candle::Result<Model> {
        self.load(seeded_with_gain(seed, self.gain(), dtype, device))
    }

    /// Loads the model.
    ///
    /// # Errors
    /// Missing weights.
    pub fn load(self, vb: VarBuilder) -> candle::Result<Model> {
        Ok(match self {
            Native::Bert => Model::of(BertModel::load(vb, &bert::Config::base())?),
            Native::T5 => {
                let encoder = T5Encoder::load(vb, &t5::Config::small())?;
                Model::new(move |inputs| Ok(vec![encoder.forward(&inputs[0], None)?]))
            }
            Native::Deepfm => Model::of(DeepFm::load(vb, &deepfm::Config::criteo())?),
            Native::Googlenet => Model::of(GoogLeNet::load(vb, &googlenet::Config::default())?),
            Native::Inception => Model::of(InceptionV3::load(vb, &inception::Config::default())?),
            Native::NasnetMobile => Model::of(NasNet::load(vb, &nasnet::Config::mobile())?),
            Native::Nasnet => Model::of(NasNet::load(vb, &nasnet::Config::large())?),
        })
    }

    /// An input of `batch` items: ids, or images of this dtype with values in [-1, 1). It is the same at every call.
    ///
    /// # Errors
    /// An error of the device.
    pub fn example(self, batch: usize, dtype: DType, device: &Device) -> candle::Result<Tensor> {
        let ids = |columns: usize| {
            Tensor::from_iter((0..batch * columns).map(|i| (37 * i % 10_000) as u32), device)?.reshape((batch, columns))
        };
        let picture = |side: usize| {
            let values = seeded(0, DType::F32, &Device::Cpu).get(batch * 3 * side * side, "input")?;
            (values * 10.)?.reshape((batch, 3, side, side))?.to_dtype(dtype)?.to_device(device)
        };
        match self {
            Native::Bert | Native::T5 => ids(TOKENS),
            Native::Deepfm => ids(deepfm::Config::criteo().field_sizes.len()),
            Native::Googlenet | Native::NasnetMobile => picture(224),
            Native::Inception => picture(299),
            Native::Nasnet => picture(331),
        }
    }
}
