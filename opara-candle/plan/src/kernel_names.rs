//! What the name of a kernel tells of it: the one table of names that the cost model uses.

use serde::{Deserialize, Serialize};

/// What limits an op.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Arithmetic: matrix products and convolutions.
    Compute,
    /// Memory: everything else.
    #[default]
    Memory,
}

impl Class {
    /// The class of the kernel with this name.
    pub fn of(name: &str) -> Self {
        /// Parts of the names of library kernels that do matrix products and convolutions.
        const COMPUTE: &[&str] = &[
            "gemm",
            "gemv",
            "nvjet",
            "cutlass",
            "xmma",
            "conv1d",
            "conv2d",
            "convolve",
            "winograd",
            "conv_transpose",
            "mul_mat",
        ];
        if has(name, COMPUTE) && !name.starts_with("im2col") {
            Class::Compute
        } else {
            Class::Memory
        }
    }
}

/// What a matrix product is computed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// Single precision.
    Single,
    /// Single precision, rounded for tensor cores (TF32).
    Tensor,
    /// Half precision, f16 or bf16.
    Half,
}

impl Precision {
    /// The precision of the kernel with this name.
    pub fn of(name: &str) -> Self {
        const TENSOR: &[&str] = &["tf32", "s1688gemm", "s1688fprop", "tensorop_s1688"];
        const HALF: &[&str] = &["f16", "h16816", "s16816", "hsh", "hhh", "half", "hgemm", "h884", "h1688"];
        match () {
            () if has(name, TENSOR) => Precision::Tensor,
            () if has(name, HALF) => Precision::Half,
            () => Precision::Single,
        }
    }

    /// Bytes of an element.
    pub fn bytes(self) -> f64 {
        if self == Precision::Half {
            2.
        } else {
            4.
        }
    }
}

/// Whether a kernel reads as many elements of a table as it writes, wherever these are.
pub fn is_gather(name: &str) -> bool {
    const STARTS: &[&str] = &["is_", "gather_"];
    STARTS.iter().any(|start| name.starts_with(start))
}

/// Whether a kernel adds up the partial results of a split product.
pub fn is_split_reduction(name: &str) -> bool {
    has(name, &["splitKreduce", "split_k"])
}

/// Whether one of these is part of a name.
fn has(name: &str, parts: &[&str]) -> bool {
    parts.iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_class_and_precision() {
        let told = |name| (Class::of(name), Precision::of(name));
        assert_eq!(told("ampere_sgemm_32x32"), (Class::Compute, Precision::Single));
        assert_eq!(told("cutlass_tensorop_s1688gemm"), (Class::Compute, Precision::Tensor));
        assert_eq!(told("nvjet_hsh_128x64"), (Class::Compute, Precision::Half));
        assert_eq!(told("im2col1d_f32"), (Class::Memory, Precision::Single));
        assert_eq!(told("im2col_conv2d_f16"), (Class::Memory, Precision::Half), "copies for a product");
    }

    #[test]
    fn names_tell_gathers_and_reductions() {
        assert!(is_gather("is_u32_f32") && is_gather("gather_i64_f32") && !is_gather("sum_is_f32"));
        assert!(is_split_reduction("void splitKreduce_kernel<32>") && !is_split_reduction("badd_f32"));
    }
}
