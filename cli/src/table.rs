//! Text in columns.

use std::fmt;

/// Maximum width of the first column; kernel names can be longer than a screen.
const WIDEST: usize = 56;

/// Rows with as many cells as the header. The first column is left-aligned, the others are right-aligned.
#[derive(Debug, Clone)]
pub struct Table(Vec<Vec<String>>);

impl Table {
    /// A table without rows.
    pub fn new(header: &[&str]) -> Self {
        Self(vec![header.iter().map(|&title| title.into()).collect()])
    }

    /// Adds a row.
    pub fn row(&mut self, name: &str, cells: impl IntoIterator<Item = String>) {
        let name = match name.char_indices().nth(WIDEST) {
            Some(_) => name.chars().take(WIDEST - 3).chain("...".chars()).collect(),
            None => name.into(),
        };
        self.0.push(std::iter::once(name).chain(cells).collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            let cells = self.0.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.0[0].len()).map(width).collect();
        for row in &self.0 {
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                match column {
                    0 => write!(f, "{cell:<width$}")?,
                    _ => write!(f, "  {cell:>width$}")?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["scheduler", "us"]);
        table.row("dag", ["1234".into()]);
        assert_eq!(table.to_string(), "scheduler    us\ndag        1234\n");
    }

    #[test]
    fn long_names_are_cut() {
        let mut table = Table::new(&["kernel"]);
        table.row(&"ß".repeat(WIDEST), []);
        table.row(&"ß".repeat(WIDEST + 1), []);
        let text = table.to_string();
        let lengths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
        assert_eq!(lengths, [WIDEST; 3]);
        assert!(text.ends_with("ß...\n"));
    }
}
