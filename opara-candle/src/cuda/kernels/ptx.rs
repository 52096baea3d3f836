//! The PTX of candle's kernels and of this library's, as the build compiled it.

use candle_kernels::{AFFINE, BINARY, CAST, CONV, FILL, INDEXING, QUANTIZED, REDUCE, SORT, TERNARY, UNARY};
use xxhash_rust::xxh3::xxh3_64;

use crate::cuda::driver::kernels::{only_kernel, ptx as ours};

/// A kernel.
pub(super) struct Entry {
    pub name: &'static str,
    /// The number of parameters.
    pub parameters: usize,
    /// Its PTX after the parameter list.
    pub code: &'static str,
    /// Its module's text, as the build compiled it.
    module: &'static str,
    /// Whether it is this library's, and loaded alone.
    is_own: bool,
}

impl Entry {
    /// The XXH3 hash of the text that it is loaded from.
    pub fn hash(&self) -> u64 {
        match self.is_own {
            true => xxh3_64(only_kernel(self.name, self.module).as_bytes()),
            false => xxh3_64(self.module.as_bytes()),
        }
    }

    /// The code before the kernel waits for its predecessors; `None` if it does not wait.
    pub fn before_wait(&self) -> Option<&'static str> {
        self.code.split_once("griddepcontrol.wait").map(|(before, _)| before)
    }
}

/// All of them.
pub(super) fn entries() -> impl Iterator<Item = Entry> {
    [AFFINE, BINARY, CAST, CONV, FILL, INDEXING, QUANTIZED, REDUCE, SORT, TERNARY, UNARY]
        .into_iter()
        .map(|module| (module.ptx(), false))
        .chain(ours::OPERATORS.iter().map(|text| (*text, true)))
        .flat_map(|(module, is_own)| module.split(".entry ").skip(1).map(move |entry| (module, is_own, entry)))
        .filter_map(|(module, is_own, entry)| {
            let (name, rest) = entry.split_once('(')?;
            let (parameters, code) = rest.split_once(')')?;
            Some(Entry { name, parameters: parameters.matches(".param").count(), code, module, is_own })
        })
}
