//! Prompts before texts.

use anyhow::Result;
use opara_serve::embed::{EmbedError, PromptChoice, TextOptions};
use serde_json::json;

use super::folder::Folder;
use super::oracle::ids;

fn chosen(prompt: PromptChoice) -> TextOptions {
    TextOptions { prompt, ..TextOptions::default() }
}

#[test]
fn a_prompt_is_the_default_or_the_one_that_is_chosen() -> Result<()> {
    let folder = Folder::pooled()?;
    let config = json!({
        "__version__": {"sentence_transformers": "6.2.0"}, "model_type": "SentenceTransformer", "similarity_fn_name": "cosine",
        "prompts": {"query": "query : ", "document": "document : ", "none": null}, "default_prompt_name": "document",
    });
    folder.json("config_sentence_transformers.json", &config)?;
    let tokenizer = folder.open()?.tokenizer().clone();
    assert_eq!(tokenizer.encode(&["the cat"])?[0], ids("document : the cat"));
    for (choice, expected) in [
        (PromptChoice::Default, "document : the cat"),
        (PromptChoice::Named("query".into()), "query : the cat"),
        (PromptChoice::Named("none".into()), "the cat"),
        (PromptChoice::Text("a ".into()), "a the cat"),
        (PromptChoice::Text(String::new()), "the cat"),
    ] {
        assert_eq!(tokenizer.rows(&["the cat"], &chosen(choice.clone()))?[0].ids, ids(expected), "{choice:?}");
    }
    let error = tokenizer.rows(&["the cat"], &chosen(PromptChoice::Named("passage".into()))).expect_err("unknown");
    assert_eq!(error.to_string(), "there is no prompt \"passage\": the model has document, none, query");
    Ok(())
}

#[test]
fn every_model_has_empty_prompts_for_queries_and_documents() -> Result<()> {
    let folder = Folder::pooled()?;
    folder.json("config_sentence_transformers.json", &json!({"prompts": {}, "default_prompt_name": null}))?;
    let tokenizer = folder.open()?.tokenizer().clone();
    for name in ["query", "document"] {
        let rows = tokenizer.rows(&["the cat"], &chosen(PromptChoice::Named(name.into())))?;
        assert_eq!(rows[0].ids, ids("the cat"));
    }
    Ok(())
}

#[test]
fn tokens_of_a_prompt_are_left_out_of_the_pooling() -> Result<()> {
    let folder = Folder::pooled()?;
    folder.json("1_Pooling/config.json", &json!({"pooling_mode": "mean", "include_prompt": false}))?;
    folder.json("sentence_bert_config.json", &json!({"max_seq_length": 6}))?;
    let tokenizer = folder.open()?.tokenizer().clone().cut(true);
    let prompt = |text: &str| chosen(PromptChoice::Text(text.into()));
    let rows = tokenizer.rows(&["the cat", ""], &prompt("query : "))?;
    assert_eq!(rows.iter().map(|row| row.unpooled).collect::<Vec<_>>(), [3, 3], "[CLS] query :");
    assert_eq!(rows[1].ids, [2, 17, 19, 3]);
    // A prompt that fills the model's length leaves the last token alone.
    let rows = tokenizer.rows(&["the cat"], &prompt("a a a a a a a "))?;
    assert_eq!((rows[0].ids.clone(), rows[0].unpooled), (vec![2, 6, 6, 6, 6, 3], 5));
    Ok(())
}

#[test]
fn a_text_without_tokens_to_pool_is_an_error() -> Result<()> {
    let folder = Folder::pooled()?;
    folder.json("tokenizer.json", &super::folder::tokenizer(true, false))?;
    let embedder = folder.embedder()?;
    assert!(embedder.embed(&["the cat"])?[0].iter().all(|x| x.is_finite()));
    let error = embedder.embed(&["the cat", ""]).expect_err("no tokens");
    assert!(matches!(error, EmbedError::Empty { text: 1 }), "{error}");
    folder.json("1_Pooling/config.json", &json!({"include_prompt": false}))?;
    let tokenizer = folder.open()?.tokenizer().clone();
    let error = tokenizer.rows(&["", "a"], &chosen(PromptChoice::Text("query :".into()))).expect_err("no text");
    assert!(matches!(error, EmbedError::Empty { text: 0 }), "{error}");
    Ok(())
}
