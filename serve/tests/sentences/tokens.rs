//! How texts become tokens: case, length, and the side that is cut. The ids are those of transformers 5.24.

use anyhow::Result;
use opara_serve::embed::{TextModel, TextOptions};
use serde_json::{json, Value};

use super::folder::{tokenizer, Folder};
use super::oracle::ids;

fn encoded(folder: &Folder, text: &str) -> Result<Vec<u32>> {
    Ok(folder.open()?.tokenizer().clone().cut(true).encode(&[text])?.swap_remove(0))
}

#[test]
fn case_is_what_the_folder_says() -> Result<()> {
    let lower = [2, 5, 7, 3];
    let cased = [2, 1, 1, 3];
    let bert = |fields: Value| {
        let mut config = json!({"tokenizer_class": "BertTokenizer"});
        fields.as_object().into_iter().flatten().for_each(|(name, value)| config[name] = value.clone());
        Some(config)
    };
    // Lower case of tokenizer.json, tokenizer_config.json, do_lower_case of sentence_bert_config.json.
    let cases = [
        (false, None, None, cased),
        (true, None, None, lower),
        (false, None, Some(false), cased),
        (false, None, Some(true), lower),
        (false, bert(json!({})), None, lower),
        (false, bert(json!({"do_lower_case": true})), None, lower),
        (true, bert(json!({"do_lower_case": false})), None, cased),
        (true, bert(json!({"do_lower_case": false})), Some(true), lower),
        (false, Some(json!({"model_max_length": 16})), None, lower),
        (true, Some(json!({"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": false})), None, lower),
        (false, Some(json!({"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": true})), None, cased),
        (false, Some(json!({"tokenizer_class": "TokenizersBackend"})), Some(true), lower),
    ];
    for (own, config, module, expected) in cases {
        let folder = Folder::pooled()?;
        folder.json("tokenizer.json", &tokenizer(own, true))?;
        if let Some(config) = &config {
            folder.json("tokenizer_config.json", config)?;
        }
        if let Some(module) = module {
            folder.json("sentence_bert_config.json", &json!({"max_seq_length": 32, "do_lower_case": module}))?;
        }
        assert_eq!(encoded(&folder, "The Cat")?, expected, "{own}, {config:?}, {module:?}");
    }
    Ok(())
}

#[test]
fn lower_case_keeps_accents_and_goes_before_any_normalizer() -> Result<()> {
    let folder = Folder::pooled()?;
    folder.json("sentence_bert_config.json", &json!({"do_lower_case": true}))?;
    for normalizer in [
        json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": false}),
        Value::Null,
        json!({"type": "NFC"}),
    ] {
        let mut own = tokenizer(false, true);
        own["normalizer"] = normalizer.clone();
        folder.json("tokenizer.json", &own)?;
        assert_eq!(encoded(&folder, "The É CAT")?, [2, 5, 23, 7, 3], "{normalizer}");
    }
    Ok(())
}

/// The code of gte-Qwen2 and of Stella of 1.5B, which transformers runs.
#[test]
fn code_of_a_checkpoint_ends_texts() -> Result<()> {
    let qwen = json!({"AutoTokenizer": ["tokenization_qwen.Qwen2Tokenizer", "other/repo--tokenization_qwen.Qwen2TokenizerFast"]});
    let of = |ends: bool, config: &Value| -> Result<Vec<u32>> {
        let folder = Folder::pooled()?;
        folder.json("tokenizer.json", &tokenizer(true, ends))?;
        folder.json("tokenizer_config.json", config)?;
        encoded(&folder, "the cat")
    };
    let end = json!({"content": "[MASK]", "lstrip": false});
    assert_eq!(of(false, &json!({"auto_map": qwen, "add_eos_token": true, "eos_token": "[MASK]"}))?, [5, 7, 4]);
    assert_eq!(of(false, &json!({"auto_map": qwen, "add_eos_token": true, "eos_token": end}))?, [5, 7, 4]);
    assert_eq!(of(false, &json!({"auto_map": qwen, "add_eos_token": false, "eos_token": "[MASK]"}))?, [5, 7]);
    assert_eq!(of(true, &json!({"auto_map": qwen, "add_eos_token": true, "eos_token": "[MASK]"}))?, [2, 5, 7, 3]);
    assert_eq!(of(false, &json!({"add_eos_token": true, "eos_token": "[MASK]"}))?, [5, 7]);
    for (config, words) in [
        (json!({"auto_map": {"AutoTokenizer": ["own.Own", null]}}), "`auto_map` \"own.Own\""),
        (
            json!({"auto_map": {"AutoTokenizer": ["my_tokenization_qwen.Qwen2Tokenizer", null]}}),
            "`auto_map` \"my_tokenization_qwen.Qwen2Tokenizer\"",
        ),
        (
            json!({"auto_map": {"AutoTokenizer": ["a/b--tokenization_qwen.Qwen2Tokenizer.Own", null]}}),
            "`auto_map` \"a/b--tokenization_qwen.Qwen2Tokenizer.Own\"",
        ),
        (json!({"auto_map": qwen, "add_eos_token": true}), "no `eos_token`"),
        (json!({"auto_map": qwen, "add_eos_token": true, "eos_token": "none"}), "is no token"),
    ] {
        let error = of(false, &config).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(words), "{config}: {error}");
    }
    Ok(())
}

/// Architectures that have one type of tokens re-rank pairs, too.
#[test]
fn code_of_a_checkpoint_ends_both_texts_of_a_pair() -> Result<()> {
    let folder = Folder::pooled()?;
    let mut own = tokenizer(true, false);
    own["post_processor"] =
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true});
    folder.json("tokenizer.json", &own)?;
    let map = json!({"AutoTokenizer": ["tokenization_qwen.Qwen2Tokenizer", null]});
    folder.json("tokenizer_config.json", &json!({"auto_map": map, "add_eos_token": true, "eos_token": "[MASK]"}))?;
    let model = folder.open()?;
    let rows = model.tokenizer().pairs(&[("the".into(), "cat".into())], &TextOptions::default())?;
    assert_eq!((&rows[0].ids[..], &rows[0].types[..]), (&[5, 4, 7, 4][..], &[][..]));
    assert_eq!(model.tokenizer().encode(&["the cat"])?, [[5, 7, 4]]);
    Ok(())
}

/// Where it is allowed, `tokenizer.json` alone counts.
#[test]
fn unknown_code_of_a_checkpoint_ends_no_texts() -> Result<()> {
    let folder = Folder::pooled()?;
    folder.json("tokenizer.json", &tokenizer(true, false))?;
    let map = json!({"AutoTokenizer": ["own.Own", "tokenization_qwen.Qwen2TokenizerFast"]});
    folder.json("tokenizer_config.json", &json!({"auto_map": map, "add_eos_token": true, "eos_token": "[MASK]"}))?;
    let model = TextModel::open_with(folder.path(), true)?;
    assert_eq!(model.tokenizer().encode(&["the cat"])?, [[5, 7]]);
    Ok(())
}

#[test]
fn the_length_is_that_of_sentence_transformers_6() -> Result<()> {
    let newer = json!({
        "transformer_task": "feature-extraction", "module_output_name": "token_embeddings",
        "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    });
    let cases = [
        (None, None, 32),
        (Some(json!({"max_seq_length": 20, "do_lower_case": false})), None, 20),
        (Some(json!({"max_seq_length": 512})), None, 32),
        (Some(json!({"max_seq_length": null})), Some(json!({"model_max_length": 16})), 16),
        (Some(newer.clone()), Some(json!({"model_max_length": 16, "tokenizer_class": "BertTokenizer"})), 16),
        (Some(newer), Some(json!({"model_max_length": 1e30})), 32),
        (None, Some(json!({"model_max_length": 1_000_000_000_000_000_019_884_624_838_656u128 as f64})), 32),
        (Some(json!({"max_seq_length": 20})), Some(json!({"model_max_length": 16})), 20),
        (Some(json!({"max_seq_length": 20, "tokenizer_args": {"model_max_length": 12}})), None, 12),
    ];
    for (module, config, expected) in cases {
        let folder = Folder::pooled()?;
        if let Some(module) = &module {
            folder.json("sentence_bert_config.json", module)?;
        }
        if let Some(config) = &config {
            folder.json("tokenizer_config.json", config)?;
        }
        assert_eq!(folder.open()?.limit(), expected, "{module:?}, {config:?}");
        assert_eq!(encoded(&folder, &"cat ".repeat(40))?.len(), expected);
    }
    let folder = Folder::pooled()?;
    folder.json("sentence_roberta_config.json", &json!({"max_seq_length": 9}))?;
    assert_eq!(folder.open()?.limit(), 9, "the name that earlier versions gave the file");
    Ok(())
}

#[test]
fn texts_are_cut_on_the_side_that_the_tokenizer_names() -> Result<()> {
    let folder = Folder::pooled()?;
    folder.json("sentence_bert_config.json", &json!({"max_seq_length": 5}))?;
    let text = "the cat the dog the bird";
    let saved = |side: &str| {
        let mut own = tokenizer(true, true);
        own["truncation"] = json!({"direction": side, "max_length": 3, "strategy": "LongestFirst", "stride": 0});
        own["padding"] = json!({"strategy": {"Fixed": 20}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
            "pad_type_id": 0, "pad_token": "[PAD]"});
        own
    };
    let (right, left) = (ids("the cat the"), ids("dog the bird"));
    let cases = [
        (tokenizer(true, true), json!({}), &right),
        (tokenizer(true, true), json!({"truncation_side": "left"}), &left),
        (saved("Right"), json!({}), &right),
        (saved("Left"), json!({}), &left),
        (saved("Left"), json!({"truncation_side": "right"}), &right),
    ];
    for (own, config, expected) in cases {
        folder.json("tokenizer.json", &own)?.json("tokenizer_config.json", &config)?;
        assert_eq!(&encoded(&folder, text)?, expected, "{config}");
        // The same by a tokenizer whose words are not kept.
        let mut other = own.clone();
        other["normalizer"] = json!({"type": "Lowercase"});
        folder.json("tokenizer.json", &other)?;
        assert_eq!(&encoded(&folder, text)?, expected, "{config}");
        assert_eq!(encoded(&folder, "the cat")?, ids("the cat"), "no padding");
    }
    Ok(())
}

#[test]
fn a_cut_text_keeps_its_own_last_token_where_no_special_one_follows() -> Result<()> {
    let folder = Folder::pooled()?;
    folder.json("sentence_bert_config.json", &json!({"max_seq_length": 3}))?;
    folder.json("tokenizer.json", &tokenizer(true, false))?;
    assert_eq!(encoded(&folder, "the cat the dog")?, [5, 7, 5]);
    Ok(())
}

#[test]
fn types_that_the_tokenizer_gives_are_used() -> Result<()> {
    let folder = Folder::pooled()?;
    let mut own = tokenizer(true, true);
    own["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 1}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}},
    });
    folder.json("tokenizer.json", &own)?;
    let embedder = folder.embedder()?;
    let vectors = embedder.embed(&["the cat", "a bird"])?;
    for (vector, ids) in vectors.iter().zip([[2, 5, 7], [2, 6, 9]]) {
        let hidden = super::oracle::hidden(&folder.weights, &ids, &[0, 1, 1]);
        super::oracle::assert_close(vector, &super::oracle::pool("mean", &hidden, 0), "types 0, 1, 1");
    }
    Ok(())
}
