//! GGUF's blocks of quantised elements, as codes with a scale for each group, and a minimum for types that have one.
//!
//! The layouts of the blocks: <https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h>.

use candle::quantized::GgmlDType;
use candle::{bail, Result};
use half::f16;
use rayon::prelude::*;

/// Codes of this many bits, how many neighbours of a row share a scale, and whether they share a minimum, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Format {
    pub bits: usize,
    pub group: usize,
    pub has_minimum: bool,
    /// Codes are floats (e4m3), and a group's two numbers are the halves of a scale in f32.
    pub are_floats: bool,
}

impl Format {
    /// For Q4_0, Q4_1, Q4_K. Codes of 4 bits have no sign, so that Q4_0 needs a minimum.
    pub const FOUR_AFFINE: Self = Self { bits: 4, group: 32, has_minimum: true, are_floats: false };
    /// For Q5_0, Q8_0.
    pub const EIGHT: Self = Self { bits: 8, group: 32, has_minimum: false, are_floats: false };
    /// For Q5_1, Q5_K.
    pub const EIGHT_AFFINE: Self = Self { has_minimum: true, ..Self::EIGHT };
    /// For Q3_K, Q6_K.
    pub const SMALL_GROUPS: Self = Self { bits: 8, group: 16, has_minimum: false, are_floats: false };
    /// For Q2_K.
    pub const SMALL_AFFINE: Self = Self { has_minimum: true, ..Self::SMALL_GROUPS };
    /// For floats of 8 bits.
    pub const FLOATS: Self = Self { bits: 8, group: 128, has_minimum: false, are_floats: true };

    /// The smallest format that can hold the elements of both, which are no floats.
    pub fn with(self, other: Self) -> Self {
        Self {
            bits: self.bits.max(other.bits),
            group: self.group.min(other.group),
            has_minimum: self.has_minimum || other.has_minimum,
            are_floats: false,
        }
    }

    /// Numbers that a group has: a scale, and a minimum if there is one.
    pub fn numbers(self) -> usize {
        1 + usize::from(self.has_minimum || self.are_floats)
    }

    /// Bytes of so many elements: codes, and the groups' numbers in f16.
    pub fn bytes(self, elements: usize) -> usize {
        elements * self.bits / 8 + elements / self.group * self.numbers() * 2
    }
}

/// The format of a GGUF type, if its elements are a scale times a code, or that plus a minimum.
pub(super) fn format(dtype: GgmlDType) -> Option<Format> {
    match dtype {
        GgmlDType::Q4_0 | GgmlDType::Q4_1 | GgmlDType::Q4K => Some(Format::FOUR_AFFINE),
        GgmlDType::Q5_0 | GgmlDType::Q8_0 => Some(Format::EIGHT),
        GgmlDType::Q5_1 | GgmlDType::Q5K => Some(Format::EIGHT_AFFINE),
        GgmlDType::Q3K | GgmlDType::Q6K => Some(Format::SMALL_GROUPS),
        GgmlDType::Q2K => Some(Format::SMALL_AFFINE),
        _ => None,
    }
}

/// Codes, and the numbers of each group, as [`QuantizedWeight`](super::QuantizedWeight) has them.
pub(super) struct Groups {
    pub format: Format,
    pub codes: Vec<u8>,
    pub scales: Vec<f16>,
}

/// Blocks that a thread reads at a time.
const AT_ONCE: usize = 1 << 12;

impl Groups {
    /// Of the blocks of GGUF types, one weight after the other, in a format that can hold all. All threads read blocks.
    ///
    /// # Errors
    /// No weight, or a type without a [`format`]; bytes that are no whole blocks.
    pub fn of(weights: &[(GgmlDType, &[u8])]) -> Result<Self> {
        let mut all: Option<Format> = None;
        for (dtype, data) in weights {
            let Some(format) = format(*dtype) else { bail!("{dtype:?} has no codes for a quantised weight") };
            if !data.len().is_multiple_of(dtype.type_size()) {
                bail!("{} bytes are no whole blocks of {dtype:?}", data.len())
            }
            all = Some(all.map_or(format, |all| all.with(format)));
        }
        let Some(format) = all else { bail!("no quantised weights were given") };
        let parts = weights
            .iter()
            .flat_map(|(dtype, data)| data.chunks(AT_ONCE * dtype.type_size()).map(move |part| (*dtype, part)));
        let parts: Vec<(GgmlDType, &[u8])> = parts.collect();
        let parts: Vec<Self> =
            parts.into_par_iter().map(|(dtype, part)| Self::of_part(dtype, part).in_format(format)).collect();
        let (codes, scales): (Vec<Vec<u8>>, Vec<Vec<f16>>) =
            parts.into_iter().map(|part| (part.codes, part.scales)).unzip();
        Ok(Self { format, codes: codes.concat(), scales: scales.concat() })
    }

    /// Of whole blocks of a type that has a format.
    fn of_part(dtype: GgmlDType, data: &[u8]) -> Self {
        let format = format(dtype).unwrap_or(Format::FOUR_AFFINE);
        let elements = data.len() / dtype.type_size() * dtype.block_size();
        let mut to = Self {
            format,
            codes: Vec::with_capacity(elements * format.bits / 8),
            scales: Vec::with_capacity(elements / format.group * format.numbers()),
        };
        for block in data.chunks_exact(dtype.type_size()) {
            to.append(dtype, block);
        }
        to
    }

    /// The elements.
    pub fn elements(&self) -> Vec<f32> {
        let Format { bits, group, .. } = self.format;
        let mut elements = Vec::with_capacity(self.codes.len() * 8 / bits);
        for (codes, [scale, minimum]) in self.codes.chunks_exact(group * bits / 8).zip(self.of_groups()) {
            if self.format.are_floats {
                let scale = f32::from_bits(u32::from(scale.to_bits()) | u32::from(minimum.to_bits()) << 16);
                elements.extend(codes.iter().map(|&code| of_eight_bits(code) * scale));
                continue;
            }
            let [scale, minimum] = [scale.to_f32(), minimum.to_f32()];
            let element = |code: i8| f32::from(code).mul_add(scale, minimum);
            match bits {
                4 => elements.extend(four_bits(codes).map(element)),
                _ => elements.extend(codes.iter().map(|&code| element(code as i8))),
            }
        }
        elements
    }

    /// Scale and minimum of each group.
    fn of_groups(&self) -> impl Iterator<Item = [f16; 2]> + '_ {
        let of_group = |of: &[f16]| [of[0], of.get(1).copied().unwrap_or_default()];
        self.scales.chunks_exact(self.format.numbers()).map(of_group)
    }

    /// The same elements in a format that can hold them ([`Format::with`]).
    fn in_format(self, format: Format) -> Self {
        if self.format == format {
            return self;
        }
        let times = self.format.group / format.group;
        let of_group = |of: [f16; 2]| of[..format.numbers()].repeat(times);
        let scales = self.of_groups().flat_map(of_group).collect();
        let codes = match (self.format.bits, format.bits) {
            (4, 8) => self.codes.chunks_exact(16).flat_map(|codes| four_bits(codes).map(|code| code as u8)).collect(),
            _ => self.codes,
        };
        Self { format, codes, scales }
    }

    /// Appends the numbers of a group.
    fn group<const NUMBERS: usize>(&mut self, numbers: [f32; NUMBERS]) {
        self.scales.extend(numbers.map(f16::from_f32));
    }

    /// Appends one block.
    fn append(&mut self, dtype: GgmlDType, block: &[u8]) {
        let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
        match dtype {
            GgmlDType::Q4_0 => {
                self.group([half(0), -8. * half(0)]);
                self.codes.extend(&block[2..18]);
            }
            GgmlDType::Q4_1 => {
                self.group([half(0), half(2)]);
                self.codes.extend(&block[4..20]);
            }
            GgmlDType::Q5_0 => {
                self.group([half(0)]);
                self.codes.extend(five_bits(&block[2..22]).map(|code| code.wrapping_sub(16)));
            }
            GgmlDType::Q5_1 => {
                self.group([half(0), half(2)]);
                self.codes.extend(five_bits(&block[4..24]));
            }
            GgmlDType::Q8_0 => {
                self.group([half(0)]);
                self.codes.extend(&block[2..34]);
            }
            GgmlDType::Q4K => {
                for (group, [scale, minimum]) in scales_and_minima(&block[4..16]).into_iter().enumerate() {
                    self.group([half(0) * scale, -half(2) * minimum]);
                    // Two groups share 32 bytes: one has the lower halves.
                    let shift = group % 2 * 4;
                    let of_group = |at: usize| block[16 + group / 2 * 32 + at] >> shift & 15;
                    self.codes.extend((0..16).map(|at| of_group(at) | of_group(at + 16) << 4));
                }
            }
            GgmlDType::Q5K => {
                let (high, low) = (&block[16..48], &block[48..176]);
                for (group, [scale, minimum]) in scales_and_minima(&block[4..16]).into_iter().enumerate() {
                    self.group([half(0) * scale, -half(2) * minimum]);
                    let shift = group % 2 * 4;
                    let code = |at: usize| low[group / 2 * 32 + at] >> shift & 15 | (high[at] >> group & 1) << 4;
                    self.codes.extend((0..32).map(code));
                }
            }
            GgmlDType::Q2K => {
                for (group, &scale) in block[..16].iter().enumerate() {
                    self.group([half(80) * f32::from(scale & 15), -half(82) * f32::from(scale >> 4)]);
                    self.codes.extend((0..16).map(|at| two_bits(&block[16..80], group * 16 + at)));
                }
            }
            GgmlDType::Q3K => {
                let (high, low, scales) = (&block[..32], &block[32..96], &block[96..108]);
                for group in 0..16 {
                    let lower = scales[group % 8] >> (group / 8 * 4) & 15;
                    let scale = lower | (scales[8 + group % 4] >> (group / 4 * 2) & 3) << 4;
                    self.group([half(108) * (f32::from(scale) - 32.)]);
                    let code = |at: usize| {
                        let at = group * 16 + at;
                        let bit = high[at % 32] >> (at / 32) & 1;
                        (two_bits(low, at) | bit << 2).wrapping_sub(4)
                    };
                    self.codes.extend((0..16).map(code));
                }
            }
            // Q6_K, the only other type with a format.
            _ => {
                let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
                for (group, &scale) in scales.iter().enumerate() {
                    self.group([half(208) * f32::from(scale as i8)]);
                    // A half of the block has 128 elements in four quarters, which share bytes.
                    let (in_half, quarter) = (group / 8, group % 8 / 2);
                    let code = |at: usize| {
                        let at = group % 2 * 16 + at;
                        let low = low[in_half * 64 + quarter % 2 * 32 + at] >> (quarter / 2 * 4) & 15;
                        low | (high[in_half * 32 + at] >> (quarter * 2) & 3) << 4
                    };
                    self.codes.extend((0..16).map(|at| code(at).wrapping_sub(32)));
                }
            }
        }
    }
}

/// The two numbers of a group of floats.
pub(super) fn halves(scale: f32) -> [f16; 2] {
    let bits = scale.to_bits();
    [f16::from_bits(bits as u16), f16::from_bits((bits >> 16) as u16)]
}

/// The float that 8 bits stand for: exponent and mantissa have other places in one of 32 bits, whose exponents begin 120 lower.
fn of_eight_bits(code: u8) -> f32 {
    let [sign, others] = [u32::from(code & 0x80) << 24, u32::from(code & 0x7f) << 20];
    match others >> 20 {
        0x7f => f32::NAN,
        _ => f32::from_bits(sign | others) * 120f32.exp2(),
    }
}

/// 32 codes of 4 bits.
fn four_bits(codes: &[u8]) -> impl Iterator<Item = i8> + '_ {
    codes.iter().map(|code| (code & 15) as i8).chain(codes.iter().map(|code| (code >> 4) as i8))
}

/// One of 256 codes of 2 bits: 32 bytes have each 32 of them in a row, four times, in bits from the lowest on.
fn two_bits(of: &[u8], at: usize) -> u8 {
    of[at / 128 * 32 + at % 32] >> (at % 128 / 32 * 2) & 3
}

/// 32 codes of 5 bits: their highest bits in 4 bytes, then the others.
fn five_bits(of: &[u8]) -> impl Iterator<Item = u8> + '_ {
    let high = u32::from_le_bytes([of[0], of[1], of[2], of[3]]);
    four_bits(&of[4..20]).enumerate().map(move |(at, low)| low as u8 | ((high >> at & 1) << 4) as u8)
}

/// The eight scales and minima of a block of 256, of 6 bits each.
fn scales_and_minima(of: &[u8]) -> [[f32; 2]; 8] {
    std::array::from_fn(|group| {
        let [scale, minimum] = match group {
            0..4 => [of[group] & 63, of[group + 4] & 63],
            _ => [of[group + 4] & 15 | of[group - 4] >> 6 << 4, of[group + 4] >> 4 | of[group] >> 6 << 4],
        };
        [f32::from(scale), f32::from(minimum)]
    })
}

/// candle's types of blocks, in the order of [`BlockType::ALL`](opara_plan::trace::BlockType::ALL).
#[cfg(test)]
pub(crate) const TYPES: [GgmlDType; 10] = [
    GgmlDType::Q4_0,
    GgmlDType::Q4_1,
    GgmlDType::Q5_0,
    GgmlDType::Q5_1,
    GgmlDType::Q8_0,
    GgmlDType::Q2K,
    GgmlDType::Q3K,
    GgmlDType::Q4K,
    GgmlDType::Q5K,
    GgmlDType::Q6K,
];

#[cfg(test)]
mod tests {
    use candle::quantized::QTensor;
    use candle::{Device, Tensor};

    use super::*;

    fn quantized(dtype: GgmlDType) -> Result<QTensor> {
        QTensor::quantize(&Tensor::randn(0.3f32, 1., (6, 512), &Device::Cpu)?, dtype)
    }

    /// The largest difference of elements, in units of the largest element.
    fn difference(got: &[f32], expected: &[f32]) -> f32 {
        assert_eq!(got.len(), expected.len());
        let largest = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
        got.iter().zip(expected).fold(0f32, |most, (a, b)| most.max((a - b).abs())) / largest
    }

    #[test]
    fn elements_are_those_of_candle_up_to_the_rounding_of_scales() -> Result<()> {
        for dtype in TYPES {
            let of = quantized(dtype)?;
            let expected = of.dequantize(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?;
            let got = Groups::of(&[(dtype, &of.data()?)])?.elements();
            let difference = difference(&got, &expected);
            assert!(difference < 1e-3, "{dtype:?}: {difference}");
        }
        Ok(())
    }

    #[test]
    fn weights_of_several_types_keep_their_elements() -> Result<()> {
        for pair in TYPES.into_iter().flat_map(|first| TYPES.map(|second| [first, second])) {
            let of = |dtype| Ok((dtype, quantized(dtype)?.data()?.into_owned()));
            let data = pair.into_iter().map(of).collect::<Result<Vec<_>>>()?;
            let data: Vec<(GgmlDType, &[u8])> = data.iter().map(|(dtype, data)| (*dtype, &data[..])).collect();
            let parts = data.iter().map(|one| Groups::of(&[*one])).collect::<Result<Vec<_>>>()?;
            let expected: Vec<f32> = parts.iter().flat_map(Groups::elements).collect();
            let format = parts[0].format.with(parts[1].format);
            let joined = Groups::of(&data)?;
            assert_eq!((joined.format, joined.elements() == expected), (format, true), "{pair:?}");
            assert_eq!(joined.scales.len(), expected.len() / format.group * format.numbers(), "{pair:?}");
        }
        Ok(())
    }

    #[test]
    fn threads_read_blocks_in_their_order() -> Result<()> {
        let (dtype, times) = (GgmlDType::Q6K, AT_ONCE / 5);
        let weight = quantized(dtype)?;
        let once = Groups::of(&[(dtype, &weight.data()?)])?;
        let all = Groups::of(&[(dtype, &weight.data()?.repeat(times))])?;
        assert!(all.codes == once.codes.repeat(times) && all.scales == once.scales.repeat(times));
        Ok(())
    }

    #[test]
    fn floats_of_eight_bits_are_those_of_candle() -> Result<()> {
        let codes: Vec<u8> = (0..=255).collect();
        let expected = Tensor::from_raw_buffer(&codes, candle::DType::F8E4M3, &[256], &Device::Cpu)?;
        let expected = expected.to_dtype(candle::DType::F32)?.to_vec1::<f32>()?;
        let scales = [0.37f32, 1e-9].into_iter().flat_map(halves).collect();
        let got = Groups { format: Format::FLOATS, codes, scales }.elements();
        for (at, (got, expected)) in got.into_iter().zip(expected).enumerate() {
            let expected = expected * if at < 128 { 0.37 } else { 1e-9 };
            assert!(got == expected || got.is_nan() && expected.is_nan(), "code {at}: {got}, not {expected}");
        }
        Ok(())
    }

    #[test]
    fn bytes_that_are_no_blocks_are_errors() {
        assert!(Groups::of(&[(GgmlDType::Q4_0, &[0; 17])]).is_err());
        assert!(Groups::of(&[(GgmlDType::Q8K, &[])]).is_err());
        assert!(Groups::of(&[]).is_err());
    }
}
