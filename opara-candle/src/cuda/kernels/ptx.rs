//! The PTX of candle's kernels and of this library's, as the build compiled it.

use candle_kernels::{AFFINE, BINARY, CAST, CONV, FILL, INDEXING, QUANTIZED, REDUCE, SORT, TERNARY, UNARY};
use xxhash_rust::xxh3::xxh3_64;

use crate::cuda::driver::kernels::{only_kernel, ptx as ours};
use opara_plan::kernel_catalog::ELEMENT_TYPES;

/// A kernel.
pub(super) struct Entry {
    pub name: &'static str,
    /// The number of parameters.
    pub parameters: usize,
    /// Their list, in PTX.
    list: &'static str,
    /// Its PTX after the parameter list.
    pub code: &'static str,
    /// Its module's text, as the build compiled it.
    pub module: &'static str,
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

    /// Bytes of each parameter: `.param .u64 name` has eight, `.param .align 8 .b8 name[512]` 512.
    pub fn widths(&self) -> Vec<usize> {
        let bytes = |parameter: &str| {
            let table = parameter.split_once('[').and_then(|(_, count)| count.split_once(']'));
            if let Some((count, _)) = table {
                return count.parse().ok();
            }
            let kind = parameter.split_whitespace().next()?.trim_start_matches('.');
            kind.trim_start_matches(char::is_alphabetic).parse::<usize>().ok().map(|bits| bits / 8)
        };
        self.list.split(".param").skip(1).map(|parameter| bytes(parameter).unwrap_or(0)).collect()
    }

    /// Bytes of an element of the type that the name ends in.
    pub fn element(&self) -> Option<u64> {
        ELEMENT_TYPES.iter().find(|(ending, _)| self.name.ends_with(ending)).map(|&(_, size)| size)
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
            let (list, code) = rest.split_once(')')?;
            Some(Entry { name, parameters: list.matches(".param").count(), list, code, module, is_own })
        })
}
