//! Prompts, chat templates, and characters that come token by token.

use opara_models::decoder::{Conversation, Message, Pieces, Text};

use super::*;

const TOKENIZER: &str = r#"{"version": "1.0", "added_tokens": [
    {"id": 3, "content": "<s>", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}],
    "model": {"type": "WordLevel", "vocab": {"user": 0, "hello": 1, "there": 2, "<s>": 3, "[?]": 4}, "unk_token": "[?]"},
    "pre_tokenizer": {"type": "Whitespace"}}"#;

pub(crate) fn said_by_user(content: &str) -> Conversation {
    vec![Message::new("user", content)].into()
}

#[test]
fn templates_are_found_and_rendered() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tokenizer.json");
    assert!(told(Text::beside(&path)).contains("tokenizer.json is missing"));
    std::fs::write(&path, TOKENIZER)?;
    let plain = Text::beside(&path).expect("a tokenizer");
    assert!(told(plain.encode_chat(&said_by_user("hello"))).contains("no chat template"));
    let template = "{{ bos_token }} {% for m in messages %}\n{% if m['role'].startswith('x') %}\
                    {{ raise_exception('who?') }}{% endif %}{{ m.role }} {{ m.content.strip() }}{% endfor %}";
    let settings = serde_json::json!({"bos_token": {"content": "<s>"}, "chat_template": template});
    std::fs::write(folder.path().join("tokenizer_config.json"), settings.to_string())?;
    let text = Text::beside(&path).expect("a tokenizer");
    assert_eq!(text.encode_chat(&said_by_user(" hello there ")).expect("tokens"), [3, 0, 1, 2]);
    let strange = vec![Message::new("xenon", "")].into();
    assert!(told(text.encode_chat(&strange)).contains("who?"));
    std::fs::write(folder.path().join("chat_template.jinja"), "there")?;
    assert_eq!(Text::beside(&path).expect("a tokenizer").encode_chat(&said_by_user("hello")).expect("tokens"), [2]);
    // A template that cannot be parsed costs conversations alone.
    std::fs::write(folder.path().join("chat_template.jinja"), "{% for %}")?;
    let bad = Text::beside(&path).expect("a tokenizer");
    assert!(
        bad.has_template() && told(bad.encode_chat(&said_by_user("hello"))).contains("cannot be parsed: syntax error")
    );
    assert_eq!(bad.encode("hello there").expect("tokens"), [1, 2]);
    let mut pieces = text.pieces();
    let piece = [1, 2].map(|token| pieces(token).expect("a piece")).concat();
    assert_eq!(piece, "hello there");
    Ok(())
}

#[test]
fn truncation_and_padding_that_a_file_keeps_are_not_applied() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tokenizer.json");
    let truncation = r#"{"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}"#;
    let padding = r#"{"strategy": {"Fixed": 8}, "direction": "Left", "pad_to_multiple_of": null, "pad_id": 4,
                      "pad_type_id": 0, "pad_token": "[?]"}"#;
    let saved = format!(r#"{{"truncation": {truncation}, "padding": {padding}, {}"#, &TOKENIZER[1..]);
    std::fs::write(&path, saved)?;
    std::fs::write(folder.path().join("chat_template.jinja"), "{% for m in messages %}{{ m.content }}{% endfor %}")?;
    let text = Text::beside(&path).expect("a tokenizer");
    assert_eq!(text.encode("hello there user").expect("tokens"), [1, 2, 0]);
    assert_eq!(text.encode_chat(&said_by_user("user hello there")).expect("tokens"), [0, 1, 2]);
    Ok(())
}

#[test]
fn tokens_that_the_settings_add_are_read_as_transformers_reads_them() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, TOKENIZER)?;
    let with = |tokens: serde_json::Value| {
        let settings = serde_json::json!({"added_tokens_decoder": tokens});
        std::fs::write(folder.path().join("tokenizer_config.json"), settings.to_string()).expect("a file");
        Text::beside(&path)
    };
    let tokens = |text: &Text, of: &str| text.encode(of).expect("tokens");
    let plain = with(serde_json::json!({})).expect("a tokenizer");
    assert_eq!(tokens(&plain, "hello<s>there"), [1, 3, 2]);
    // What they say of a token counts more than the tokenizer's file, and others follow its vocabulary.
    let single = serde_json::json!({"content": "<s>", "special": true, "single_word": true});
    let new = serde_json::json!({"content": "<new>", "special": false});
    let text = with(serde_json::json!({"5": new, "3": single})).expect("a tokenizer");
    assert_eq!(tokens(&text, "hello<s>there"), [1, 4, 4, 4, 2]);
    assert_eq!(tokens(&text, "hello <s> <new> there"), [1, 3, 5, 2]);
    assert_eq!(text.decode(&[1, 3, 5]).expect("text"), "hello <new>");
    for (tokens, expected) in [
        (serde_json::json!({"9": new}), "`<new>` is token 9 in tokenizer_config.json, and 5"),
        (serde_json::json!({"7": single}), "`<s>` is token 7 in tokenizer_config.json, and 3"),
        (serde_json::json!({"x": new}), "token x is not sound"),
        (serde_json::json!({"5": {"content": 7}}), "token 5 is not sound"),
    ] {
        let told = told(with(tokens));
        assert!(told.contains(expected), "{told}");
    }
    Ok(())
}

#[test]
fn tokens_that_the_settings_name_are_special() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, TOKENIZER)?;
    let settings = r#"{"eos_token": {"content": "there"}, "pad_token": "none of the vocabulary", "additional_special_tokens": ["user"]}"#;
    std::fs::write(folder.path().join("tokenizer_config.json"), settings)?;
    let text = Text::beside(&path).expect("a tokenizer");
    // They are found within words, and are no part of a text.
    assert_eq!(text.encode("hellothere<s>userx").expect("tokens"), [1, 2, 3, 0, 4]);
    assert_eq!(text.decode(&[1, 2, 3, 0]).expect("text"), "hello");
    std::fs::write(folder.path().join("tokenizer_config.json"), "{}")?;
    std::fs::write(folder.path().join("added_tokens.json"), r#"{"there": 2}"#)?;
    assert_eq!(Text::beside(&path).expect("a tokenizer").encode("hellothere").expect("tokens"), [4]);
    std::fs::write(folder.path().join("added_tokens.json"), r#"{"there": 2, "new": 5}"#)?;
    assert!(told(Text::beside(&path)).contains("`new` is token 5 in added_tokens.json"));
    std::fs::write(folder.path().join("tokenizer_config.json"), "{")?;
    assert!(told(Text::beside(&path)).contains("tokenizer_config.json"));
    Ok(())
}

#[test]
fn texts_are_split_as_the_settings_have_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tokenizer.json");
    let with = |tokenizer: &str, settings: &str, text: &str| {
        std::fs::write(&path, tokenizer).expect("a file");
        std::fs::write(folder.path().join("tokenizer_config.json"), settings).expect("a file");
        Text::beside(&path).expect("a tokenizer").encode(text).expect("tokens")
    };
    assert_eq!(with(TOKENIZER, "{}", "hello<s>"), [1, 3]);
    assert_eq!(with(TOKENIZER, r#"{"split_special_tokens": true}"#, "hello<s>"), [1, 4, 4, 4]);
    assert_eq!(with(TOKENIZER, r#"{"extra_special_tokens": {"turn": "user"}}"#, "userhello"), [0, 1]);
    assert_eq!(with(TOKENIZER, r#"{"extra_special_tokens": ["user"]}"#, "userhello"), [0, 1]);
    let bytes = |adds: bool| {
        let model = r#"{"type": "BPE", "vocab": {"a": 0, "Ġ": 1}, "merges": []}"#;
        let split =
            format!(r#"{{"type": "ByteLevel", "add_prefix_space": {adds}, "trim_offsets": true, "use_regex": true}}"#);
        format!(r#"{{"version": "1.0", "model": {model}, "pre_tokenizer": {split}}}"#)
    };
    for (of_file, settings, expected) in [
        (true, "{}", &[1, 0][..]),
        (true, r#"{"add_prefix_space": null}"#, &[1, 0]),
        (true, r#"{"add_prefix_space": false}"#, &[0]),
        (false, r#"{"add_prefix_space": true}"#, &[1, 0]),
        (false, "{}", &[0]),
    ] {
        assert_eq!(with(&bytes(of_file), settings, "a"), expected, "{of_file}, {settings}");
    }
    Ok(())
}

#[test]
fn no_merge_is_left_out_at_random() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tokenizer.json");
    let model = r#"{"type": "BPE", "dropout": 1.0, "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}"#;
    std::fs::write(&path, format!(r#"{{"version": "1.0", "model": {model}}}"#))?;
    assert_eq!(Text::beside(&path).expect("a tokenizer").encode("ab").expect("tokens"), [2]);
    Ok(())
}

#[test]
fn texts_begin_and_end_as_the_settings_have_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tokenizer.json");
    let begins = r#""post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}}], "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [3], "tokens": ["<s>"]}}}"#;
    let with = format!("{{{begins}, {}", &TOKENIZER[1..]);
    let tokens = |tokenizer: &str, settings: &str| -> Result<Vec<u32>> {
        std::fs::write(&path, tokenizer)?;
        std::fs::write(folder.path().join("tokenizer_config.json"), settings)?;
        Ok(Text::beside(&path).expect("a tokenizer").encode("hello").expect("tokens"))
    };
    for (settings, expected) in [
        (r#"{"bos_token": "<s>"}"#, [vec![1], vec![3, 1]]),
        (r#"{"bos_token": "<s>", "add_bos_token": null}"#, [vec![1], vec![3, 1]]),
        (r#"{"bos_token": "<s>", "add_bos_token": true}"#, [vec![3, 1], vec![3, 1]]),
        (r#"{"bos_token": "<s>", "add_bos_token": false}"#, [vec![1], vec![1]]),
        (r#"{"bos_token": "<s>", "eos_token": "user", "add_eos_token": true}"#, [vec![1, 0], vec![3, 1, 0]]),
    ] {
        assert_eq!([tokens(TOKENIZER, settings)?, tokens(&with, settings)?], expected, "{settings}");
    }
    std::fs::write(folder.path().join("tokenizer_config.json"), r#"{"bos_token": null, "add_bos_token": true}"#)?;
    assert!(told(Text::beside(&path)).contains("the `bos_token`, which is none of its tokens"));
    // A conversation has what its template writes.
    let settings = r#"{"bos_token": "<s>", "add_bos_token": true, "chat_template": "{{ messages[0].content }}"}"#;
    tokens(TOKENIZER, settings)?;
    assert_eq!(Text::beside(&path).expect("a tokenizer").encode_chat(&said_by_user("hello")).expect("tokens"), [1]);
    Ok(())
}

#[test]
fn a_vocabulary_beyond_the_models_is_named() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, TOKENIZER)?;
    let text = Text::beside(&path).expect("a tokenizer");
    assert!(text.check_vocabulary(5).is_ok());
    let expected =
        "the tokenizer gives `[?]` the id 4, and the model's vocabulary has 4 tokens: they do not belong together";
    assert_eq!(told(text.check_vocabulary(4)), expected);
    // A token that was added by hand may be beyond it: a prompt with it is refused.
    std::fs::write(
        &path,
        TOKENIZER.replace("\"id\": 3", "\"id\": 5").replace(", \"<s>\": 3", "").replace(": 4}", ": 3}"),
    )?;
    assert!(Text::beside(&path).expect("a tokenizer").check_vocabulary(4).is_ok());
    Ok(())
}

#[test]
fn characters_come_whole_and_nothing_is_lost() {
    let text = Text::of_bytes().expect("a tokenizer");
    let said = "a\u{e9} \n\u{4e16}\u{1f600}z";
    let tokens = text.encode(said).expect("tokens");
    assert_eq!(tokens, said.bytes().map(u32::from).collect::<Vec<_>>());
    let mut held = Pieces::default();
    let pieces: Vec<String> = tokens.iter().map(|token| text.piece(&mut held, *token).expect("a piece")).collect();
    let whole: Vec<&str> = pieces.iter().map(String::as_str).filter(|piece| !piece.is_empty()).collect();
    assert_eq!(whole, ["a", "\u{e9}", " ", "\n", "\u{4e16}", "\u{1f600}", "z"]);
    assert_eq!(text.rest(&held).expect("a rest"), "");
    assert_eq!(text.encode_chat(&said_by_user("hi")).expect("tokens"), b"user: hi\nassistant:".map(u32::from));
    // Bytes of no text, and one that ends within a character.
    for bytes in
        [&[0xff, 0xfe, 65, 0x80, 0x80, 66][..], &[0xe4, 0xb8], &[65, 0xf0, 0x9f, 0x98], &[0xf0, 0x9f, 65, 0xc3]]
    {
        let (mut held, mut told) = (Pieces::default(), String::new());
        for byte in bytes {
            told += &text.piece(&mut held, *byte).expect("a piece");
        }
        told += &text.rest(&held).expect("a rest");
        assert_eq!(told, text.decode(bytes).expect("a text"), "{bytes:?}");
        assert_eq!(told, String::from_utf8_lossy(&bytes.iter().map(|byte| *byte as u8).collect::<Vec<_>>()));
    }
}

/// All values in JSON, by the way to them.
fn places(json: &serde_json::Value) -> Vec<String> {
    let inner = |(name, value): (String, &serde_json::Value)| {
        let name = name.replace('~', "~0").replace('/', "~1");
        let below = places(value).into_iter().map(|place| format!("/{name}{place}"));
        std::iter::once(format!("/{name}")).chain(below.collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    match json {
        serde_json::Value::Object(fields) => {
            fields.iter().flat_map(|(name, value)| inner((name.clone(), value))).collect()
        }
        serde_json::Value::Array(items) => {
            items.iter().enumerate().flat_map(|(at, value)| inner((at.to_string(), value))).collect()
        }
        _ => Vec::new(),
    }
}

#[test]
fn damaged_tokenizers_are_refused_or_work_and_none_panics() -> Result<()> {
    use serde_json::json;
    let special = json!([{"id": 0, "content": "<s>", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}]);
    let begins = json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}});
    let vocab = json!({"<s>": 0, "a": 1, "b": 2, "ab": 3, "<0x61>": 4, "\u{120}": 5, "##b": 6});
    let of = |model: serde_json::Value, pre: serde_json::Value, decoder: serde_json::Value| {
        json!({"version": "1.0", "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
            "padding": {"strategy": {"Fixed": 4}, "direction": "Right", "pad_to_multiple_of": 2, "pad_id": 0, "pad_type_id": 0, "pad_token": "<s>"},
            "added_tokens": special, "normalizer": {"type": "Replace", "pattern": {"Regex": "c+"}, "content": "a"}, "pre_tokenizer": pre,
            "post_processor": begins, "decoder": decoder, "model": model})
    };
    let split = json!({"type": "Split", "pattern": {"Regex": "\\s"}, "behavior": "Isolated", "invert": false});
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    let files = [
        of(
            json!({"type": "BPE", "vocab": vocab, "merges": [["a", "b"]], "unk_token": "<s>", "byte_fallback": true, "dropout": null}),
            bytes.clone(),
            bytes,
        ),
        of(
            json!({"type": "WordPiece", "vocab": vocab, "unk_token": "<s>", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9}),
            json!({"type": "BertPreTokenizer"}),
            json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
        ),
        of(
            json!({"type": "Unigram", "vocab": [["<s>", 0.0], ["a", -1.5], ["b", -2.0]], "unk_id": 0, "byte_fallback": false}),
            json!({"type": "Sequence", "pretokenizers": [split, {"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true}]}),
            json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}),
        ),
    ];
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tokenizer.json");
    let mut loaded = 0;
    for json in &files {
        std::fs::write(&path, json.to_string())?;
        assert!(Text::beside(&path).is_ok());
        for place in places(json) {
            for value in [
                json!(null),
                json!(-1),
                json!(1u64 << 40),
                json!(u32::MAX),
                json!(""),
                json!("("),
                json!([]),
                json!({}),
                json!(1e300),
                json!(false),
            ] {
                let mut damaged = json.clone();
                *damaged.pointer_mut(&place).expect("it is there") = value;
                std::fs::write(&path, damaged.to_string())?;
                let Ok(text) = Text::beside(&path) else { continue };
                loaded += 1;
                let tokens = text.encode("ab c \u{e9}<s>");
                let _ = text.decode(&tokens.unwrap_or_default());
                let _ = (text.decode(&[0, 1, 4, u32::MAX]), text.check_vocabulary(7));
            }
        }
    }
    assert!(loaded > 100, "{loaded}");
    Ok(())
}
