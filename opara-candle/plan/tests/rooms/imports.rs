//! Imports between the files of a crate, from paths that begin with `crate`, `super` or `self`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

/// A module by its path from the root of its crate; empty for the root.
pub type Module = Vec<String>;

/// The modules of a crate that have a file, each with the modules that it imports.
pub struct Imports(pub BTreeMap<Module, BTreeSet<Module>>);

impl Imports {
    /// Reads the crate with this source folder, without its tests.
    ///
    /// A module and the modules in its folder may import each other. A name that the root re-exports counts as an import of its
    /// module.
    pub fn of(source: &Path) -> io::Result<Self> {
        let mut texts = BTreeMap::new();
        read(source, &Module::new(), &mut texts)?;
        let root = texts.get(&Module::new()).cloned().unwrap_or_default();
        let handed_on: BTreeMap<String, Module> = paths(&root, |token, before| before == "use" && is_name(token))
            .into_iter()
            .filter_map(|path| Some((path.last()?.clone(), deepest(&path, &texts)?)))
            .collect();
        let imports = |(module, text): (&Module, &String)| {
            let found = paths(text, |token, before| matches!(token, "crate" | "super" | "self") && before != "::");
            let targets = found.into_iter().filter_map(|path| {
                let path = absolute(module, path);
                deepest(&path, &texts).or_else(|| handed_on.get(path.first()?).cloned())
            });
            let is_apart = |target: &Module| !target.starts_with(module) && !module.starts_with(target);
            (module.clone(), targets.filter(is_apart).collect())
        };
        Ok(Self(texts.iter().map(imports).collect()))
    }
}

/// The text of each module below a folder.
fn read(folder: &Path, module: &Module, texts: &mut BTreeMap<Module, String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let inside = [module.as_slice(), std::slice::from_ref(&name)].concat();
        match name.as_str() {
            "tests" => {}
            _ if path.is_dir() => read(&path, &inside, texts)?,
            _ if path.extension().is_none_or(|extension| extension != "rs") => {}
            "mod" | "lib" | "main" => drop(texts.insert(module.clone(), code(&fs::read_to_string(path)?))),
            _ => drop(texts.insert(inside, code(&fs::read_to_string(path)?))),
        }
    }
    Ok(())
}

/// A file's text without comments and unit tests.
fn code(text: &str) -> String {
    let lines = text.lines().map(|line| line.split_once("//").map_or(line, |(code, _)| code));
    let code = lines.collect::<Vec<_>>().join("\n");
    let tests = [
        "#[cfg(test)]\nmod tests {",
        "#[cfg(test)]\npub(crate) mod tests {",
        "#[cfg(all(test, feature = \"cuda\"))]\nmod tests {",
    ];
    let end = tests.iter().filter_map(|begin| code.find(begin)).min();
    code[..end.unwrap_or(code.len())].into()
}

/// The paths in a text. `begins` decides from the first name and the token before it where a path begins.
fn paths(text: &str, begins: impl Fn(&str, &str) -> bool) -> Vec<Vec<String>> {
    let tokens = tokens(text);
    let mut found = Vec::new();
    for at in 0..tokens.len() {
        let before = at.checked_sub(1).map_or("", |before| tokens[before]);
        if tokens.get(at + 1) == Some(&"::") && begins(tokens[at], before) {
            path(&tokens, at, Vec::new(), &mut found);
        }
    }
    found
}

/// Names, `::`, and all other characters one by one.
pub fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let name = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let length = if rest.starts_with("::") { 2 } else { name.max(first.len_utf8()) };
        tokens.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    tokens
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Reads the path at a token, or all paths of a group; returns the token behind them.
fn path(tokens: &[&str], mut at: usize, mut names: Vec<String>, found: &mut Vec<Vec<String>>) -> usize {
    while let Some(&token) = tokens.get(at) {
        if token == "{" {
            at += 1;
            while tokens.get(at).is_some_and(|&token| token != "}") {
                at = path(tokens, at, names.clone(), found);
                // The rest of `name as other`.
                while tokens.get(at).is_some_and(|token| !matches!(*token, "," | "}")) {
                    at += 1;
                }
                at += usize::from(tokens.get(at) == Some(&","));
            }
            return at + 1;
        }
        if is_name(token) {
            names.push(token.into());
            at += 1;
        }
        if tokens.get(at) != Some(&"::") {
            break;
        }
        at += 1;
    }
    found.push(names);
    at
}

/// A path from the root on.
fn absolute(module: &Module, path: Vec<String>) -> Vec<String> {
    let mut base = match path[0].as_str() {
        "crate" => Module::new(),
        _ => module.clone(),
    };
    let mut rest = path.into_iter().skip_while(|name| {
        if name == "super" {
            base.pop();
        }
        matches!(name.as_str(), "crate" | "super" | "self")
    });
    let rest: Vec<String> = rest.by_ref().collect();
    base.extend(rest);
    base
}

/// The module with a file that a path leads into; `None` if that is the root.
fn deepest(path: &[String], texts: &BTreeMap<Module, String>) -> Option<Module> {
    (1..=path.len()).rev().map(|length| path[..length].to_vec()).find(|module| texts.contains_key(module))
}

#[test]
fn groups_and_relative_paths_are_read() {
    let text =
        "use crate::{a::{b, c as d}, e};\nuse super::f::G;\nlet x = crate::h::i::<u8>(\"\");\npub(crate) fn j() {}";
    let found = paths(text, |token, before| matches!(token, "crate" | "super" | "self") && before != "::");
    let found: Vec<String> = found.into_iter().map(|path| path.join(" ")).collect();
    assert_eq!(found, ["crate a b", "crate a c", "crate e", "super f G", "crate h i"]);
    let module = ["k".to_string(), "l".into()].to_vec();
    assert_eq!(absolute(&module, vec!["super".into(), "m".into()]), ["k", "m"]);
    assert_eq!(absolute(&module, vec!["self".into(), "m".into()]), ["k", "l", "m"]);
}
