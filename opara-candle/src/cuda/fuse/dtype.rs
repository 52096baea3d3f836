//! Element types of fused kernels.

/// The type of elements in memory, and of an op's arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cuda) enum Type {
    F32,
    F16,
    Bf16,
}

impl Type {
    /// The name in CUDA C++.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "float",
            Self::F16 => "__half",
            Self::Bf16 => "__nv_bfloat16",
        }
    }

    pub fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}
