//! Checks README and book: links resolve, the table of contents is complete, code blocks are compiled (by
//! `src/book.rs`), and versions match the workspace.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{ensure, Context, Result};

/// Maximum lines of the README.
const README_LINES: usize = 120;

/// Digits of a short commit hash.
const HASH: usize = 7;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(root().join(path)).with_context(|| path.to_string())
}

/// Markdown files under a folder, relative to the repository.
fn pages(folder: &str) -> Result<BTreeSet<String>> {
    let mut pages = BTreeSet::new();
    for entry in std::fs::read_dir(root().join(folder))? {
        let (entry, name) = (entry.as_ref(), |e: &std::fs::DirEntry| e.file_name().to_string_lossy().into_owned());
        let entry = entry.map_err(|error| anyhow::anyhow!("{folder}: {error}"))?;
        let path = format!("{folder}/{}", name(entry));
        if entry.file_type()?.is_dir() {
            pages.append(&mut self::pages(&path)?);
        } else if path.ends_with(".md") {
            pages.insert(path);
        }
    }
    Ok(pages)
}

/// All pages of the documentation.
fn all_pages() -> Result<BTreeSet<String>> {
    let mut pages = pages("docs")?;
    let more = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "benches/results/README.md"];
    pages.extend(more.map(String::from));
    Ok(pages)
}

/// The lines outside of fenced code.
fn prose(text: &str) -> Vec<&str> {
    let mut is_code = false;
    let mut is_prose = |line: &&str| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    };
    text.lines().filter(|line| is_prose(line)).collect()
}

/// The link targets of a page.
fn links(text: &str) -> Vec<String> {
    // A link's text may contain a line break, its target may not.
    let prose = prose(text).join(" ");
    prose.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_string())).collect()
}

/// The anchors of a page's headings, as GitHub and mdBook generate them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).into_iter().filter_map(|line| line.strip_prefix('#'));
    let anchor = |heading: &str| {
        let letters = heading.trim_start_matches('#').trim().to_lowercase();
        letters
            .chars()
            .filter(|c| c.is_alphanumeric() || "-_ ".contains(*c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn links_resolve() -> Result<()> {
    for page in all_pages()? {
        for link in links(&read(&page)?) {
            if link.contains("://") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let folder = Path::new(&page).parent().unwrap_or(Path::new(""));
            let target = if path.is_empty() { PathBuf::from(&page) } else { folder.join(path) };
            ensure!(root().join(&target).exists(), "{page} links to {link}, which does not exist");
            // mdBook copies only the pages themselves.
            let is_inside = !page.starts_with("docs/") || link.matches("../").count() < page.matches('/').count();
            ensure!(is_inside, "{page} links to {link}, which is not in the book");
            if !anchor.is_empty() {
                let text = std::fs::read_to_string(root().join(&target))?;
                ensure!(anchors(&text).contains(anchor), "{page} links to {link}, which has no such heading");
            }
        }
    }
    Ok(())
}

#[test]
fn the_table_of_contents_lists_every_page() -> Result<()> {
    let listed: BTreeSet<String> = links(&read("docs/SUMMARY.md")?).iter().map(|link| format!("docs/{link}")).collect();
    let mut there = pages("docs")?;
    there.remove("docs/SUMMARY.md");
    assert_eq!(listed, there);
    Ok(())
}

#[test]
fn every_page_with_code_is_a_doctest() -> Result<()> {
    let compiled = read("src/book.rs")?;
    for page in all_pages()? {
        let text = read(&page)?;
        ensure!(!text.contains("```rust") || compiled.contains(&format!("\"{page}\"")), "{page} is not in src/book.rs");
        // A block without a language would be compiled or displayed as Rust.
        let opening = text.lines().filter(|line| line.starts_with("```")).step_by(2);
        for fence in opening {
            ensure!(fence.len() > 3, "{page} has a block of code without a language");
        }
    }
    Ok(())
}

#[test]
fn the_readme_is_short_and_names_no_commit() -> Result<()> {
    let readme = read("README.md")?;
    assert!(readme.lines().count() <= README_LINES);
    for page in all_pages()?.into_iter().filter(|page| !page.starts_with("docs/notes/")) {
        let text = read(&page)?;
        let is_hash = |word: &&str| {
            let is_hex = word.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
            word.len() == HASH
                && is_hex
                && word.bytes().any(|b| b.is_ascii_digit())
                && word.bytes().any(|b| b.is_ascii_alphabetic())
        };
        let hash = text.split(|c: char| !c.is_ascii_alphanumeric()).find(is_hash);
        ensure!(hash.is_none(), "{page} names the commit {hash:?}, which belongs to docs/notes");
    }
    Ok(())
}

#[test]
fn dependencies_in_pages_equal_the_workspaces() -> Result<()> {
    let manifest = read("Cargo.toml")?;
    for page in ["README.md", "docs/tutorial.md"] {
        let text = read(page)?;
        let version = |line: &str| line.split('"').find(|part| part.starts_with("0.")).map(str::to_string);
        let mut candle = 0;
        for line in text.lines().filter(|line| line.starts_with("candle") && line.contains(" = ")) {
            let name = line.split(' ').next().context("a dependency's name")?;
            let ours = manifest.lines().find(|l| l.starts_with(&format!("{name} = "))).context(name.to_string())?;
            assert_eq!(version(line), version(ours), "{page}: {line}");
            candle += 1;
        }
        assert_eq!(candle, 3, "{page} names candle, candle-nn and candle-transformers");
    }
    Ok(())
}

#[test]
fn the_page_of_errors_lists_every_variant() -> Result<()> {
    let source = read("opara-candle/src/error/mod.rs")?;
    let (_, body) = source.split_once("pub enum Error {").context("the error type")?;
    let variant = |line: &&str| line.starts_with("    ") && line[4..].starts_with(|c: char| c.is_ascii_uppercase());
    let name = |line: &str| line.trim().split(|c: char| !c.is_alphanumeric()).next().map(String::from);
    let variants: BTreeSet<String> =
        body.lines().take_while(|line| *line != "}").filter(variant).filter_map(name).collect();
    let page = read("docs/errors.md")?;
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let names = rows.filter_map(|row| row.split('|').nth(1)).flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let listed: BTreeSet<String> = names.filter(|name| !name.contains("::")).map(String::from).collect();
    assert_eq!(listed, variants);
    Ok(())
}

/// The names that `pub use` and `pub mod` of the library's root give, without features for tests.
fn exports(source: &str) -> BTreeSet<String> {
    let (mut names, mut is_hidden) = (BTreeSet::new(), false);
    for line in source.lines() {
        let exported = line.strip_prefix("pub use ").or_else(|| line.strip_prefix("pub mod "));
        let Some(exported) = exported else {
            is_hidden = line == "#[doc(hidden)]" || line == "#[cfg(feature = \"testing\")]";
            continue;
        };
        let list = exported.trim_end_matches(';').rsplit("::").next().unwrap_or_default();
        let name = |item: &str| item.rsplit(' ').next().unwrap_or_default().to_string();
        names.extend(list.trim_matches(['{', '}']).split(", ").map(name).filter(|_| !is_hidden));
        is_hidden = false;
    }
    names
}

#[test]
fn the_page_of_the_api_lists_every_item() -> Result<()> {
    let exported = exports(&read("opara-candle/src/lib.rs")?);
    assert!(
        exported.contains("Builder") && exported.contains("plan") && exported.contains("StateError"),
        "{exported:?}"
    );
    let page = read("docs/api.md")?;
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let names = rows.filter_map(|row| row.split('|').nth(1)).flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let listed: BTreeSet<String> =
        names.filter(|name| !name.contains("build_") && !name.contains("::")).map(String::from).collect();
    assert_eq!(listed, exported);
    Ok(())
}

#[test]
fn the_page_of_rewriting_lists_every_rule_in_order() -> Result<()> {
    const FOLDER: &str = "opara-candle/plan/src/rewrite/rules";
    let source = read(&format!("{FOLDER}/mod.rs"))?;
    let (tables, _) = source.rsplit_once("::RULES").context("the tables of rules")?;
    let tables = tables.split("::RULES").filter_map(|before| before.rsplit(['&', '[', ' ']).next());
    let tables = tables.map(|table| read(&format!("{FOLDER}/{table}.rs"))).collect::<Result<String>>()?;
    let rules = tables.split("rule!(\"").skip(1).filter_map(|rest| Some(rest.split_once('"')?.0));
    let page = read("docs/concepts/rewriting.md")?;
    let (_, table) = page.split_once("| rule | pattern").context("the table of rules")?;
    let rows = table.lines().skip(2).map_while(|row| row.strip_prefix("| `"));
    assert!(rows.filter_map(|row| Some(row.split_once('`')?.0)).eq(rules));
    Ok(())
}

#[test]
fn the_glossary_is_short_and_in_order() -> Result<()> {
    const WORDS: usize = 15;
    let page = read("docs/glossary.md")?;
    let words: Vec<&str> = page.lines().skip_while(|line| !line.starts_with("|---")).skip(1).collect();
    assert!(words.len() <= WORDS && words.is_sorted());
    Ok(())
}

/// A cell of a table: a number with these decimals, or none.
fn cell(row: &serde_json::Value, key: &str, decimals: fn(f64) -> usize) -> String {
    row[key].as_f64().map_or_else(|| "–".into(), |number| format!("{number:.*}", decimals(number)))
}

#[test]
fn the_page_of_unchanged_models_has_the_results() -> Result<()> {
    let page = read("docs/notes/unchanged.md")?;
    for file in ["unchanged", "unseen"] {
        let results: serde_json::Value = serde_json::from_str(&read(&format!("benches/results/{file}.json"))?)?;
        let of_all = results["device"].as_str().context("a device")?;
        for row in results["rows"].as_array().context("rows")? {
            expect_row(&page, of_all, row)?;
        }
    }
    Ok(())
}

/// The page has this row of results; without a device of its own it is `of_all`'s.
fn expect_row(page: &str, of_all: &str, row: &serde_json::Value) -> Result<()> {
    let columns: &[&str] = match row["native_us"].is_null() {
        true => &["exact_us", "accurate_us", "torch_graph_us", "torch_channels_last_us", "torch_compile_us"],
        false => &["accurate_us", "native_us"],
    };
    let times: Vec<String> = columns.iter().map(|key| cell(row, key, |_| 0)).collect();
    let errors = ["error", "candle_error"].map(|key| cell(row, key, |error| if error < 1000. { 2 } else { 0 }));
    let build = cell(row, "accurate_build_ms", |_| 0);
    let gpu = if row["device"].as_str().unwrap_or(of_all).contains("H200") { "H200" } else { "H100" };
    let name = row["model"].as_str().context("a model")?;
    let start = format!("{name} | {} | {}", row["dtype"].as_str().context("a type")?, row["batch"]);
    let expected = match row["native_us"].is_null() {
        true => format!("| {start} | {gpu} | {} | {} | {build} |", times.join(" | "), errors.join(" | ")),
        false => format!("| {} | ", times.join(" | ")),
    };
    ensure!(page.contains(&expected), "docs/notes/unchanged.md lacks the row {expected}");
    Ok(())
}
