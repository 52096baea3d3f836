//! What each kernel reads and writes.
//!
//! candle's kernels are a closed set, and their sources (`candle-kernels/src/*.cu`, `candle-nn`'s custom ops) are the
//! truth behind this table. In all of them exactly one argument is written; every other pointer is only read.

use crate::trace::{Mode, Region};

use super::driver::Arguments;

/// Where a candle kernel writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// As many contiguous elements as the argument of this index says.
    Elements(usize),
    /// Rows of a `copy2d`.
    Rows,
    /// Somewhere between the pointer and the end of the buffer.
    Unknown,
}

/// A family of candle kernels: names begin with `prefix`, and the argument `output` is written.
struct Family {
    prefix: &'static str,
    output: usize,
    extent: Extent,
    /// Whether what was there before matters: accumulation, or a write in parts.
    reads_output: bool,
}

const fn writes(prefix: &'static str, output: usize, extent: Extent) -> Family {
    Family { prefix, output, extent, reads_output: false }
}

const fn updates(prefix: &'static str, output: usize) -> Family {
    Family { prefix, output, extent: Extent::Unknown, reads_output: true }
}

use Extent::{Elements, Rows, Unknown};

/// Longer prefixes come first where one begins with another.
const FAMILIES: &[Family] = &[
    // affine.cu: numel, dims, info, in, out, mul, add
    writes("affine_", 4, Elements(0)),
    // cast.cu: numel, dims, info, in, out
    writes("cast_", 4, Elements(0)),
    // fill.cu
    writes("fill_", 0, Elements(2)),
    writes("copy2d_", 1, Rows),
    updates("const_set_", 4),
    // ternary.cu: numel, dims, info, ids, t, f, out
    writes("where_", 6, Elements(0)),
    // indexing.cu
    writes("is_", 5, Elements(0)),
    writes("gather_", 3, Elements(0)),
    updates("ia_", 3),
    updates("sa_", 2),
    updates("s_", 2),
    // reduce.cu
    writes("softmax_", 1, Unknown),
    writes("rmsnorm_", 1, Unknown),
    writes("layernorm_", 1, Unknown),
    writes("rope_", 3, Unknown),
    writes("fast_", 5, Unknown),
    updates("sum_", 5),
    // sort.cu
    writes("asort_", 1, Unknown),
    // conv.cu
    writes("conv_transpose1d_", 9, Unknown),
    writes("conv_transpose2d_", 10, Unknown),
    writes("conv1d_", 8, Unknown),
    writes("conv2d_", 9, Unknown),
    writes("im2col1d_", 8, Elements(0)),
    writes("im2col_", 10, Elements(0)),
    updates("col2im1d_", 7),
    writes("avg_pool2d_", 7, Unknown),
    writes("max_pool2d_", 7, Unknown),
    writes("upsample_nearest2d_", 6, Unknown),
    writes("upsample_bilinear2d_", 9, Unknown),
    // binary.cu: numel, dims, info, lhs, rhs, out
    writes("badd_", 5, Elements(0)),
    writes("bsub_", 5, Elements(0)),
    writes("bmul_", 5, Elements(0)),
    writes("bdiv_", 5, Elements(0)),
    writes("bminimum_", 5, Elements(0)),
    writes("bmaximum_", 5, Elements(0)),
    writes("eq_", 5, Elements(0)),
    writes("ne_", 5, Elements(0)),
    writes("lt_", 5, Elements(0)),
    writes("le_", 5, Elements(0)),
    writes("gt_", 5, Elements(0)),
    writes("ge_", 5, Elements(0)),
    // unary.cu with a parameter: numel, dims, info, param, in, out
    writes("uelu_", 5, Elements(0)),
    writes("upowf_", 5, Elements(0)),
    // unary.cu: numel, dims, info, in, out
    writes("u", 4, Elements(0)),
];

/// Endings of candle's kernel names: the element type, the last one that of the output.
const DTYPES: &[(&str, u64)] = &[
    ("_f8_e4m3", 1),
    ("_bf16", 2),
    ("_f16", 2),
    ("_f32", 4),
    ("_f64", 8),
    ("_u8", 1),
    ("_i16", 2),
    ("_i32", 4),
    ("_u32", 4),
    ("_i64", 8),
];

/// Families that yield booleans, one byte each, whatever they compare.
const COMPARISONS: &[&str] = &["eq_", "ne_", "lt_", "le_", "gt_", "ge_"];

/// Parts of the names of cuBLAS's, cuBLASLt's and cuDNN's kernels.
const LIBRARY: &[&str] = &[
    "gemm",
    "gemv",
    "nvjet",
    "cutlass",
    "cublas",
    "cudnn",
    "xmma",
    "splitK",
    "splitk",
    "convolve",
    "winograd",
    "dot_kernel",
    "reduce_1Block",
    "nchwToNhwc",
    "nhwcToNchw",
    "implicit_",
    "computeOffsets",
    "fft",
    "sm80_",
    "sm90_",
    "sm100_",
];

/// Who wrote a kernel, and so what is known about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effects {
    /// One argument is written.
    Candle {
        /// Which.
        output: usize,
        /// What happens to it.
        mode: Mode,
    },
    /// A library's product or convolution: it reads its operands, and what it writes was allocated for it.
    Library,
    /// Nothing: it may read and write all that it points to.
    Unknown,
}

fn family(name: &str) -> Option<&'static Family> {
    // candle's names are plain C names that end in an element type; C++ names of libraries are mangled.
    let plain = DTYPES.iter().any(|(ending, _)| name.ends_with(ending)) && !name.starts_with('_');
    FAMILIES.iter().find(|f| plain && name.starts_with(f.prefix))
}

/// What is known about a kernel by its name and arguments.
pub(super) fn effects(name: &str, arguments: &Arguments) -> Effects {
    if let Some(family) = family(name) {
        // A null input stands for the output: the kernel works in place.
        let in_place = family.output > 0 && arguments.integer(family.output - 1) == Some(0);
        let mode = if family.reads_output || in_place { Mode::ReadWrite } else { Mode::Write };
        return Effects::Candle { output: family.output, mode };
    }
    if LIBRARY.iter().any(|part| name.contains(part)) {
        Effects::Library
    } else {
        Effects::Unknown
    }
}

/// The bytes that a candle kernel writes, from its output pointer at byte `delta` of a buffer of `bytes` bytes.
pub(super) fn written(name: &str, arguments: &Arguments, delta: u64, bytes: u64) -> Region {
    let rest = Region::contiguous(delta, bytes.saturating_sub(delta));
    let Some(family) = family(name) else { return rest };
    let element = if COMPARISONS.contains(&family.prefix) {
        Some(1)
    } else {
        DTYPES.iter().find(|(ending, _)| name.ends_with(ending)).map(|&(_, size)| size)
    };
    let region = match (family.extent, element) {
        (Extent::Elements(count), Some(size)) => {
            arguments.integer(count).map(|n| Region::contiguous(delta, n.saturating_mul(size)))
        }
        (Extent::Rows, Some(size)) => rows(arguments, delta, size),
        _ => None,
    };
    region.filter(|r| r.end() <= bytes).unwrap_or(rest)
}

/// `copy2d`: src, dst, rows, columns, source stride, target stride, in elements.
fn rows(arguments: &Arguments, delta: u64, size: u64) -> Option<Region> {
    let (rows, columns, stride) = (arguments.integer(2)?, arguments.integer(3)?, arguments.integer(5)?);
    Some(Region::rows(delta, columns * size, stride * size, rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_null_input_means_in_place() {
        let effects = |words: &[u64]| effects("urelu_f32", &Arguments::from_words(words));
        assert_eq!(effects(&[8, 1, 0, 0xa000, 0xb000]), Effects::Candle { output: 4, mode: Mode::Write });
        assert_eq!(effects(&[8, 1, 0, 0, 0xb000]), Effects::Candle { output: 4, mode: Mode::ReadWrite });
    }

    #[test]
    fn the_longest_family_wins() {
        let output = |name: &str| match effects(name, &Arguments::from_words(&[1; 12])) {
            Effects::Candle { output, .. } => Some(output),
            _ => None,
        };
        assert_eq!(output("conv_transpose2d_f16"), Some(10));
        assert_eq!(output("im2col1d_f32"), Some(8));
        assert_eq!(output("sa_u32_f32"), Some(2));
        assert_eq!(output("upowf_f64"), Some(5));
        assert_eq!(output("is_i64_bf16"), Some(5));
    }

    #[test]
    fn libraries_and_strangers() {
        let none = Arguments::from_words(&[]);
        assert_eq!(effects("nvjet_hsh_64x8_64x16_4x1_v_bz_TNN", &none), Effects::Library);
        assert_eq!(effects("_ZN8cublasLt19splitKreduce_kernelILi32EEEvv", &none), Effects::Library);
        assert_eq!(effects("my_kernel", &none), Effects::Unknown);
    }

    #[test]
    fn parts_of_a_concatenation_are_exact() {
        let copy = |delta: u64| written("copy2d_f32", &Arguments::from_words(&[0xa000, 0xb000, 2, 3, 3, 8]), delta, 64);
        assert_eq!(copy(0), Region::rows(0, 12, 32, 2));
        assert!(!copy(0).overlaps(&copy(12)));
        let gt = written("gt_f32", &Arguments::from_words(&[16, 1, 0, 1, 2, 3]), 0, 16);
        assert_eq!(gt, Region::contiguous(0, 16), "booleans take one byte");
    }
}
