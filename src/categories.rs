//! Rows of a table as category ids.

use std::io::Read;

use anyhow::{ensure, Context, Result};
use csv::{ByteRecord, ReaderBuilder};

use crate::hash::fnv1a;

/// The rows of a CSV table of texts, with a header line, as category ids, one per column.
///
/// Each text, including the empty one, is hashed to one of its column's ids, so that no vocabulary is needed.
#[derive(Debug, Clone, PartialEq)]
pub struct Categories {
    columns: Vec<String>,
    rows: Vec<Vec<u64>>,
}

impl Categories {
    /// Reads a table.
    ///
    /// # Errors
    /// A row whose number of columns differs from the header's, or a text that is not UTF-8, with line and column; a
    /// table without rows.
    pub fn read(table: impl Read) -> Result<Self> {
        let mut reader = ReaderBuilder::new().flexible(true).from_reader(table);
        let header = reader.headers().context("cannot read the header")?;
        let columns: Vec<String> = header.iter().map(str::to_owned).collect();
        let mut rows = Vec::new();
        let mut record = ByteRecord::new();
        while reader.read_byte_record(&mut record).context("cannot read the table")? {
            let line = record.position().map_or(0, |position| position.line());
            let (found, wanted) = (record.len(), columns.len());
            ensure!(found == wanted, "line {line} has {found} columns, the header {wanted}");
            let hashes = record.iter().zip(&columns).enumerate().map(|(i, (text, column))| {
                let text = std::str::from_utf8(text);
                let text = text.with_context(|| format!("line {line}, column {} (`{column}`) is not UTF-8", i + 1))?;
                Ok(fnv1a(text))
            });
            rows.push(hashes.collect::<Result<_>>()?);
        }
        ensure!(!rows.is_empty(), "the table has no rows");
        Ok(Self { columns, rows })
    }

    /// The header's names.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Number of rows without the header.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Are there no rows? A table that was read has at least one.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The ids of `count` rows from `start` on, row by row, wrapping around at the end. Ids of column `i` are below
    /// `sizes[i]`.
    ///
    /// # Errors
    /// A number of sizes that differs from the number of columns; a size of zero or beyond u32.
    pub fn ids(&self, sizes: &[usize], start: usize, count: usize) -> Result<Vec<u32>> {
        let (found, wanted) = (self.columns.len(), sizes.len());
        ensure!(found == wanted, "the table has {found} columns, the model {wanted} fields");
        let allowed = 1..=u32::MAX as usize;
        ensure!(sizes.iter().all(|size| allowed.contains(size)), "a field has between 1 and {} ids", u32::MAX);
        let rows = self.rows.iter().cycle().skip(start % self.rows.len()).take(count);
        Ok(rows.flat_map(|row| row.iter().zip(sizes).map(|(hash, size)| (hash % *size as u64) as u32)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(table: &[u8]) -> String {
        format!("{:#}", Categories::read(table).expect_err("unsound"))
    }

    #[test]
    fn equal_texts_have_equal_ids() -> Result<()> {
        let table = "site,app\na,b\n\"b\",a\n,\"b,c\"\n";
        let categories = Categories::read(table.as_bytes())?;
        assert_eq!((categories.columns(), categories.len()), (["site".to_owned(), "app".to_owned()].as_slice(), 3));
        let ids = categories.ids(&[1000, 1000], 0, 3)?;
        assert_eq!((ids[0], ids[1]), (ids[3], ids[2]));
        assert_eq!(ids[0], (0xaf63_dc4c_8601_ec8c_u64 % 1000) as u32);
        assert_eq!(ids[4], (0xcbf2_9ce4_8422_2325_u64 % 1000) as u32, "an empty text");
        Ok(())
    }

    #[test]
    fn rows_repeat_and_ids_stay_in_their_field() -> Result<()> {
        let categories = Categories::read("x,y\na,b\nc,d\ne,f\n".as_bytes())?;
        let all = categories.ids(&[5, 2], 0, 6)?;
        assert_eq!(all[..6], all[6..]);
        assert_eq!(categories.ids(&[5, 2], 4, 2)?, all[2..6]);
        assert!(all.chunks(2).all(|row| row[0] < 5 && row[1] < 2));
        Ok(())
    }

    #[test]
    fn errors_name_line_and_column() -> Result<()> {
        let ragged = error(b"x,y\na,b\n\"c\n\",d\ne\n");
        assert!(ragged.contains("line 5 has 1 columns, the header 2"), "{ragged}");
        let mangled = error(b"x,y\na,b\nc,\xff\n");
        assert!(mangled.contains("line 3, column 2 (`y`)"), "{mangled}");
        assert!(error(b"x,y\n").contains("no rows"));
        assert!(error(b"\xff\n").contains("header"));
        let categories = Categories::read("x,y\na,b\n".as_bytes())?;
        for sizes in [[5].as_slice(), &[5, 0], &[5, 1 << 40]] {
            assert!(categories.ids(sizes, 0, 1).is_err());
        }
        Ok(())
    }
}
