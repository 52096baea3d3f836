//! Encoders of every architecture against transformers, on checkpoints as it saves them.

mod checkpoint;
mod configurations;
mod listed;

use anyhow::{Context, Result};
use candle::{DType, Device, Tensor};
use opara_candle::OparaExecutor;
use opara_serve::batch::{Bucket, Engine};
use opara_serve::embed::{Answers, TextModel, TextRow};

use checkpoint::{answers, assert_close, embedder, packed, picture, Case};

/// A batch of texts of several lengths, and each by itself, give what transformers gives.
fn check(name: &str, folder: &std::path::Path, kind: &str, case: &Case, length: usize) -> Result<()> {
    let embedder = embedder(folder)?;
    let [together, alone] = answers(&embedder, &case.ids, length)?;
    for (index, expected) in case.expected.iter().enumerate() {
        assert_close(&together[index], &expected[kind], &format!("{name}: {kind} of text {index} in a batch"));
        assert_close(&alone[index], &expected[kind], &format!("{name}: {kind} of text {index} alone"));
    }
    let side_by_side = packed(folder)?;
    let kin = ["albert", "bert", "camembert", "distilbert", "electra", "roberta", "xlm"];
    let is_kin = kin.iter().any(|kin| name.starts_with(kin)) && kind != "splade";
    assert_eq!(side_by_side.is_some(), is_kin, "{name}, {kind} of texts side by side");
    let Some(embedder) = side_by_side else { return Ok(()) };
    let rows: Vec<TextRow> = case.ids.iter().cloned().map(TextRow::from).collect();
    // Another order than theirs, so that each stands somewhere else.
    for order in [rows.iter().collect::<Vec<_>>(), rows.iter().rev().collect()] {
        let answers = embedder.run(Bucket { batch: 1, length: 80 }, &order)?;
        for (row, answer) in order.into_iter().zip(&answers) {
            let index = rows.iter().position(|other| std::ptr::eq(other, row)).context("it is one of them")?;
            assert_close(answer, &case.expected[index][kind], &format!("{name}: {kind} of text {index} side by side"));
        }
    }
    Ok(())
}

fn hidden_states(name: &str) -> Result<()> {
    let case = Case::read(name)?;
    for (mode, kind) in [("mean", "mean"), ("cls", "first"), ("lasttoken", "last")] {
        check(name, case.pooled(mode)?.path(), kind, &case, 12)?;
    }
    Ok(())
}

fn classes(name: &str, count: usize) -> Result<()> {
    let case = Case::read(name)?;
    let folder = case.folder()?;
    let Answers::Classes(labels) = TextModel::open(folder.path())?.answers() else {
        anyhow::bail!("{name} has classes")
    };
    assert_eq!((labels.names.len(), labels.is_reranker()), (count, count == 1), "{name}");
    check(name, folder.path(), "logits", &case, 12)
}

fn words(name: &str) -> Result<()> {
    let case = Case::read(name)?;
    let folder = case.splade()?;
    assert_eq!(TextModel::open(folder.path())?.answers(), Answers::Words, "{name}");
    check(name, folder.path(), "splade", &case, 12)
}

/// Both towers, whose vectors are pooled as the model does it.
fn towers(name: &str, length: usize) -> Result<()> {
    let case = Case::read(name)?;
    let folder = case.pooled("lasttoken")?;
    let sees = TextModel::open(folder.path())?.pictures(OparaExecutor::builder(), &Device::Cpu, DType::F32)?;
    let (tower, _) = sees.context("it sees pictures")?;
    let pixels = Tensor::from_vec(picture()?, (1, 3, 16, 16), &Device::Cpu)?;
    assert_close(&tower.call_to_host(&[pixels])?[0], &case.image, &format!("{name}: a picture"));
    let embedder = embedder(folder.path())?;
    let rows: Vec<TextRow> = case.ids.iter().cloned().map(TextRow::from).collect();
    let together = embedder.run(Bucket { batch: 4, length }, &rows.iter().collect::<Vec<_>>())?;
    for (index, (row, expected)) in rows.iter().zip(&case.expected).enumerate() {
        let alone = embedder.run(Bucket { batch: 1, length }, &[row])?.swap_remove(0);
        assert_close(&together[index], &expected["text"], &format!("{name}: text {index} in a batch"));
        assert_close(&alone, &expected["text"], &format!("{name}: text {index} alone"));
    }
    Ok(())
}

macro_rules! tests {
    ($($name:ident: $check:expr;)*) => {
        $(#[test]
        fn $name() -> Result<()> {
            $check(stringify!($name))
        })*
    };
}

tests! {
    albert: hidden_states;
    bert: hidden_states;
    bert_classifier: |name| classes(name, 3);
    bert_splade: words;
    camembert: hidden_states;
    chinese_clip: |name| towers(name, 24);
    clip: |name| towers(name, 24);
    deberta: hidden_states;
    deberta_classifier: |name| classes(name, 1);
    distilbert: hidden_states;
    distilbert_classifier: |name| classes(name, 3);
    distilbert_splade: words;
    electra: hidden_states;
    electra_classifier: |name| classes(name, 3);
    gte: hidden_states;
    gte_new: hidden_states;
    gte_reranker: |name| classes(name, 1);
    jina: hidden_states;
    modernbert: hidden_states;
    modernbert_classifier: |name| classes(name, 3);
    modernbert_splade: words;
    mt5: hidden_states;
    nomic: hidden_states;
    nvembed: hidden_states;
    qwen2: hidden_states;
    qwen2_bidirectional: hidden_states;
    qwen3: hidden_states;
    qwen3_reranker: |name| classes(name, 1);
    roberta: hidden_states;
    roberta_classifier: |name| classes(name, 3);
    roberta_splade: words;
    siglip: |name| towers(name, 16);
    t5: hidden_states;
    xlm_roberta: hidden_states;
    xlm_roberta_reranker: |name| classes(name, 1);
}
