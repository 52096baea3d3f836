//! The types of GGUF's blocks of quantised elements.

use serde::{Deserialize, Serialize};

/// A type of blocks. The order is the encoding in trace files: add types at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "they are named as GGUF names them")]
pub enum BlockType {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Q8K,
}

impl BlockType {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Q8K,
    ];

    /// The name in names of kernels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Q8_0 => "q8_0",
            Self::Q2K => "q2_k",
            Self::Q3K => "q3_k",
            Self::Q4K => "q4_k",
            Self::Q5K => "q5_k",
            Self::Q6K => "q6_k",
            Self::Q8K => "q8_k",
        }
    }

    /// The type of this name, in which a `K` may be large.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|of| of.name().eq_ignore_ascii_case(name))
    }

    /// Elements of a block.
    pub fn elements(self) -> u64 {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K | Self::Q8K => 256,
        }
    }

    /// Bytes of a block.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::Q8K => 292,
        }
    }

    /// Bytes of a row with `elements` elements, if those are whole blocks.
    pub fn bytes_of_row(self, elements: u64) -> Option<u64> {
        let blocks = elements.is_multiple_of(self.elements()).then_some(elements / self.elements())?;
        blocks.checked_mul(self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_found_by_their_names() {
        for of in BlockType::ALL {
            assert_eq!(BlockType::of_name(of.name()), Some(of));
            assert_eq!(of.bytes_of_row(3 * of.elements()), Some(3 * of.bytes()));
            assert_eq!(of.bytes_of_row(of.elements() + 1), None);
        }
        assert_eq!((BlockType::of_name("q6_K"), BlockType::of_name("q8_1")), (Some(BlockType::Q6K), None));
    }
}
