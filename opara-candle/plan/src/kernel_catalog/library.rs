//! Classifies kernels of libraries and of other frameworks by substrings of their names.

use super::Family::{self, *};
use super::{Class, Precision, Traffic};

/// Substrings of names, mangled or demangled, of cuBLAS, cuDNN, PyTorch, ONNX Runtime, candle and this library, in
/// lower case. The first match decides, so the order matters: fused attention contains matmuls, convolutions are
/// implemented as matmuls, and conversions are no convolutions.
const FAMILIES: &[(Family, &[&str])] = &[
    (Attention, &["fmha", "flash_", "sdpa", "efficient_attention", "flex_attention"]),
    (Layout, &["memcpy", "memset", "upload", "nchwtonhwc", "nhwctonchw", "converttensor", "tensortransform"]),
    (
        Layout,
        &["addpadding", "im2col", "col2im", "transpose", "catarray", "concat", "opara_cat", "_heads_", "direct_copy"],
    ),
    (Layout, &["slicekernel", "splitkernel", "padkernel", "expandkernel", "space_to_depth"]),
    (ElementWise, &["convert", "op_generic_tensor", "broadcastbias", "bias_act", "opara_chain"]),
    (Convolution, &["conv", "fprop", "dgrad", "wgrad", "winograd", "scudnn", "fft2d", "depthwise"]),
    (Pooling, &["pool"]),
    (Normalisation, &["layernorm", "layer_norm", "rmsnorm", "rms_norm", "rowwisemoments"]),
    (Normalisation, &["batch_norm", "batchnorm", "bn_fw", "group_norm", "groupnorm", "instancenorm"]),
    (Softmax, &["softmax"]),
    (Matmul, &["gemm", "gemv", "nvjet", "cutlass", "xmma", "cublas", "splitkreduce", "dot_kernel"]),
    (Matmul, &["matmul", "mul_mat", "reduce_1block"]),
    (Gather, &["gather", "scatter", "indexselect", "index_select", "index_elementwise", "index_kernel", "indexfunc"]),
    (Gather, &["embedding", "get_rows"]),
    (Reduction, &["reduce", "reduction", "argmax", "argmin", "cumsum", "scan_"]),
    (ElementWise, &["elementwise", "element_wise", "pointwise", "gelu", "relu", "silu", "sigmoid", "tanh", "arange"]),
];

/// Substrings of the names of matmul and convolution kernels.
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

/// Substrings that give a precision; the first match decides.
const PRECISIONS: &[(Precision, &[&str])] = &[
    (Precision::Tensor, &["tf32", "s1688gemm", "s1688fprop", "tensorop_s1688"]),
    (Precision::Half, &["f16", "h16816", "s16816", "hsh", "hhh", "half", "hgemm", "h884", "h1688"]),
];

/// Substrings of the names of kernels that sum the partial results of a K-split.
const SPLIT_REDUCTIONS: &[&str] = &["splitKreduce", "split_k"];

/// Is the kernel limited by arithmetic or by memory?
pub(super) fn class(name: &str) -> Class {
    // im2col is a copy, even if its name contains that of a matmul or convolution.
    let is_copy = name.starts_with("im2col");
    if has(name, COMPUTE) && !is_copy {
        Class::Compute
    } else {
        Class::Memory
    }
}

/// The precision of a matmul. candle's kernels also have their types in their names.
pub(super) fn precision(name: &str) -> Precision {
    PRECISIONS.iter().find(|(_, parts)| has(name, parts)).map_or(Precision::Single, |(precision, _)| *precision)
}

pub(super) fn traffic(name: &str) -> Traffic {
    if has(name, SPLIT_REDUCTIONS) {
        Traffic::SplitReduction
    } else {
        Traffic::Accesses
    }
}

/// The family of a kernel, by its name.
pub(super) fn family(name: &str) -> Family {
    let by_part = || FAMILIES.iter().find(|(_, parts)| has(name, parts)).map(|(family, _)| *family);
    of_triton(name).or_else(by_part).unwrap_or(Other)
}

/// The family of a Triton kernel of PyTorch's compiler, whose name is its kind and then all operators that it fuses.
fn of_triton(name: &str) -> Option<Family> {
    let (kind, operators) = name.strip_prefix("triton_")?.split_once('_')?;
    let fuses = |parts: &[&str]| parts.iter().any(|part| operators.contains(part));
    Some(match kind {
        "tem" if fuses(&["conv"]) => Convolution,
        "tem" if fuses(&["attention"]) => Attention,
        "tem" => Matmul,
        _ if fuses(&["_pool"]) => Pooling,
        // An RMS norm has no name of its own there.
        "per" | "red" if fuses(&["_norm", "rsqrt"]) => Normalisation,
        "per" | "red" if fuses(&["softmax"]) => Softmax,
        "per" | "red" => Reduction,
        _ if fuses(&["embedding", "index", "gather"]) => Gather,
        _ => ElementWise,
    })
}

/// Does the name contain one of these substrings?
fn has(name: &str, parts: &[&str]) -> bool {
    parts.iter().any(|part| name.contains(part))
}
