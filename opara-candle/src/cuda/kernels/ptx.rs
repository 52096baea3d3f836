//! The PTX of candle's kernels and of this library's, as the build compiled it.

use candle_kernels::{AFFINE, BINARY, CAST, CONV, FILL, INDEXING, QUANTIZED, REDUCE, SORT, TERNARY, UNARY};
use xxhash_rust::xxh3::xxh3_64;

use crate::cuda::driver::kernels::ptx as ours;

/// A kernel.
pub(super) struct Entry {
    pub name: &'static str,
    /// The number of parameters.
    pub parameters: usize,
    /// Its PTX after the parameter list.
    pub code: &'static str,
    /// The XXH3 hash of its module's text.
    pub module: u64,
}

impl Entry {
    /// The code before the kernel waits for its predecessors; `None` if it does not wait.
    pub fn before_wait(&self) -> Option<&'static str> {
        self.code.split_once("griddepcontrol.wait").map(|(before, _)| before)
    }
}

/// All of them.
pub(super) fn entries() -> impl Iterator<Item = Entry> {
    [AFFINE, BINARY, CAST, CONV, FILL, INDEXING, QUANTIZED, REDUCE, SORT, TERNARY, UNARY]
        .into_iter()
        .map(|module| module.ptx())
        .chain(ours::OPERATORS.iter().copied())
        .map(|text| (xxh3_64(text.as_bytes()), text))
        .flat_map(|(module, text)| text.split(".entry ").skip(1).map(move |entry| (module, entry)))
        .filter_map(|(module, entry)| {
            let (name, rest) = entry.split_once('(')?;
            let (parameters, code) = rest.split_once(')')?;
            Some(Entry { name, parameters: parameters.matches(".param").count(), code, module })
        })
}
