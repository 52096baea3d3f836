//! Text in columns, as Markdown that is also readable as plain text.

use std::fmt;

/// Rows with as many cells as the header. The first column is left-aligned, the others are right-aligned.
#[derive(Debug, Clone)]
pub struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(header: impl IntoIterator<Item: Into<String>>) -> Self {
        Self { header: cells(header), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, row: impl IntoIterator<Item: Into<String>>) {
        self.rows.push(cells(row));
    }
}

/// Texts on one line, with column separators escaped.
fn cells(texts: impl IntoIterator<Item: Into<String>>) -> Vec<String> {
    texts.into_iter().map(|text| one_line(&text.into()).replace('|', "\\|")).collect()
}

/// The text with all white space replaced by single spaces.
pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = || std::iter::once(&self.header).chain(&self.rows);
        let width = |column: usize| all().filter_map(|row| Some(row.get(column)?.chars().count())).max().unwrap_or(0);
        // Markdown needs at least three dashes.
        let widths: Vec<usize> = (0..self.header.len()).map(|column| width(column).max(3)).collect();
        for (at, row) in all().enumerate() {
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                match column {
                    0 => write!(f, "| {cell:<width$} |")?,
                    _ => write!(f, " {cell:>width$} |")?,
                }
            }
            writeln!(f)?;
            if at == 0 {
                for (column, &width) in widths.iter().enumerate() {
                    match column {
                        0 => write!(f, "|:{:-<width$}-|", "")?,
                        _ => write!(f, "-{:-<width$}:|", "")?,
                    }
                }
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["cell", "us"]);
        table.row(["bert", "12345"]);
        assert_eq!(table.to_string(), "| cell |    us |\n|:-----|------:|\n| bert | 12345 |\n");
    }

    #[test]
    fn no_text_breaks_a_table() {
        let mut table = Table::new(["a"]);
        table.row(["x |\n y"]);
        assert_eq!(table.to_string().lines().last(), Some("| x \\| y |"));
    }
}
