//! Texts in Parquet files, and the vectors that they should have.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use anyhow::{ensure, Context, Result};
use candle::{DType, Device};
use datafusion::arrow::array::{Array, AsArray, Int64Array, RecordBatch, StringArray};
use datafusion::arrow::datatypes::{Float32Type, Int64Type};
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::WriterProperties;
use opara_serve::embed::{Embedder, Size, TextModel};

/// How far results of other batches may be apart: vectors have length 1.
const TOLERANCE: f32 = 1e-5;

/// The seed of every model.
pub const SEED: u64 = 7;

/// Texts by id. Every tenth is null.
pub type Texts = BTreeMap<i64, Option<String>>;

/// Vectors by id.
pub type Vectors = BTreeMap<i64, Option<Vec<f32>>>;

/// Texts of one to nine words with these ids.
pub fn some(ids: std::ops::Range<i64>) -> Texts {
    let words = |id: i64| (0..1 + id % 9).map(|n| format!("w{}", (id * 31 + n) % 997)).collect::<Vec<_>>().join(" ");
    ids.map(|id| (id, (id % 10 != 3).then(|| words(id)))).collect()
}

/// Rows `(id, text)`.
pub fn rows(texts: &Texts) -> Result<RecordBatch> {
    let ids = Int64Array::from_iter_values(texts.keys().copied());
    let texts = StringArray::from_iter(texts.values());
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("id", Arc::new(ids) as _, false),
        ("text", Arc::new(texts) as _, true),
    ])?)
}

/// Writes a file of so many rows a row group.
pub fn write(path: &Path, texts: &Texts, row_group: usize) -> Result<()> {
    let (rows, properties) = (rows(texts)?, WriterProperties::builder());
    let properties = properties.set_max_row_group_row_count(Some(row_group)).build();
    let mut writer = ArrowWriter::try_new(File::create(path)?, rows.schema(), Some(properties))?;
    writer.write(&rows)?;
    writer.close()?;
    Ok(())
}

/// A model in this process.
pub fn embedder(size: Size, truncate: bool) -> Result<Embedder> {
    let model = TextModel::random(size, SEED).cut(truncate);
    Ok(model.embedder(&Device::Cpu, DType::F32, &model.buckets(&Device::Cpu, DType::F32, &[], &[], None)?)?)
}

/// The vectors of texts, computed in this process.
pub fn expected(texts: &Texts, size: Size) -> Result<Vectors> {
    let present: Vec<&String> = texts.values().flatten().collect();
    let mut vectors = embedder(size, false)?.embed(&present)?.into_iter();
    Ok(texts.iter().map(|(&id, text)| (id, text.as_ref().and_then(|_| vectors.next()))).collect())
}

/// The rows `(id, vector)` of batches. An id that is there twice is an error.
pub fn vectors(batches: &[RecordBatch]) -> Result<Vectors> {
    let mut vectors = Vectors::new();
    for batch in batches {
        let (ids, lists) = (batch.column(0).as_primitive::<Int64Type>(), batch.column(1).as_list::<i32>());
        for (row, &id) in ids.values().iter().enumerate() {
            let vector = lists.is_valid(row).then(|| lists.value(row).as_primitive::<Float32Type>().values().to_vec());
            ensure!(vectors.insert(id, vector).is_none(), "row {id} is there twice");
        }
    }
    Ok(vectors)
}

/// The rows of a file.
pub fn read(path: &Path) -> Result<Vec<RecordBatch>> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    Ok(ParquetRecordBatchReaderBuilder::try_new(file)?.build()?.collect::<Result<_, _>>()?)
}

/// Fails unless every row is there, and right.
pub fn check(vectors: &Vectors, expected: &Vectors) -> Result<()> {
    ensure!(vectors.keys().eq(expected.keys()), "{} rows are there, {} expected", vectors.len(), expected.len());
    for (id, vector) in expected {
        let is_near = |(a, b): (&f32, &f32)| (a - b).abs() < TOLERANCE;
        let is_right = match (&vectors[id], vector) {
            (Some(a), Some(b)) => a.len() == b.len() && a.iter().zip(b).all(is_near),
            (a, b) => a.is_none() && b.is_none(),
        };
        ensure!(is_right, "row {id} has another vector");
    }
    Ok(())
}
