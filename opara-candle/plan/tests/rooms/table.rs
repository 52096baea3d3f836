//! The tables of rooms in ARCHITECTURE.md.

use crate::source::Module;

/// The rooms of a crate from the top to the bottom: the modules of each row.
pub struct Rooms(Vec<Vec<Module>>);

impl Rooms {
    /// The rows of the table below the heading `Rooms of CRATE`. The root of a crate is called `lib` there.
    pub fn of(page: &str, name: &str) -> Option<Self> {
        let (_, rest) = page.split_once(&format!("\n## Rooms of {name}\n"))?;
        let section = rest.split("\n## ").next()?;
        let cells = section.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
        let row = |cell: &str| cell.split('`').step_by(2).map(module).collect();
        Some(Self(cells.map(row).collect()))
    }

    /// The row of a file, which is that of the longest name that it begins with: 0 is the top.
    pub fn row(&self, file: &Module) -> Option<usize> {
        let rows = self.0.iter().enumerate();
        let named = rows.flat_map(|(at, names)| names.iter().map(move |name| (at, name)));
        let fitting = named.filter(|(_, name)| match name.is_empty() {
            true => file.is_empty(),
            false => file.starts_with(name),
        });
        fitting.max_by_key(|(_, name)| name.len()).map(|(at, _)| at)
    }

    /// Names in the table that no file has.
    pub fn unused<'a>(&self, files: impl Iterator<Item = &'a Module> + Clone) -> Vec<String> {
        let names = self.0.iter().flatten();
        let is_unused = |name: &&Module| !files.clone().any(|file| file.starts_with(name));
        names.filter(is_unused).map(told).collect()
    }
}

fn module(name: &str) -> Module {
    match name {
        "lib" => Module::new(),
        name => name.split("::").map(str::to_owned).collect(),
    }
}

/// What a file is called in the table.
pub fn told(file: &Module) -> String {
    match file.is_empty() {
        true => "lib".into(),
        false => file.join("::"),
    }
}

#[test]
fn a_file_belongs_to_the_longest_name() {
    let page = "# A\n\n## Rooms of b\n\n| room | holds |\n|---|---|\n| `lib`, `c` | d |\n| `e`, `c::f` | `g` |\n\n## Rooms of h\n\n| `i` | j |\n";
    let rooms = Rooms::of(page, "b").expect("it has a table");
    let rows = ["lib", "c", "c::f", "c::f::k", "c::g", "e::l", "m"].map(|name| rooms.row(&module(name)));
    assert_eq!(rows, [Some(0), Some(0), Some(1), Some(1), Some(0), Some(1), None]);
    let files = ["lib", "c::n", "e"].map(module);
    assert_eq!(rooms.unused(files.iter()), ["c::f"]);
}
