//! The files of a crate, each with its names and the paths that it says.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use crate::tokens::{is_name, tokens, without_tests};

/// A module by its path from the root of its crate; empty for the root.
pub type Module = Vec<String>;

/// A path that a file says: `crate::a::B`.
pub type Names = Vec<String>;

/// A name that `use` brings in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// Whether it is handed on.
    pub is_public: bool,
    /// What it is called here; `*` where all names are brought in.
    pub alias: String,
    pub path: Names,
}

/// What a file says.
#[derive(Debug, Default)]
pub struct Said {
    pub uses: Vec<Use>,
    /// Paths outside of `use`.
    pub paths: BTreeSet<Names>,
    /// Names by themselves outside of `use`, such as those of types.
    pub names: BTreeSet<String>,
    /// Names that it defines.
    pub defined: BTreeSet<String>,
    /// Macros that it defines for the modules within it.
    pub macros: BTreeSet<String>,
    /// Macros that it calls by name.
    pub calls: BTreeSet<String>,
}

/// The files of a crate by their modules.
pub type Files = BTreeMap<Module, Said>;

/// Reads a source folder without its tests. A `main.rs` beside a `lib.rs` is the module `main`.
pub fn files(folder: &Path) -> io::Result<Files> {
    let mut texts = BTreeMap::new();
    read(folder, &Module::new(), &mut texts)?;
    let tokens: BTreeMap<&Module, Vec<&str>> = texts.iter().map(|(module, text)| (module, tokens(text))).collect();
    let mut tests = BTreeSet::new();
    let mut files = Files::new();
    for (module, tokens) in &tokens {
        let (kept, modules) = without_tests(tokens);
        tests.extend(modules.into_iter().map(|name| [module.as_slice(), &[name.to_owned()]].concat()));
        files.insert((*module).clone(), Said::of(&kept));
    }
    files.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
    Ok(files)
}

/// The text of each module below a folder.
fn read(folder: &Path, module: &Module, texts: &mut BTreeMap<Module, String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let inside = [module.as_slice(), std::slice::from_ref(&name)].concat();
        if path.is_dir() {
            read(&path, &inside, texts)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let is_root = match name.as_str() {
                "mod" | "lib" => true,
                "main" => !folder.join("lib.rs").exists(),
                _ => false,
            };
            texts.insert(if is_root { module.clone() } else { inside }, fs::read_to_string(path)?);
        }
    }
    Ok(())
}

impl Said {
    pub fn of(tokens: &[&str]) -> Self {
        let mut said = Self::default();
        // Modules within the file, by the number of brackets that are open behind each.
        let (mut depth, mut inline) = (0, Vec::new());
        let mut at = 0;
        while let Some(&token) = tokens.get(at) {
            let before = at.checked_sub(1).map_or("", |before| tokens[before]);
            let after = tokens.get(at + 1).copied().unwrap_or_default();
            match token {
                "{" => depth += 1,
                "}" => {
                    inline.retain(|inside| *inside < depth);
                    depth -= 1;
                }
                "mod" if tokens.get(at + 2) == Some(&"{") => inline.push(depth + 1),
                "use" if before != "::" && (is_name(after) || after == "::" || after == "{") => {
                    let mut found = Vec::new();
                    let end = tree(tokens, at + 1, Vec::new(), &mut found);
                    let is_public = before == "pub" || before == ")";
                    said.uses.extend(found.into_iter().map(|(path, alias)| Use {
                        is_public,
                        alias,
                        path: lifted(path, inline.len()),
                    }));
                    at = end;
                    continue;
                }
                _ => {}
            }
            if matches!(before, "fn" | "struct" | "enum" | "union" | "trait" | "type" | "const" | "static" | "mod") {
                said.defined.insert(token.into());
            }
            if depth == 0 && before == "!" && at > 1 && tokens[at - 2] == "macro_rules" {
                said.macros.insert(token.into());
            }
            if is_name(token) && !matches!(before, "::" | ".") {
                match after {
                    "::" => {
                        let (path, end) = path(tokens, at);
                        said.paths.insert(lifted(path, inline.len()));
                        at = end;
                        continue;
                    }
                    "!" => drop(said.calls.insert(token.into())),
                    _ if before == "mod" => {}
                    _ => drop(said.names.insert(token.into())),
                }
            }
            at += 1;
        }
        said
    }
}

/// The path that begins at a token, and the token behind it.
fn path(tokens: &[&str], mut at: usize) -> (Names, usize) {
    let mut names = vec![tokens[at].to_owned()];
    at += 1;
    while tokens.get(at) == Some(&"::") && tokens.get(at + 1).is_some_and(|token| is_name(token)) {
        names.push(tokens[at + 1].into());
        at += 2;
    }
    (names, at)
}

/// Reads the tree of a `use` at a token: each path with what it is called. Returns the token behind it.
fn tree(tokens: &[&str], mut at: usize, mut names: Names, found: &mut Vec<(Names, String)>) -> usize {
    loop {
        match tokens.get(at).copied() {
            Some("::") => at += 1,
            Some("{") => {
                at += 1;
                while tokens.get(at).is_some_and(|token| *token != "}") {
                    at = tree(tokens, at, names.clone(), found);
                    at += usize::from(tokens.get(at) == Some(&","));
                }
                return at + 1;
            }
            Some("*") => {
                found.push((names, "*".into()));
                return at + 1;
            }
            Some("as") => {
                found.push((names, tokens.get(at + 1).copied().unwrap_or_default().into()));
                return at + 2;
            }
            Some(name) if is_name(name) => {
                // `a::{self}` brings in `a`.
                if name != "self" || names.is_empty() {
                    names.push(name.into());
                }
                at += 1;
            }
            _ => {
                let alias = names.last().cloned().unwrap_or_default();
                found.push((names, alias));
                return at;
            }
        }
    }
}

/// A path as the file says it outside of so many modules within it.
fn lifted(mut path: Names, mut inline: usize) -> Names {
    while inline > 0 && path.first().is_some_and(|name| name == "super") {
        path[0] = "self".into();
        if path.get(1).is_some_and(|name| name == "super") {
            path.remove(0);
        }
        inline -= 1;
    }
    path
}

#[test]
fn uses_paths_and_names_are_read() {
    let text = "pub(crate) use self::{a::{b, c as d}, e::*, f::{self}}; use super::G; pub use crate::h;
        fn i(j: G) { crate::k::l::<u8>(m::n); o!(); p.q::<r>() } mod s { use super::T; fn u() { super::super::v::w() } }
        macro_rules! x { () => { $crate::y::z } }";
    let said = Said::of(&tokens(text));
    let uses: Vec<String> =
        said.uses.iter().map(|used| format!("{} {} {}", used.is_public, used.alias, used.path.join("::"))).collect();
    let expected = [
        "true b self::a::b",
        "true d self::a::c",
        "true * self::e",
        "true f self::f",
        "false G super::G",
        "true h crate::h",
        "false T self::T",
    ];
    assert_eq!(uses, expected);
    let paths: Vec<String> = said.paths.iter().map(|path| path.join("::")).collect();
    assert_eq!(paths, ["crate::k::l", "crate::y::z", "m::n", "super::v::w"]);
    assert!(said.names.contains("G") && said.calls.contains("o") && said.macros.contains("x"));
    assert!(["i", "s", "u"].iter().all(|name| said.defined.contains(*name)));
}
