//! The order of the modules: none imports one above it, and no files import each other in a circle.

mod imports;
mod unsafe_code;

use std::collections::BTreeSet;
use std::path::Path;

use imports::{Imports, Module};
use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;

/// The top-level modules of this crate from the bottom to the top; modules of one row are on one level.
const ROOMS: &[&[&str]] = &[
    &["kernel_catalog", "latency", "stopwatch", "disk_cache"],
    &["trace"],
    &["error"],
    &["graph", "device"],
    &["memory", "duration"],
    &["optimize", "profile"],
    &["fusion", "rewrite", "schedule", "timeline"],
    &["check"],
    &["prepared"],
    &["simulate"],
    &["tune"],
];

/// Files of `opara-candle` that still import each other in a circle. The list may only become shorter.
const CIRCLES: &[&[&str]] = &[];

fn source(folder: &str) -> std::io::Result<Imports> {
    Imports::of(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder))
}

/// Sets of modules that import each other.
fn circles(Imports(imports): &Imports) -> Vec<BTreeSet<String>> {
    let mut graph = DiGraphMap::<&Module, ()>::new();
    for (module, targets) in imports {
        graph.add_node(module);
        for target in targets {
            graph.add_edge(module, target, ());
        }
    }
    let found = tarjan_scc(&graph).into_iter().filter(|circle| circle.len() > 1);
    found.map(|circle| circle.into_iter().map(|module| module.join("::")).collect()).collect()
}

#[test]
fn no_module_imports_one_above_it() -> std::io::Result<()> {
    let imports = source("src")?;
    let row = |module: &Module| {
        let at = ROOMS.iter().position(|row| row.contains(&module[0].as_str()));
        at.unwrap_or_else(|| panic!("`{}` has no row in `ROOMS`", module[0]))
    };
    for (module, targets) in imports.0.iter().filter(|(module, _)| !module.is_empty()) {
        for target in targets {
            let below = row(target) < row(module) || target[0] == module[0];
            assert!(below, "`{}` imports `{}`, which is not below it", module.join("::"), target.join("::"));
        }
    }
    Ok(())
}

#[test]
fn no_files_import_each_other() -> std::io::Result<()> {
    assert_eq!(circles(&source("src")?), [] as [BTreeSet<String>; 0]);
    Ok(())
}

#[test]
fn the_circles_of_opara_candle_become_fewer() -> std::io::Result<()> {
    let known: Vec<BTreeSet<String>> =
        CIRCLES.iter().map(|circle| circle.iter().map(ToString::to_string).collect()).collect();
    let found = circles(&source("../src")?);
    for circle in &found {
        assert!(known.iter().any(|known| circle.is_subset(known)), "a new circle of imports: {circle:?}");
    }
    for module in known.iter().flatten() {
        assert!(
            found.iter().any(|circle| circle.contains(module)),
            "`{module}` is in no circle any more: take it out of `CIRCLES`"
        );
    }
    Ok(())
}

#[test]
fn this_crate_needs_neither_candle_nor_cuda() -> std::io::Result<()> {
    let manifest = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))?;
    for line in manifest.lines() {
        assert!(!["candle", "opara-candle", "cud"].iter().any(|name| line.starts_with(name)), "{line}");
    }
    Ok(())
}

#[test]
fn circles_are_found() {
    let module = |name: &str| vec![name.to_string()];
    let import = |from: &str, to: &[&str]| (module(from), to.iter().map(|to| module(to)).collect());
    let imports = Imports([import("a", &["b"]), import("b", &["c"]), import("c", &["b"])].into());
    assert_eq!(circles(&imports), [["b".to_string(), "c".into()].into()]);
}
