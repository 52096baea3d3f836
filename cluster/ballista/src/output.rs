//! Where the rows of an answer go.

use std::fs::Permissions;
use std::io::{BufWriter, Stdout, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::json::writer::{LineDelimited, Writer, WriterBuilder};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::WriterProperties;
use tempfile::NamedTempFile;

/// Rows of a row group, which the writer keeps in memory: 32 MiB of vectors of 1,024 elements.
const ROW_GROUP: usize = 8_192;

/// Where the rows of an answer go: to a Parquet file, which is there when it is complete, or to stdout as lines of JSON.
pub(crate) enum Output {
    File { writer: ArrowWriter<NamedTempFile>, path: PathBuf },
    Lines(Writer<BufWriter<Stdout>, LineDelimited>),
}

impl Output {
    pub(crate) fn new(path: Option<&Path>, schema: SchemaRef) -> Result<Self> {
        let Some(path) = path else {
            let lines = WriterBuilder::new().with_explicit_nulls(true).build(BufWriter::new(std::io::stdout()));
            return Ok(Self::Lines(lines));
        };
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(ROW_GROUP)).build();
        // As for other files: a temporary file is its owner's alone by default.
        let permissions = Permissions::from_mode(0o666);
        let unfinished = tempfile::Builder::new().prefix(".unfinished").permissions(permissions).tempfile_in(folder);
        let unfinished = unfinished.with_context(|| format!("{} cannot be written", path.display()))?;
        Ok(Self::File { writer: ArrowWriter::try_new(unfinished, schema, Some(properties))?, path: path.into() })
    }

    pub(crate) fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        match self {
            Self::File { writer, .. } => writer.write(rows)?,
            Self::Lines(lines) => lines.write(rows)?,
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> Result<()> {
        match self {
            Self::File { writer, path } => _ = writer.into_inner()?.persist(path)?,
            Self::Lines(mut lines) => {
                lines.finish()?;
                lines.into_inner().flush()?;
            }
        }
        Ok(())
    }
}
