//! The function in a session of this process.

use std::fs::File;
use std::sync::Arc;

use anyhow::{Context, Result};
use datafusion::arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::DataType;
use datafusion::prelude::SessionContext;
use opara_ballista::{session, Models};
use opara_serve::embed::Size;

use super::texts::{self, Texts};

fn here() -> Result<SessionContext> {
    let models = Models::new([("bert".into(), texts::embedder(Size::Tiny, false)?)]);
    Ok(session::local(models, 2))
}

async fn run(session: &SessionContext, sql: &str) -> Result<Vec<RecordBatch>> {
    Ok(session.sql(sql).await?.collect().await?)
}

async fn error(session: &SessionContext, sql: &str) -> Result<String> {
    Ok(run(session, sql).await.err().with_context(|| format!("no error: {sql}"))?.to_string())
}

/// A table `t` with columns `id` and `text`, the second of this type.
fn table(session: &SessionContext, texts: &Texts, text_type: &DataType) -> Result<()> {
    let rows = texts::rows(texts)?;
    let columns: [(&str, ArrayRef); 2] = [("id", rows.column(0).clone()), ("text", cast(rows.column(1), text_type)?)];
    session.register_batch("t", RecordBatch::try_from_iter(columns)?)?;
    Ok(())
}

#[tokio::test]
async fn every_type_of_text_gives_the_same_vectors() -> Result<()> {
    let texts = texts::some(0..50);
    let expected = texts::expected(&texts, Size::Tiny)?;
    let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    for text_type in [DataType::Utf8, DataType::LargeUtf8, DataType::Utf8View, dictionary] {
        let session = here()?;
        table(&session, &texts, &text_type)?;
        for call in ["embed(text)", "embed(text, 'bert')"] {
            let rows = run(&session, &format!("select id, {call} from t")).await?;
            texts::check(&texts::vectors(&rows)?, &expected).with_context(|| format!("{call} of {text_type}"))?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn nulls_give_nulls() -> Result<()> {
    let session = here()?;
    table(&session, &(0..5).map(|id| (id, None)).collect(), &DataType::Utf8)?;
    for sql in ["select embed(text) from t", "select embed(null)", "select embed(cast(null as varchar))"] {
        let rows = run(&session, sql).await?;
        assert!(rows.iter().all(|batch| batch.column(0).null_count() == batch.num_rows()), "{sql}");
    }
    Ok(())
}

#[tokio::test]
async fn a_constant_is_embedded() -> Result<()> {
    let rows = run(&here()?, "select 3 as id, embed('w1 w2') as vector").await?;
    let expected = texts::expected(&[(3, Some("w1 w2".into()))].into(), Size::Tiny)?;
    texts::check(&texts::vectors(&rows)?, &expected)
}

#[tokio::test]
async fn files_may_be_empty() -> Result<()> {
    let (session, folder) = (here()?, tempfile::tempdir()?);
    let texts = texts::some(0..20);
    texts::write(&folder.path().join("rows.parquet"), &texts, 5)?;
    texts::write(&folder.path().join("no_rows.parquet"), &Texts::new(), 5)?;
    File::create(folder.path().join("no_bytes.parquet"))?;
    let sql = |files: &str| format!("select id, embed(text) from '{}/{files}'", folder.path().display());
    let rows = run(&session, &sql("*.parquet")).await?;
    texts::check(&texts::vectors(&rows)?, &texts::expected(&texts, Size::Tiny)?)?;
    assert!(texts::vectors(&run(&session, &sql("no_rows.parquet")).await?)?.is_empty());
    let missing = error(&session, &sql("missing*.parquet")).await?;
    assert!(missing.contains("missing"), "{missing}");
    Ok(())
}

#[tokio::test]
async fn arguments_that_are_no_texts_are_errors() -> Result<()> {
    let session = here()?;
    let columns: [(&str, ArrayRef); 2] =
        [("number", Arc::new(Int64Array::from(vec![1]))), ("other", Arc::new(Int32Array::from(vec![1])))];
    session.register_batch("t", RecordBatch::try_from_iter(columns)?)?;
    let text = "cast(number as varchar)";
    for (call, message) in [
        ("embed(number)".to_string(), "embed takes texts, and this is Int64: convert it"),
        ("embed()".to_string(), "not 0 arguments"),
        (format!("embed({text}, 'bert', 1)"), "not 3 arguments"),
        (format!("embed({text}, {text})"), "must be a constant"),
        (format!("embed({text}, null)"), "names a model, and"),
        (format!("embed({text}, 'minilm')"), "there is no model 'minilm', only bert"),
        ("embed(repeat('word ', 80))".to_string(), "81 tokens, and the model takes at most 64"),
    ] {
        let error = error(&session, &format!("select {call} from t")).await?;
        assert!(error.contains(message), "{call}: {error}");
    }
    assert_eq!(run(&session, &format!("select embed({text}) from t")).await?[0].num_rows(), 1);
    Ok(())
}

#[tokio::test]
async fn texts_that_are_too_long_may_be_cut() -> Result<()> {
    let session = session::local(Models::new([("bert".into(), texts::embedder(Size::Tiny, true)?)]), 1);
    let rows = run(&session, "select n as id, embed(repeat('word ', n)) from (values (63), (80)) as t(n)").await?;
    let vectors = texts::vectors(&rows)?;
    assert_eq!(vectors[&63], vectors[&80]);
    Ok(())
}
