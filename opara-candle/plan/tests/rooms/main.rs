//! The order of the rooms: in every crate each file has a row in ARCHITECTURE.md, none imports what is in a row above its own,
//! and no files import each other in a circle.

mod imports;
mod source;
mod table;
mod tokens;
mod unsafe_code;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use imports::Imports;
use source::files;
use table::{told, Rooms};

/// The crates, each with its source folder.
const CRATES: [(&str, &str); 12] = [
    ("opara-candle", "opara-candle/src"),
    ("opara-interpose", "opara-candle/interpose/src"),
    ("opara-kernels", "opara-candle/kernels/src"),
    ("opara-plan", "opara-candle/plan/src"),
    ("opara-models", "models/src"),
    ("opara-weights", "weights/src"),
    ("opara-cli", "cli/src"),
    ("opara-peers", "benches/peers/src"),
    ("opara-serve", "serve/src"),
    ("opara-ballista", "cluster/ballista/src"),
    ("opara-fuzz", "fuzz/src"),
    ("opara-examples", "src"),
];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What breaks the order in a crate.
fn broken(page: &str, name: &str, folder: &str) -> io::Result<BTreeSet<String>> {
    let files = files(&repository().join(folder))?;
    let imports = Imports::of(&files);
    let Some(rooms) = Rooms::of(page, name) else { return Ok([format!("{name}: no table")].into()) };
    let mut found: BTreeSet<String> =
        rooms.unused(files.keys()).into_iter().map(|room| format!("{name}: no file in {room}")).collect();
    for (file, targets) in &imports.0 {
        let Some(row) = rooms.row(file) else {
            found.insert(format!("{name}: no row for {}", told(file)));
            continue;
        };
        for target in targets.iter().filter(|target| rooms.row(target).is_some_and(|other| other < row)) {
            found.insert(format!("{name}: {} -> {}", told(file), told(target)));
        }
    }
    for circle in imports.circles() {
        let names: Vec<_> = circle.into_iter().map(told).collect();
        found.insert(format!("{name}: circle {}", names.join(" ")));
    }
    Ok(found)
}

#[test]
fn imports_go_down() -> io::Result<()> {
    let page = std::fs::read_to_string(repository().join("ARCHITECTURE.md"))?;
    let mut found = BTreeSet::new();
    for (name, folder) in CRATES {
        found.extend(broken(&page, name, folder)?);
    }
    let list: String = found.iter().map(|line| format!("\n{line}")).collect();
    assert!(list.is_empty(), "move the noun down or the file up:{list}");
    Ok(())
}

#[test]
fn every_crate_is_in_the_list() -> io::Result<()> {
    let manifest = std::fs::read_to_string(repository().join("Cargo.toml"))?;
    let members = manifest.lines().find_map(|line| line.strip_prefix("members = [")).unwrap_or_default();
    let members: Vec<&str> = members.split('"').skip(1).step_by(2).collect();
    assert!(members.len() > 1, "{members:?}");
    for member in members {
        let folder = if member == "." { "src".into() } else { format!("{member}/src") };
        assert!(CRATES.iter().any(|(_, known)| *known == folder), "{folder}");
    }
    Ok(())
}

#[test]
fn the_plan_needs_neither_candle_nor_cuda_and_interposition_no_candle() -> io::Result<()> {
    for (folder, unknown) in
        [("plan", &["candle", "opara-candle", "cud"][..]), ("interpose", &["candle", "opara-candle"])]
    {
        let manifest = repository().join("opara-candle").join(folder).join("Cargo.toml");
        for line in std::fs::read_to_string(manifest)?.lines() {
            assert!(!unknown.iter().any(|name| line.starts_with(name)), "{folder}: {line}");
        }
    }
    Ok(())
}
