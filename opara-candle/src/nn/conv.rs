//! Convolution layers.

use candle::{Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};

use super::batch_norm::BatchNorm;
use super::weights::{name_of, on_host};
use crate::ops::{self, ConvConfig};
use crate::trace::scope::scope;

/// Two-dimensional convolution with bias and activation; made by [`conv2d`].
#[derive(Debug, Clone)]
pub struct Conv2d {
    name: String,
    weight: Tensor,
    bias: Option<Tensor>,
    config: ConvConfig,
}

/// Loads `weight` of shape `(out, in / groups, kernel.0, kernel.1)` and `bias` of shape `(out)`.
///
/// # Errors
/// A tensor that is missing or has another shape.
pub fn conv2d(input: usize, out: usize, kernel: (usize, usize), config: ConvConfig, vb: VarBuilder) -> Result<Conv2d> {
    let bias = Some(vb.get_with_hints(out, "bias", Init::Const(0.))?);
    Ok(Conv2d { bias, ..conv2d_no_bias(input, out, kernel, config, vb)? })
}

/// Loads `weight` of shape `(out, in / groups, kernel.0, kernel.1)`.
///
/// # Errors
/// A tensor that is missing or has another shape.
pub fn conv2d_no_bias(
    input: usize,
    out: usize,
    kernel: (usize, usize),
    config: ConvConfig,
    vb: VarBuilder,
) -> Result<Conv2d> {
    let shape = (out, input / config.groups.max(1), kernel.0, kernel.1);
    let weight = vb.get_with_hints(shape, "weight", candle_nn::init::DEFAULT_KAIMING_NORMAL)?;
    let weight = ops::conv2d_weight(&weight, config.groups)?;
    Ok(Conv2d { name: name_of(&vb), weight, bias: None, config })
}

/// A convolution without bias followed by a batch norm, as one convolution with bias. Loads `weight` of shape
/// `(out, in / groups, kernel.0, kernel.1)`, and folds `norm` into it in f32.
///
/// ```
/// # use candle::{DType, Device::Cpu, Module, Tensor};
/// # use candle_nn::VarBuilder;
/// # use opara_candle::{nn, ops};
/// let vb = VarBuilder::zeros(DType::F32, &Cpu);
/// let norm = nn::batch_norm(8, 1e-5, vb.pp("bn"))?;
/// let config = ops::ConvConfig::default().padding(1);
/// let conv = nn::conv2d_norm(3, 8, (3, 3), config, &norm, vb.pp("conv"))?; // folded: one convolution with bias
/// let x = Tensor::zeros((1, 3, 32, 32), DType::F32, &Cpu)?; // (batch, channels, h, w)
/// assert_eq!(conv.forward(&x)?.dims(), [1, 8, 32, 32]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// A tensor that is missing or has another shape, or a batch norm whose number of channels is not `out`.
pub fn conv2d_norm(
    input: usize,
    out: usize,
    kernel: (usize, usize),
    config: ConvConfig,
    norm: &BatchNorm,
    vb: VarBuilder,
) -> Result<Conv2d> {
    let (dtype, device) = (vb.dtype(), vb.device().clone());
    let conv = conv2d_no_bias(input, out, kernel, config, on_host(vb))?;
    let weight = conv.weight.broadcast_mul(&norm.scale.reshape((out, 1, 1, 1))?)?;
    let load = |tensor: &Tensor| tensor.to_dtype(dtype)?.to_device(&device);
    let weight = ops::conv2d_weight(&load(&weight)?, config.groups)?;
    Ok(Conv2d { weight, bias: Some(load(&norm.shift)?), ..conv })
}

impl Conv2d {
    /// The same layer with another name, which labels its launches.
    pub fn named(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }
}

impl Module for Conv2d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = scope(&self.name);
        ops::conv2d(x, &self.weight, self.bias.as_ref(), &self.config)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use candle::{DType, Device, ModuleT};

    use super::super::batch_norm::batch_norm;
    use super::*;

    const CPU: Device = Device::Cpu;

    /// A grouped convolution of 4 channels to 6, and a batch normalisation of them.
    fn weights(dtype: DType) -> Result<VarBuilder<'static>> {
        let vector = |low: f32, high| Tensor::rand(low, high, 6, &CPU);
        let tensors = HashMap::from([
            ("conv.weight".to_string(), Tensor::randn(0f32, 1., (6, 2, 3, 1), &CPU)?),
            ("norm.weight".to_string(), vector(0.5, 2.)?),
            ("norm.bias".to_string(), vector(-1., 1.)?),
            ("norm.running_mean".to_string(), vector(-1., 1.)?),
            ("norm.running_var".to_string(), vector(0.01, 4.)?),
        ]);
        Ok(VarBuilder::from_tensors(tensors, dtype, &CPU))
    }

    fn config() -> ConvConfig {
        ConvConfig { groups: 2, ..Default::default() }
    }

    #[test]
    fn a_folded_batch_norm_equals_a_separate_one() -> Result<()> {
        let vb = weights(DType::F32)?;
        let x = Tensor::randn(0f32, 1., (2, 4, 5, 5), &CPU)?;
        let conv = conv2d_no_bias(4, 6, (3, 1), config(), vb.pp("conv"))?;
        let expected = candle_nn::batch_norm(6, 1e-3, vb.pp("norm"))?.forward_t(&conv.forward(&x)?, false)?;
        let norm = batch_norm(6, 1e-3, vb.pp("norm"))?;
        let folded = conv2d_norm(4, 6, (3, 1), config(), &norm, vb.pp("conv"))?;
        let error = (folded.forward(&x)? - &expected)?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(error < 1e-5, "{error}");
        Ok(())
    }

    #[test]
    fn folding_rounds_once() -> Result<()> {
        let vb = weights(DType::F32)?;
        let folded =
            |vb: &VarBuilder| conv2d_norm(4, 6, (3, 1), config(), &batch_norm(6, 1e-3, vb.pp("norm"))?, vb.pp("conv"));
        let (exact, rounded) = (folded(&vb)?, folded(&vb.clone().set_dtype(DType::F16))?);
        let bits = |tensor: &Tensor| tensor.to_dtype(DType::F16)?.flatten_all()?.to_vec1::<half::f16>();
        assert_eq!(rounded.weight.dtype(), DType::F16);
        assert_eq!(bits(&rounded.weight)?, bits(&exact.weight)?);
        Ok(())
    }

    #[test]
    fn a_batch_norm_of_other_channels_is_an_error() -> Result<()> {
        let vb = weights(DType::F32)?;
        let norm = batch_norm(6, 1e-3, vb.pp("norm"))?;
        assert!(norm.narrow(4, 3).is_err());
        for part in [norm.narrow(0, 1)?, norm.narrow(0, 3)?] {
            assert!(conv2d_norm(4, 6, (3, 1), config(), &part, vb.pp("conv")).is_err());
        }
        Ok(())
    }
}
