//! Weights generated from a seed.
//!
//! The values depend only on the seed, the tensor's full name and its shape. So the order of a model's requests does
//! not matter, and another framework can build the same model; `seeded.py` in this crate's folder does so with numpy.
//!
//! - The key of a tensor is the FNV-1a-64 hash of its name's UTF-8 bytes, xor the seed.
//! - Element `i`, in row-major order, is the SplitMix64 finalizer of `key + (i + 1) * 0x9E3779B97F4A7C15` (mod 2^64).
//!   Its top 24 bits over 2^23, minus 1, are an exact f32 `u` in [-1, 1).
//! - With two dimensions or more, the value is `u * sqrt(3 / fan_in)`, where `fan_in` is the product of all dimensions
//!   but the first. This variance keeps the magnitude of activations constant. The factor is rounded from f64 to f32.
//!   If the name ends in `Attention.q.weight` the factor is an eighth of that: these are T5's query weights, and T5
//!   does not scale its attention scores.
//! - With fewer dimensions, the value is `1 + 0.1 u` if the name ends in `.weight` or `.gamma`, `1 + 0.1 |u|` if it
//!   ends in `running_var`, else `0.1 u`. So scales are near one, variances are safe divisors, and shifts are near
//!   zero.
//! - Convolution kernels, which have four dimensions, are then multiplied by a gain: 1, or the argument of
//!   [`seeded_with_gain`].
//! - All of this is f32 arithmetic; other dtypes are rounded from it.

use candle::{DType, Device, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use rayon::prelude::*;

use crate::WeightsError;

/// Random weights of any name and shape, determined by `seed`.
///
/// Every requested tensor exists. A request without a shape is an error, because only the model knows the shape. So is
/// a request for a dtype that is not a float.
///
/// ```
/// # use candle::{DType, Device};
/// let vb = opara_weights::seeded(7, DType::F32, &Device::Cpu);
/// let layer = candle_nn::linear(64, 32, vb.pp("encoder.output"))?;
/// # Ok::<(), candle::Error>(())
/// ```
pub fn seeded(seed: u64, dtype: DType, device: &Device) -> VarBuilder<'static> {
    seeded_with_gain(seed, 1.0, dtype, device)
}

/// [`seeded`] with convolution kernels multiplied by `gain`.
///
/// A ReLU halves the variance of a convolution's output, so that after dozens of them the result no longer depends
/// noticeably on the input. A gain of the square root of 2 compensates for this; use it to compare results.
pub fn seeded_with_gain(seed: u64, gain: f32, dtype: DType, device: &Device) -> VarBuilder<'static> {
    VarBuilder::from_backend(Box::new(Seeded { seed, gain }), dtype, device.clone())
}

struct Seeded {
    seed: u64,
    /// Factor for tensors with four dimensions.
    gain: f32,
}

impl SimpleBackend for Seeded {
    fn get(&self, shape: Shape, name: &str, _: Init, dtype: DType, device: &Device) -> candle::Result<Tensor> {
        if !dtype.is_float() {
            return Err(WeightsError::SeededDtype { name: name.to_owned(), wanted: dtype }.into());
        }
        let key = fnv1a(name) ^ self.seed;
        let scale = Scale::of(name, shape.dims());
        let gain = if shape.rank() == 4 { self.gain } else { 1.0 };
        let value = |i| scale.apply(unit(key, i)) * gain;
        let values: Vec<f32> = (0..shape.elem_count() as u64).into_par_iter().map(value).collect();
        // Rounded before the transfer, so that all devices get the same bits.
        Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> candle::Result<Tensor> {
        Err(WeightsError::SeededShape { name: name.to_owned() }.into())
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

fn fnv1a(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3))
}

/// Element `i` of the sequence for `key`, in [-1, 1).
fn unit(key: u64, i: u64) -> f32 {
    let step = (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut x = key.wrapping_add(step);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^= x >> 31;
    (x >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// Maps `u` from the unit interval to a tensor's values: `base + gain * u`.
struct Scale {
    base: f32,
    gain: f32,
    /// Use `|u|` instead of `u`.
    positive: bool,
}

impl Scale {
    fn of(name: &str, dims: &[usize]) -> Self {
        let (base, gain, positive) = if dims.len() >= 2 {
            let fan_in = dims[1..].iter().product::<usize>();
            let share = if name.ends_with("Attention.q.weight") { 0.125 } else { 1.0 };
            (0.0, (3.0 / fan_in as f64).sqrt() as f32 * share, false)
        } else if name.ends_with(".weight") || name.ends_with(".gamma") {
            (1.0, 0.1, false)
        } else if name.ends_with("running_var") {
            (1.0, 0.1, true)
        } else {
            (0.0, 0.1, false)
        };
        Self { base, gain, positive }
    }

    fn apply(&self, u: f32) -> f32 {
        let u = if self.positive { u.abs() } else { u };
        self.base + self.gain * u
    }
}
