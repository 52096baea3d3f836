//! Weights of 8-bit floats as their files have them, for products that multiply with these.

use candle::{DType, Device, Tensor};
use candle_nn::VarBuilder;

/// A matrix `(rows, columns)` of 8-bit floats (e4m3), on the CPU.
#[derive(Debug, Clone)]
pub struct Floats {
    /// `(rows, columns)` of u8, the floats' bits.
    pub bytes: Tensor,
    /// `(rows, columns / GROUP)` of f32: what [`GROUP`](Self::GROUP) neighbours of a row are multiplied by.
    pub scales: Tensor,
}

impl Floats {
    /// Neighbours of a row that share a scale.
    pub const GROUP: usize = 128;

    /// The matrix `name` of a checkpoint that [keeps them](crate::Checkpoint::keep_floats). `None` for one of another type, whose rows
    /// [`GROUP`](Self::GROUP) does not divide, or whose neighbours have different scales, and for weights of other origin: `vb.get` reads
    /// it, and says what is wrong with it.
    pub fn of(vb: &VarBuilder, name: &str) -> Option<Self> {
        let vb = vb.clone().set_device(Device::Cpu);
        let part = |part: PartOfFloats, dtype| vb.get_unchecked_dtype(&format!("{name}{}", part.suffix()), dtype).ok();
        let scales = part(PartOfFloats::Scales, DType::F32)?;
        let bytes = part(PartOfFloats::Bytes, DType::U8)?;
        let (rows, columns) = bytes.dims2().ok()?;
        let is_whole = bytes.dtype() == DType::U8 && scales.dims() == [rows, columns / Self::GROUP];
        is_whole.then_some(Self { bytes, scales })
    }
}

/// What is asked for by the weight's name and a suffix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PartOfFloats {
    Bytes,
    Scales,
}

impl PartOfFloats {
    fn suffix(self) -> &'static str {
        match self {
            Self::Bytes => ":bytes",
            Self::Scales => ":scales",
        }
    }

    /// The weight's name and the part, where a name asks for one.
    pub(crate) fn in_name(name: &str) -> Option<(&str, Self)> {
        [Self::Bytes, Self::Scales].into_iter().find_map(|part| Some((name.strip_suffix(part.suffix())?, part)))
    }
}
