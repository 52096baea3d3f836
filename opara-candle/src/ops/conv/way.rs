//! Ways to compute a convolution, of which the fastest is taken.

use std::cell::OnceCell;

use candle::{bail, DType, Result, Tensor};

use crate::cuda::operator::choice::{self, Choices};
use crate::ops::space_to_depth::Deeper;
use crate::ops::{pad, subsample, ConvConfig, Padding};

/// A way to compute a convolution.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    /// As it is.
    Plain,
    /// As one of squares of pixels, which have more channels.
    Deep,
    /// As one of the pixels alone that its windows of one pixel reach.
    Subsampled,
}

impl choice::Implementation for Way {
    fn name(&self) -> String {
        format!("{self:?}")
    }
}

/// Dtype, operand, weight, configuration, and whether something is added to the result.
type Key = (DType, [usize; 4], [usize; 4], ConvConfig, bool);

/// The chosen way of each convolution that has several.
static WAYS: Choices<Key, Way> = Choices::new("way of a convolution");

/// A convolution in the fastest way. `run` computes one whose padding is equal at opposite edges.
///
/// # Errors
/// Shapes that do not agree, and errors of `run`.
pub(super) fn by_fastest_way(
    x: &Tensor,
    weight: &Tensor,
    config: &ConvConfig,
    is_added_to: bool,
    run: impl Fn(&Tensor, &Tensor, &ConvConfig) -> Result<Tensor>,
) -> Result<Tensor> {
    let deeper = Deeper::of(x, weight, config)?;
    // The weight is made once: in an executor, that is a constant.
    let deep_weight = OnceCell::new();
    let by = |way| match (way, &deeper) {
        (Way::Plain, _) if config.padding.is_symmetric() => run(x, weight, config),
        // Libraries pad opposite edges equally.
        (Way::Plain, _) => {
            run(&pad(x, config.padding)?, weight, &ConvConfig { padding: Padding::default(), ..*config })
        }
        (Way::Subsampled, _) => run(&subsample(x, 0, config.stride)?, weight, &ConvConfig { stride: 1, ..*config }),
        (Way::Deep, Some(deeper)) => {
            let made = match deep_weight.get() {
                Some(made) => made,
                None => {
                    let made = deeper.weight(weight)?;
                    deep_weight.get_or_init(|| made)
                }
            };
            run(&deeper.image(x)?, made, &deeper.config)
        }
        (Way::Deep, None) => bail!("{config:?} is not of few channels"),
    };
    let (of_x, of_weight) = (x.dims4()?.into(), weight.dims4()?.into());
    let [_, _, kh, kw] = of_weight;
    let skips_pixels = (kh, kw, config.groups, config.padding) == (1, 1, 1, Padding::default()) && config.stride > 1;
    let other = match (&deeper, skips_pixels) {
        (Some(_), _) => Way::Deep,
        (None, true) => Way::Subsampled,
        (None, false) => return by(Way::Plain),
    };
    let key = (x.dtype(), of_x, of_weight, *config, is_added_to);
    let ways = || Ok(vec![(other, 1.), (Way::Plain, 1.)]);
    WAYS.run(x.device().as_cuda_device()?, key, ways, || Ok(other), by)
}
