//! Modules of one kernel: the driver assembles all kernels of a module when it loads its PTX, and takes seconds for attention's.

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::RwLock;

/// How a kernel begins in what nvcc writes.
const ENTRY: &str = ".visible .entry ";

/// The PTX module `code` without other kernels than `name`; all of it if it has no such kernel. It is kept for later calls, for names of
/// kernels are unique in this library.
pub(in crate::cuda) fn only_kernel(name: &str, code: &str) -> Arc<str> {
    static ALONE: RwLock<Option<HashMap<String, Arc<str>>>> = RwLock::new(None);
    if let Some(text) = ALONE.read().as_ref().and_then(|known| known.get(name)) {
        return text.clone();
    }
    let Some(text) = without_others(name, code) else { return code.into() };
    ALONE.write().get_or_insert_default().entry_ref(name).or_insert_with(|| text.into()).clone()
}

/// `None` if there is no such kernel.
fn without_others(name: &str, code: &str) -> Option<String> {
    let (mut kept, mut rest, mut is_there) = (String::new(), code, false);
    while let Some(at) = rest.find(ENTRY) {
        let (before, entry) = rest.split_at(at);
        let (entry, after) = entry.split_at(end(entry)?);
        kept.push_str(before);
        if entry[ENTRY.len()..].strip_prefix(name).is_some_and(|rest| rest.starts_with('(')) {
            kept.push_str(entry);
            is_there = true;
        }
        rest = after;
    }
    kept.push_str(rest);
    is_there.then_some(kept)
}

/// Where a kernel ends: behind the brace that closes its first one.
fn end(entry: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, byte) in entry.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.checked_sub(1)?,
            _ => continue,
        }
        if depth == 0 {
            return Some(at + 1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use hashbrown::HashSet;

    use super::*;
    use opara_kernels::ptx;

    #[test]
    fn a_kernel_alone_keeps_what_kernels_share() {
        let head = ".version 9.0\n.target sm_90a\n.extern .func assert;\n";
        let [a, longer] = ["a", "a_2"].map(|name| {
            format!("// {name}\n.visible .entry {name}(\n.param .u64 p\n)\n.maxntid 1, 1, 1\n{{\n\t{{ mov {{%r1, %r2}}, %r3; }}\n}}\n")
        });
        let code = format!("{head}{a}.global .b8 text[2];\n{longer}");
        let of = |kept: &str| format!("{head}{kept}");
        assert_eq!(without_others("a", &code), Some(of(&format!("{a}.global .b8 text[2];\n// a_2\n\n"))));
        assert_eq!(without_others("a_2", &code), Some(of(&format!("// a\n\n.global .b8 text[2];\n{longer}"))));
        assert_eq!(without_others("b", &code), None);
        assert_eq!(without_others("a", &code[..code.len() - 3]), None, "its end is missing");
    }

    #[test]
    fn every_kernel_has_a_module_of_its_own() {
        let mut known = HashSet::new();
        for code in ptx::OPERATORS {
            let names = code.split(ENTRY).skip(1).filter_map(|entry| Some(entry.split_once('(')?.0));
            for name in names {
                assert!(known.insert(name), "{name} is in two modules");
                let text = only_kernel(name, code);
                assert_eq!(text.matches(ENTRY).count(), 1, "{name}");
                assert!(text.contains(&format!("{ENTRY}{name}(")), "{name}");
                assert!(text.contains(".target"), "{name}");
            }
        }
    }
}
