//! The kernels that candle ships, as its build compiled them.

use candle_kernels::{AFFINE, BINARY, CAST, CONV, FILL, INDEXING, QUANTIZED, REDUCE, SORT, TERNARY, UNARY};

/// Name, number of parameters and code of every kernel that candle loads by name.
pub(super) fn entries() -> impl Iterator<Item = (&'static str, usize, &'static str)> {
    [AFFINE, BINARY, CAST, CONV, FILL, INDEXING, QUANTIZED, REDUCE, SORT, TERNARY, UNARY]
        .into_iter()
        .flat_map(|module| module.ptx().split(".entry ").skip(1))
        .filter_map(|entry| {
            let (name, rest) = entry.split_once('(')?;
            let (parameters, code) = rest.split_once(')')?;
            Some((name, parameters.matches(".param").count(), code))
        })
}
