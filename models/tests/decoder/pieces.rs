//! Texts whose tokens come one by one are those of all tokens at once, for any tokens.

use opara_models::decoder::{Pieces, Text};
use serde_json::{json, Value};

/// A tokenizer of these tokens, which are not split, with a decoder.
fn tokenizer(tokens: &[String], decoder: Value) -> Text {
    let special: Vec<Value> = ["<s>", "</s>"]
        .iter()
        .enumerate()
        .map(|(at, name)| {
            json!({"id": tokens.len() + at, "content": name, "special": true, "single_word": false, "lstrip": false,
                   "rstrip": false, "normalized": false})
        })
        .collect();
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), id.into())).collect();
    let json = json!({"version": "1.0", "added_tokens": special, "decoder": decoder,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": tokens[0]}});
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, json.to_string()).expect("a file");
    Text::beside(&path).expect("a tokenizer")
}

fn named(tokens: &[&str]) -> Vec<String> {
    tokens.iter().map(|token| token.to_string()).collect()
}

/// Words as sentencepiece has them, and all bytes.
fn sentencepiece() -> Vec<String> {
    let words = ["<unk>", "▁", "▁a", "b", "▁▁", "c▁", "世", "é", "▁x", "<0x", "<0xZZ>", "�"];
    words.iter().map(|word| word.to_string()).chain((0..256).map(|byte| format!("<0x{byte:02X}>"))).collect()
}

/// All pieces one after another are the text of all tokens, and each is a part of every longer text.
fn check(name: &str, text: &Text, tokens: usize, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    // Bytes of characters, rather than any, now and then.
    let bytes = "a\u{e9}\u{4e16}\u{1f600}\u{fffd}".as_bytes();
    let ids: Vec<u32> = (0..rng.usize(0..24))
        .map(|_| match rng.usize(0..4) {
            0 => rng.u32(0..tokens as u32 + 4),
            1 => rng.u32(0..12),
            _ => (tokens as u32).saturating_sub(256) + u32::from(bytes[rng.usize(0..bytes.len())]),
        })
        .collect();
    let (mut held, mut told) = (Pieces::default(), String::new());
    for (at, id) in ids.iter().enumerate() {
        told += &text.piece(&mut held, *id).expect("a piece");
        // Decoders that panic on an empty text are an error.
        let Ok(whole) = text.decode(&ids[..=at]) else { continue };
        assert_eq!(told.clone() + &text.rest(&held).expect("a rest"), whole, "{name}, {:?}", &ids[..=at]);
    }
    if let Ok(whole) = text.decode(&ids) {
        assert_eq!(told + &text.rest(&held).expect("a rest"), whole, "{name}, {ids:?}");
    }
}

#[test]
fn pieces_are_the_whole_text_for_any_tokens() {
    let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
    let spaces = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
    let (bytes, fuse) = (json!({"type": "ByteFallback"}), json!({"type": "Fuse"}));
    let sequence = |steps: &[&Value]| json!({"type": "Sequence", "decoders": steps});
    let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    let pieces = named(&["[UNK]", "a", "##b", "c", "##", ".", "don", "'", "##'t", "n't", " ", "do not", "##é", "世"]);
    let words = named(&["a</w>", "b", "c</w>", "</w>", "é", "a", "a"]);
    let stop = json!({"type": "Strip", "content": " ", "start": 1, "stop": 1});
    let late = json!({"type": "Replace", "pattern": {"String": "ab"}, "content": "c"});
    for (name, tokens, decoder) in [
        ("llama", sentencepiece(), sequence(&[&spaces, &bytes, &fuse, &strip])),
        ("gemma", sentencepiece(), sequence(&[&spaces, &bytes, &fuse])),
        ("bytes and metaspace", sentencepiece(), sequence(&[&bytes, &metaspace])),
        ("metaspace", sentencepiece(), metaspace.clone()),
        ("cut at both ends", sentencepiece(), sequence(&[&spaces, &bytes, &fuse, &stop])),
        ("replaced at last", sentencepiece(), sequence(&[&spaces, &bytes, &fuse, &late])),
        ("wordpiece", pieces.clone(), json!({"type": "WordPiece", "prefix": "##", "cleanup": true})),
        ("wordpiece as it is", pieces, json!({"type": "WordPiece", "prefix": "##", "cleanup": false})),
        ("ends of words", words.clone(), json!({"type": "BPEDecoder", "suffix": "</w>"})),
        (
            "repeated",
            words.clone(),
            json!({"type": "CTC", "pad_token": "b", "word_delimiter_token": "é", "cleanup": true}),
        ),
        ("spaces between", words, Value::Null),
        ("no letters", named(&["##", ".", "<0x41>"]), json!({"type": "WordPiece", "prefix": "##", "cleanup": true})),
    ] {
        let text = tokenizer(&tokens, decoder);
        for seed in 0..3_000 {
            check(name, &text, tokens.len(), seed);
        }
    }
    let text = Text::of_bytes().expect("a tokenizer");
    for seed in 0..3_000 {
        check("bytes", &text, 256, seed);
    }
}

#[test]
fn words_are_told_at_once_and_bytes_when_they_are_certain() {
    let steps = json!([{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]);
    let text = tokenizer(&sentencepiece(), json!({"type": "Sequence", "decoders": steps}));
    let byte = |byte: u32| 12 + byte;
    let mut held = Pieces::default();
    let mut piece = |id| text.piece(&mut held, id).expect("a piece");
    assert_eq!([piece(2), piece(3)], ["a", "b"]);
    // Half of a character, a token without text, and the other half.
    assert_eq!([piece(byte(0xc3)), piece(268), piece(byte(0xa9)), piece(2)], ["", "", "", "é a"]);
    // One byte too many makes all of them no characters.
    assert_eq!(
        [piece(byte(0xc3)), piece(byte(0xa9)), piece(byte(0xff)), piece(3)],
        ["", "", "", "\u{fffd}\u{fffd}\u{fffd}b"]
    );
}

#[test]
fn bytes_that_are_no_characters_are_told_as_such() {
    let text = Text::of_bytes().expect("a tokenizer");
    let mut held = Pieces::default();
    let mut piece = |id| text.piece(&mut held, id).expect("a piece");
    assert_eq!(
        [piece(0xff), piece(0xe4), piece(0xb8), piece(0x41), piece(0x80)],
        ["\u{fffd}", "", "", "\u{fffd}A", "\u{fffd}"]
    );
}
