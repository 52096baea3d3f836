//! The kernels that candle ships, and ours, as the build compiled them.

use candle_kernels::{AFFINE, BINARY, CAST, CONV, FILL, INDEXING, QUANTIZED, REDUCE, SORT, TERNARY, UNARY};

use crate::cuda::ops;

/// Name, number of parameters and code of every kernel that is loaded by name.
pub(super) fn entries() -> impl Iterator<Item = (&'static str, usize, &'static str)> {
    [AFFINE, BINARY, CAST, CONV, FILL, INDEXING, QUANTIZED, REDUCE, SORT, TERNARY, UNARY]
        .into_iter()
        .map(|module| module.ptx())
        .chain([
            ops::ptx::ATTENTION,
            ops::ptx::CAT,
            ops::ptx::ELEMENT,
            ops::ptx::EMBEDDING,
            ops::ptx::NORM,
            ops::ptx::PRODUCT,
            ops::ptx::SOFTMAX,
            ops::ptx::SPACE_TO_DEPTH,
            ops::ptx::WINDOW,
        ])
        .flat_map(|module| module.split(".entry ").skip(1))
        .filter_map(|entry| {
            let (name, rest) = entry.split_once('(')?;
            let (parameters, code) = rest.split_once(')')?;
            Some((name, parameters.matches(".param").count(), code))
        })
}
