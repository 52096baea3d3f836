//! Imports between the files of a crate: each path is followed to the file that defines what it names.

use std::collections::{BTreeMap, BTreeSet};

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;

use crate::source::{Files, Module, Names, Said};

/// The files of a crate, each with the files that define what it uses.
pub struct Imports(pub BTreeMap<Module, BTreeSet<Module>>);

/// Names that lead from one to another at most.
const MOST: usize = 32;

impl Imports {
    /// Of these files. A file that only hands on a name from its own folder does not import it.
    pub fn of(files: &Files) -> Self {
        let macros = |module: &Module, name: &String| {
            let above = (0..module.len()).rev().map(|length| module[..length].to_vec());
            above.into_iter().find(|above| files.get(above).is_some_and(|said| said.macros.contains(name)))
        };
        let imports = |(module, said): (&Module, &Said)| {
            let mut targets = BTreeSet::new();
            for used in &said.uses {
                let found = definition(files, module, &used.path, MOST);
                let is_handed_on = used.is_public && !said.names.contains(&used.alias);
                targets.extend(found.filter(|target| !(is_handed_on && target.starts_with(module))));
            }
            let globs = said.uses.iter().filter(|used| used.alias == "*");
            for target in globs.filter_map(|used| module_of(files, module, &used.path)) {
                let names = said.names.iter().chain(said.paths.iter().filter_map(|path| path.first()));
                let found = names.filter_map(|name| known(files, target.clone(), std::slice::from_ref(name), MOST));
                targets.extend(found);
            }
            targets.extend(said.paths.iter().filter_map(|path| definition(files, module, path, MOST)));
            let called = said.calls.iter().filter(|name| !said.macros.contains(*name));
            targets.extend(called.filter_map(|name| macros(module, name)));
            targets.remove(module);
            (module.clone(), targets)
        };
        Self(files.iter().map(imports).collect())
    }

    /// Sets of files that import each other.
    pub fn circles(&self) -> Vec<BTreeSet<&Module>> {
        let mut graph = DiGraphMap::<&Module, ()>::new();
        for (module, targets) in &self.0 {
            for target in targets {
                graph.add_edge(module, target, ());
            }
        }
        let found = tarjan_scc(&graph).into_iter().filter(|circle| circle.len() > 1);
        found.map(|circle| circle.into_iter().collect()).collect()
    }
}

/// The file that defines what a path in a module names; `None` if it names a module, or what is of another crate.
fn definition(files: &Files, module: &Module, path: &Names, most: usize) -> Option<Module> {
    let (first, rest) = path.split_first()?;
    let parent = || module.split_last().map(|(_, parent)| parent.to_vec());
    match first.as_str() {
        "crate" => within(files, Module::new(), rest, most),
        "self" => within(files, module.clone(), rest, most),
        "super" => {
            let (mut base, mut rest) = (parent()?, rest);
            while rest.first().is_some_and(|name| name == "super") {
                base.pop()?;
                rest = &rest[1..];
            }
            within(files, base, rest, most)
        }
        _ if is_known(files, module, first) => within(files, module.clone(), path, most),
        _ => None,
    }
}

/// Whether a name that a file says by itself is a module below it, or what it brought in.
fn is_known(files: &Files, module: &Module, name: &str) -> bool {
    let is_used = || files.get(module).is_some_and(|said| said.uses.iter().any(|used| used.alias == name));
    files.contains_key(&inside(module, name)) || is_used()
}

fn inside(module: &Module, name: &str) -> Module {
    [module.as_slice(), &[name.to_owned()]].concat()
}

/// The same of names below a module.
fn within(files: &Files, base: Module, names: &[String], most: usize) -> Option<Module> {
    let most = most.checked_sub(1)?;
    let (first, rest) = names.split_first()?;
    let child = inside(&base, first);
    if files.contains_key(&child) {
        return within(files, child, rest, most);
    }
    // A folder without a file of its own name is none of this crate's modules.
    let said = files.get(&base)?;
    if said.defined.contains(first) || said.macros.contains(first) {
        return Some(base);
    }
    if let Some(used) = said.uses.iter().find(|used| used.alias == *first && used.path != [first.clone()]) {
        let path = [used.path.as_slice(), rest].concat();
        return definition(files, &base, &path, most);
    }
    for used in said.uses.iter().filter(|used| used.alias == "*") {
        let target = module_of(files, &base, &used.path);
        let found = target.filter(|target| *target != base).and_then(|target| known(files, target, names, most));
        if found.is_some() {
            return found;
        }
    }
    Some(base)
}

/// Where a name below a module is defined, if the module has it.
fn known(files: &Files, module: Module, names: &[String], most: usize) -> Option<Module> {
    let said = files.get(&module)?;
    let first = names.first()?;
    let has = said.defined.contains(first) || said.uses.iter().any(|used| used.alias == *first);
    has.then(|| within(files, module, names, most)).flatten()
}

/// The module that a path names, all of it.
fn module_of(files: &Files, module: &Module, path: &Names) -> Option<Module> {
    let mut base = module.clone();
    for (at, name) in path.iter().enumerate() {
        match name.as_str() {
            "crate" => base = Module::new(),
            "self" => {}
            "super" => drop(base.pop()?),
            name if at == 0 && !files.contains_key(&inside(&base, name)) => return None,
            name => base.push(name.into()),
        }
    }
    files.contains_key(&base).then_some(base)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::tokens;

    fn module(path: &str) -> Module {
        path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect()
    }

    fn imports(files: &[(&str, &str)]) -> Imports {
        let said = files.iter().map(|(path, text)| (module(path), Said::of(&tokens(text))));
        Imports::of(&said.collect())
    }

    fn told(imports: &Imports) -> Vec<String> {
        let pairs = imports.0.iter().flat_map(|(from, all)| all.iter().map(move |to| (from, to)));
        pairs.map(|(from, to)| format!("{} -> {}", from.join("::"), to.join("::"))).collect()
    }

    #[test]
    fn names_are_followed_to_their_definition() {
        let found = imports(&[
            ("", "mod a; mod b; mod c; pub use a::A; pub use self::b::inner::*; use other::D;"),
            ("a", "pub struct A; fn f() { crate::c::c() }"),
            ("b", "mod inner; pub(crate) use self::inner::B as C; pub const E: u8 = 1;"),
            ("b::inner", "pub struct B; use super::E;"),
            ("c", "use crate::{A, D}; use crate::b; use crate::B; fn c(x: b::C) { b::E }"),
        ]);
        assert_eq!(told(&found), ["a -> c", "b::inner -> b", "c -> a", "c -> b", "c -> b::inner"]);
        assert_eq!(found.circles(), [[&module("a"), &module("c")].into()]);
    }

    #[test]
    fn a_face_imports_what_it_uses_and_not_what_it_hands_on() {
        let found = imports(&[
            ("", "mod a; pub use self::a::A; pub use self::a::B; fn f(b: B) { a::c() }"),
            ("a", "pub struct A; pub struct B; pub fn c() { super::f() }"),
        ]);
        assert_eq!(told(&found), [" -> a", "a -> "]);
        let hands_on = imports(&[("", "mod a; pub use self::a::A;"), ("a", "pub struct A;")]);
        assert_eq!(told(&hands_on), [] as [String; 0]);
    }

    #[test]
    fn macros_are_imports() {
        let found = imports(&[("", "macro_rules! m { () => {} } mod a;"), ("a", "fn f() { m!() }")]);
        assert_eq!(told(&found), ["a -> "]);
    }
}
