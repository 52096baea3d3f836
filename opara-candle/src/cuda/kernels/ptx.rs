//! The PTX of candle's kernels and of this library's, as the build compiled it.

use std::collections::HashMap;

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

    /// Does the kernel wait for its predecessors?
    pub fn waits(&self) -> bool {
        self.code.contains(WAIT)
    }

    /// The code that may run before the kernel waits for its predecessors; `None` if it does not wait.
    pub fn before_wait(&self) -> Option<String> {
        self.waits().then(|| before_wait(self.code))
    }
}

const WAIT: &str = "griddepcontrol.wait";

/// The lines that are reached from the first one without a wait, on any way: a kernel may wait in several places.
fn before_wait(code: &str) -> String {
    let lines: Vec<&str> = code.lines().map(str::trim).collect();
    let labels = lines.iter().enumerate().filter_map(|(number, line)| Some((line.strip_suffix(':')?, number)));
    let labels: HashMap<&str, usize> = labels.collect();
    let mut is_reached = vec![false; lines.len()];
    let mut next = vec![0];
    while let Some(from) = next.pop() {
        for (number, line) in lines.iter().enumerate().skip(from) {
            if line.contains(WAIT) || std::mem::replace(&mut is_reached[number], true) {
                break;
            }
            let (is_conditional, instruction) = match line.strip_prefix('@') {
                Some(rest) => (true, rest.split_once(' ').map_or("", |(_, instruction)| instruction).trim()),
                None => (false, *line),
            };
            let words: Vec<&str> = instruction.trim_end_matches(';').split_whitespace().collect();
            let operation = words.first().copied().unwrap_or("");
            let is_branch = operation == "bra" || operation.starts_with("bra.");
            if is_branch {
                next.extend(words.last().and_then(|label| labels.get(label)));
            }
            // Where a table of branches leads to is not followed: all of the code may be next.
            if operation.starts_with("brx") {
                next.extend(0..lines.len());
            }
            if !is_conditional && (is_branch || matches!(operation, "ret" | "exit")) {
                break;
            }
        }
    }
    let reached = lines.iter().zip(is_reached).filter(|(_, is_reached)| *is_reached);
    reached.map(|(line, _)| *line).collect::<Vec<_>>().join("\n")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_early_on_every_way_that_does_not_wait() {
        let code = "{
            ld.param.u64 %rd1, [k_param_0];
            @%p1 bra $L__BB0_2;
            ld.global.u32 %r1, [%rd1];
            griddepcontrol.wait;
            st.global.u32 [%rd1], %r1;
            bra.uni $L__BB0_3;
        $L__BB0_2:
            ld.global.u32 %r2, [%rd1+4];
            griddepcontrol.wait;
            ld.global.u32 %r3, [%rd1+8];
        $L__BB0_3:
            @%p2 bra $L__BB0_2;
            ret;
        }";
        let early = before_wait(code);
        assert!(early.contains("%r1, [%rd1]") && early.contains("[%rd1+4]"), "{early}");
        assert!(!early.contains("[%rd1+8]") && !early.contains("st.global") && !early.contains("ret"), "{early}");
        // A way around the wait.
        let around = before_wait(&code.replace("bra $L__BB0_2;\n            ld", "bra $L__BB0_3;\n            ld"));
        assert!(around.contains("ret") && around.contains("[%rd1+4]"), "{around}");
    }
}
