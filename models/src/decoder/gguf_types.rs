//! Types of tensors in GGUF files.

use candle::quantized::GgmlDType;

/// Types of tensors that are read, by their numbers in files.
const DTYPES: [(u32, &str, GgmlDType); 15] = [
    (0, "F32", GgmlDType::F32),
    (1, "F16", GgmlDType::F16),
    (30, "BF16", GgmlDType::BF16),
    (2, "Q4_0", GgmlDType::Q4_0),
    (3, "Q4_1", GgmlDType::Q4_1),
    (6, "Q5_0", GgmlDType::Q5_0),
    (7, "Q5_1", GgmlDType::Q5_1),
    (8, "Q8_0", GgmlDType::Q8_0),
    (9, "Q8_1", GgmlDType::Q8_1),
    (10, "Q2_K", GgmlDType::Q2K),
    (11, "Q3_K", GgmlDType::Q3K),
    (12, "Q4_K", GgmlDType::Q4K),
    (13, "Q5_K", GgmlDType::Q5K),
    (14, "Q6_K", GgmlDType::Q6K),
    (15, "Q8_K", GgmlDType::Q8K),
];

/// Types that are not read.
const OTHERS: [(u32, &str); 27] = [
    (4, "Q4_2"),
    (5, "Q4_3"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
    (39, "MXFP4"),
    (40, "NVFP4"),
    (41, "Q1_0"),
];

/// The type of this number, if it is read.
pub(super) fn dtype(kind: u32) -> Option<GgmlDType> {
    DTYPES.iter().find(|(number, ..)| *number == kind).map(|(.., dtype)| *dtype)
}

/// What a type that is not read is called.
pub(super) fn name_of(kind: u32) -> String {
    OTHERS
        .iter()
        .find(|(number, _)| *number == kind)
        .map_or_else(|| format!("number {kind}"), |(_, name)| (*name).into())
}

/// The types that are read.
pub(super) fn names() -> String {
    DTYPES.map(|(_, name, _)| name).join(", ")
}
