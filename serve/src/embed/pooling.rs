//! From one vector a token to one vector a text.

use candle::{DType, Tensor, D};
use opara_candle::ops;
use serde::Deserialize;

use super::file_fields::FileFields;
use super::Result;

/// How the vectors of a text's tokens become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolingMode {
    /// The first token's.
    Cls,
    /// The largest value of each element.
    Max,
    /// The mean.
    Mean,
    /// The sum by the square root of the number of tokens.
    MeanSqrtLen,
    /// The mean, where the token at place `n`, counted from 1, counts `n` times.
    WeightedMean,
    /// The last token's.
    LastToken,
}

/// Names of the modes, as version 6 of sentence-transformers and as earlier versions write them. Where earlier versions name several,
/// they stand in this order.
const MODES: [(&str, &str, PoolingMode); 6] = [
    ("cls", "pooling_mode_cls_token", PoolingMode::Cls),
    ("max", "pooling_mode_max_tokens", PoolingMode::Max),
    ("mean", "pooling_mode_mean_tokens", PoolingMode::Mean),
    ("mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens", PoolingMode::MeanSqrtLen),
    ("weightedmean", "pooling_mode_weightedmean_tokens", PoolingMode::WeightedMean),
    ("lasttoken", "pooling_mode_lasttoken", PoolingMode::LastToken),
];

/// The module `Pooling`: the vectors of its modes side by side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pooling {
    /// At least one.
    pub modes: Vec<PoolingMode>,
    /// Whether the tokens of a prompt are pooled with those of the text.
    pub has_prompt: bool,
}

impl PoolingMode {
    /// Its name in configurations.
    pub fn name(self) -> &'static str {
        MODES.iter().find(|(.., mode)| *mode == self).map_or("mean", |(name, ..)| name)
    }
}

impl From<PoolingMode> for Pooling {
    fn from(mode: PoolingMode) -> Self {
        Self { modes: vec![mode], has_prompt: true }
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a mode's name or a list of names")]
enum Names {
    One(String),
    Several(Vec<String>),
}

impl Pooling {
    /// The module of this configuration, over vectors of `width` elements; `default` where it names no mode.
    pub(super) fn of(fields: FileFields, width: usize, default: PoolingMode) -> Result<Self> {
        for name in ["embedding_dimension", "word_embedding_dimension"] {
            if let Some(other) = fields.take::<usize>(name)?.filter(|&other| other != width) {
                return Err(fields.wrong(format!("`{name}` is {other}, and the model's vectors have {width} elements")));
            }
        }
        let mut flagged = Vec::new();
        for (_, flag, mode) in MODES {
            if fields.take(flag)?.unwrap_or(false) {
                flagged.push(mode);
            }
        }
        let named = match fields.take("pooling_mode")? {
            None => None,
            Some(Names::One(name)) => Some(vec![name]),
            Some(Names::Several(names)) => Some(names),
        };
        let mode = |name: String| {
            let known = MODES.iter().find(|(known, ..)| *known == name).map(|&(.., mode)| mode);
            let names = MODES.map(|(name, ..)| name).join(", ");
            known.ok_or_else(|| fields.unsupported(&format!("`pooling_mode` {name:?}"), &format!("{names} are")))
        };
        let modes = match named {
            Some(names) => names.into_iter().map(mode).collect::<Result<_>>()?,
            None if flagged.is_empty() => vec![default],
            None => flagged,
        };
        if modes.is_empty() {
            return Err(fields.wrong("`pooling_mode` names no mode".into()));
        }
        let has_prompt = fields.take("include_prompt")?.unwrap_or(true);
        fields.finish(&[])?;
        Ok(Self { modes, has_prompt })
    }

    /// `(batch, modes x width)` of f32, of hidden states `(batch, tokens, width)` and a mask `(batch, tokens)` of integers. The mask is
    /// one for the tokens that are pooled, which stand side by side, and zero for others.
    pub(super) fn apply(&self, hidden: &Tensor, mask: &Tensor) -> candle::Result<Tensor> {
        let _scope = opara_candle::scope("pooling");
        let pooled = self.modes.iter().map(|mode| mode.apply(hidden, mask, self.has_prompt));
        let pooled = pooled.collect::<candle::Result<Vec<_>>>()?;
        match &pooled[..] {
            [one] => Ok(one.clone()),
            several => ops::cat(&several.iter().collect::<Vec<_>>(), 1),
        }
    }

    /// Whether each of its vectors is the mean of a range of a text's tokens.
    pub(super) fn is_of_ranges(&self) -> bool {
        self.modes.iter().all(|mode| mode.range(0, 1).is_some())
    }
}

impl PoolingMode {
    /// The tokens whose mean it is, of those from `first` to before `end`; `None` if it is no mean of neighbours.
    pub(super) fn range(self, first: usize, end: usize) -> Option<[usize; 2]> {
        match self {
            Self::Cls => Some([first, first + 1]),
            Self::LastToken => Some([end - 1, end]),
            Self::Mean => Some([first, end]),
            Self::Max | Self::MeanSqrtLen | Self::WeightedMean => None,
        }
    }

    /// `starts` says that the mask's first place is one in every row.
    pub(super) fn apply(self, hidden: &Tensor, mask: &Tensor, starts: bool) -> candle::Result<Tensor> {
        let (_, tokens, _) = hidden.dims3()?;
        if self == Self::Cls && starts {
            let first = ops::to_dtype(&ops::contiguous(&ops::narrow(hidden, 1, 0, 1)?)?, DType::F32)?;
            return ops::squeeze(&first, 1);
        }
        let hidden = ops::to_dtype(hidden, DType::F32)?;
        if self == Self::Max {
            return ops::custom("masked_max", &[&hidden, mask], |x| {
                let mask = x[1].unsqueeze(D::Minus1)?.broadcast_as(x[0].shape())?;
                let least = x[0].zeros_like()?.affine(1., f64::NEG_INFINITY)?;
                mask.where_cond(x[0], &least)?.max(1)
            });
        }
        let mask = ops::to_dtype(mask, DType::F32)?;
        let sum = |x: &Tensor| ops::sum_keepdim(x, 1);
        let weights = match self {
            Self::MeanSqrtLen => ops::div(&mask, &ops::custom("sqrt", &[&sum(&mask)?], |x| x[0].sqrt())?)?,
            Self::WeightedMean => {
                let placed = ops::mul(&mask, &places("places", tokens, mask.device(), |place| place + 1)?)?;
                ops::div(&placed, &sum(&placed)?)?
            }
            Self::LastToken => {
                highest(&ops::mul(&mask, &places("places", tokens, mask.device(), |place| place + 1)?)?)?
            }
            Self::Cls => {
                let from_the_end = places("places_from_the_end", tokens, mask.device(), move |place| tokens - place)?;
                highest(&ops::mul(&mask, &from_the_end)?)?
            }
            Self::Mean | Self::Max => ops::div(&mask, &sum(&mask)?)?,
        };
        ops::squeeze(&ops::matmul(&ops::unsqueeze(&weights, 1)?, &hidden)?, 1)
    }
}

/// A row of numbers, one for each place of a text.
fn places(
    name: &'static str,
    tokens: usize,
    device: &candle::Device,
    number: impl Fn(usize) -> usize + Send + Sync + 'static,
) -> candle::Result<Tensor> {
    let device = device.clone();
    ops::constant(name, move || {
        Tensor::from_iter((0..tokens).map(|place| number(place) as f32), &device)?.reshape((1, tokens))
    })
}

/// One at the highest of a row's whole numbers, zero elsewhere.
fn highest(numbers: &Tensor) -> candle::Result<Tensor> {
    ops::custom("highest", &[numbers], |x| x[0].broadcast_sub(&x[0].max_keepdim(1)?)?.affine(1., 1.)?.relu())
}
