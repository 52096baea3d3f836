//! Tokens of GGUF files of sentencepiece, held against a naive search for the next pair.

use std::collections::HashMap;

use candle::quantized::gguf_file::Value;
use opara_models::decoder::{DecoderError, Text};

use super::gguf::bare;
use super::text::said_by_user;
use super::*;

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const ADDED: i32 = 4;
const BYTE: i32 = 6;

/// Tokens with their scores and kinds.
#[derive(Clone)]
struct Vocabulary(Vec<(String, f32, i32)>);

impl Vocabulary {
    /// What every file of sentencepiece has, and these.
    fn of(others: &[(&str, f32)]) -> Self {
        let mut tokens =
            vec![("<unk>".to_owned(), 0., 2), ("<s>".to_owned(), 0., CONTROL), ("</s>".to_owned(), 0., CONTROL)];
        tokens.extend((0..256).map(|byte| (format!("<0x{byte:02X}>"), 0., BYTE)));
        tokens.extend(others.iter().map(|(token, score)| (token.to_string(), *score, NORMAL)));
        Self(tokens)
    }

    fn with(mut self, token: &str, kind: i32) -> Self {
        self.0.push((token.into(), 0., kind));
        self
    }

    fn file(&self, folder: &Path, others: &[(&str, Option<Value>)]) -> std::path::PathBuf {
        let list = |value: fn(&(String, f32, i32)) -> Value| Some(Value::Array(self.0.iter().map(value).collect()));
        let mut all = vec![
            ("tokenizer.ggml.model", Some(Value::String("llama".into()))),
            ("tokenizer.ggml.pre", Some(Value::String("default".into()))),
            ("tokenizer.ggml.tokens", list(|(token, ..)| Value::String(token.clone()))),
            ("tokenizer.ggml.scores", list(|(_, score, _)| Value::F32(*score))),
            ("tokenizer.ggml.token_type", list(|(.., kind)| Value::I32(*kind))),
            ("tokenizer.ggml.merges", None),
            ("tokenizer.ggml.eos_token_id", None),
        ];
        all.retain(|(key, _)| others.iter().all(|(other, _)| other != key));
        all.extend(others.iter().cloned());
        bare(folder, &all).expect("a file")
    }

    fn open(&self, others: &[(&str, Option<Value>)]) -> std::result::Result<Text, DecoderError> {
        let folder = tempfile::tempdir().expect("a folder");
        Text::of_gguf(&self.file(folder.path(), others))
    }

    fn id(&self, token: &str) -> Option<u32> {
        self.0.iter().position(|(of, ..)| of == token).map(|id| id as u32)
    }

    /// The pair with the highest score is merged, the leftmost of several, until none is left.
    fn merged(&self, text: &str) -> Vec<u32> {
        let scores: HashMap<&str, f32> = self.0.iter().map(|(token, score, _)| (token.as_str(), *score)).collect();
        let mut parts: Vec<String> = text.replace(' ', "▁").chars().map(String::from).collect();
        loop {
            let mut best: Option<(f32, usize)> = None;
            for at in 1..parts.len() {
                if let Some(&score) = scores.get(format!("{}{}", parts[at - 1], parts[at]).as_str()) {
                    if best.is_none_or(|(most, _)| score > most) {
                        best = Some((score, at));
                    }
                }
            }
            let Some((_, at)) = best else { break };
            let right = parts.remove(at);
            parts[at - 1] += &right;
        }
        let ids = parts.iter().flat_map(|part| match self.id(part) {
            Some(id) => vec![id],
            None => part.bytes().filter_map(|byte| self.id(&format!("<0x{byte:02X}>"))).collect(),
        });
        ids.collect()
    }

    /// Tokens that texts are searched for come first. What follows one of them, and the text, begins with a space.
    fn naive(&self, text: &str, adds_space: bool) -> Vec<u32> {
        let special: Vec<&str> =
            self.0.iter().filter(|(.., kind)| matches!(kind, 2..=4)).map(|(token, ..)| token.as_str()).collect();
        let (mut ids, mut rest) = (Vec::new(), text);
        while !rest.is_empty() {
            let found = special.iter().filter_map(|token| rest.find(token).map(|at| (at, token)));
            // The leftmost, and the longest of those.
            let next = found.min_by_key(|(at, token)| (*at, usize::MAX - token.len()));
            let end = next.map_or(rest.len(), |(at, _)| at);
            if end > 0 {
                let space = if adds_space { " " } else { "" };
                ids.extend(self.merged(&format!("{space}{}", &rest[..end])));
            }
            ids.extend(next.and_then(|(_, token)| self.id(token)));
            rest = &rest[end + next.map_or(0, |(_, token)| token.len())..];
        }
        ids
    }
}

const ADD_BOS: (&str, Option<Value>) = ("tokenizer.ggml.add_bos_token", Some(Value::Bool(false)));
const NO_SPACE: (&str, Option<Value>) = ("tokenizer.ggml.add_space_prefix", Some(Value::Bool(false)));

#[test]
fn tokens_are_those_of_a_naive_search() {
    let letters = ["a", "b", "▁", "é", "世", "c"];
    let mut rng = fastrand::Rng::with_seed(5);
    let mut merged = 0;
    for round in 0..60 {
        let mut others: Vec<(String, f32)> = Vec::new();
        // Some letters are tokens, others are bytes.
        others.extend(letters.iter().filter(|_| rng.u32(0..4) > 0).map(|letter| (letter.to_string(), -9.)));
        for _ in 0..rng.usize(0..40) {
            let token: String = (0..rng.usize(2..6)).map(|_| letters[rng.usize(..letters.len())]).collect();
            // Few scores: many tokens have the same.
            others.push((token, -(rng.u32(0..6) as f32)));
        }
        others.sort_by(|a, b| a.0.cmp(&b.0));
        others.dedup_by(|a, b| a.0 == b.0);
        rng.shuffle(&mut others);
        let others: Vec<(&str, f32)> = others.iter().map(|(token, score)| (token.as_str(), *score)).collect();
        let vocabulary = Vocabulary::of(&others).with("<mark>", ADDED).with("   ", ADDED).with("<pad>", CONTROL);
        let settings = [ADD_BOS, NO_SPACE];
        for (adds_space, settings) in [(true, &settings[..1]), (false, &settings)] {
            let text = vocabulary.open(settings).expect("a tokenizer");
            let parts =
                ["a", "b", "c", "é", "世", " ", "ab", "▁", "x", "<mark>", "<s>", "   ", "<unk>", "\n", "😀", "<ma"];
            for _ in 0..40 {
                let all: String = (0..rng.usize(0..24)).map(|_| parts[rng.usize(..parts.len())]).collect();
                let expected = vocabulary.naive(&all, adds_space);
                assert_eq!(text.encode(&all).expect("tokens"), expected, "round {round}: {all:?} by {others:?}");
                merged += expected.iter().filter(|&&id| id > 259 + letters.len() as u32).count();
            }
        }
    }
    assert!(merged > 10_000, "{merged}");
}

#[test]
fn texts_begin_with_a_space_and_a_token_of_their_own() {
    let vocabulary = Vocabulary::of(&[("▁", -3.), ("h", -4.), ("i", -5.), ("▁h", -1.), ("hi", -2.), ("▁hi", -6.)])
        .with("<mark>", ADDED);
    let [unk, bos, eos] = [0, 1, 2];
    let id = |token: &str| vocabulary.id(token).expect("a token");
    let (space_hi, hi, mark) = (id("▁hi"), id("hi"), id("<mark>"));
    let text = vocabulary.open(&[]).expect("a tokenizer");
    let tokens = |text: &Text, of: &str| text.encode(of).expect("tokens");
    assert_eq!(tokens(&text, "hi"), [bos, space_hi]);
    assert_eq!(tokens(&text, ""), [bos]);
    assert_eq!(tokens(&text, " hi"), [bos, id("▁"), space_hi]);
    assert_eq!(tokens(&text, "hi<mark>hi</s><unk>"), [bos, space_hi, mark, space_hi, eos, unk]);
    assert_eq!(tokens(&text, "é"), [bos, id("▁"), id("<0xC3>"), id("<0xA9>")]);
    // The space of the beginning is no part of what is told, and what is added by hand is.
    assert_eq!(text.decode(&tokens(&text, "hi<mark> é")).expect("text"), "hi<mark>  é");
    let plain = vocabulary.open(&[NO_SPACE]).expect("a tokenizer");
    assert_eq!(tokens(&plain, "hi<mark>hi"), [bos, hi, mark, hi]);
    assert_eq!(plain.decode(&[space_hi]).expect("text"), " hi");
    // Numbers of tokens that the file says count more than sentencepiece's.
    let set = |name, id| (name, Some(Value::U32(id)));
    let ends = ("tokenizer.ggml.add_eos_token", Some(Value::Bool(true)));
    assert_eq!(tokens(&vocabulary.open(std::slice::from_ref(&ends)).expect("a tokenizer"), "hi"), [bos, space_hi, eos]);
    let named = [set("tokenizer.ggml.bos_token_id", mark), set("tokenizer.ggml.eos_token_id", unk), ends];
    assert_eq!(tokens(&vocabulary.open(&named).expect("a tokenizer"), "hi"), [mark, space_hi, unk]);
    let template = Value::String("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}".into());
    let chats = vocabulary.open(&[("tokenizer.chat_template", Some(template))]).expect("a tokenizer");
    assert_eq!(chats.encode_chat(&said_by_user("hi")).expect("tokens"), [bos, space_hi, eos]);
}

#[test]
fn the_model_ends_where_sentencepiece_ends() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let texts =
        |tokens: &[&str]| Some(Value::Array(tokens.iter().map(|token| Value::String(token.to_string())).collect()));
    let others = [
        ("tokenizer.ggml.model", Some(Value::String("llama".into()))),
        ("tokenizer.ggml.tokens", texts(&["<unk>", "<s>", "end", "<end_of_turn>"])),
        ("tokenizer.ggml.token_type", None),
        ("tokenizer.ggml.eos_token_id", None),
    ];
    let path = bare(folder.path(), &others)?;
    assert_eq!(Config::of_gguf(&path).expect("a sound file").eos, [2, 3]);
    Ok(())
}

#[test]
fn spaces_behind_controls_are_dropped_for_phi_3_alone() {
    let vocabulary =
        Vocabulary::of(&[("▁", -3.), ("a", -4.), ("▁a", -1.)]).with("<|user|>", CONTROL).with("<|endoftext|>", CONTROL);
    let name = |name: &str| [("general.name", Some(Value::String(name.into()))), ADD_BOS];
    let id = |token: &str| vocabulary.id(token).expect("a token");
    let tokens =
        |model: &str, text: &str| vocabulary.open(&name(model)).expect("a tokenizer").encode(text).expect("tokens");
    let (user, end, space, a) = (id("<|user|>"), id("<|endoftext|>"), id("▁"), id("▁a"));
    for model in ["Phi-3-mini", "phi3"] {
        assert_eq!(tokens(model, "<|user|>\n a"), [user, a]);
        assert_eq!(tokens(model, "<|endoftext|> a"), [end, space, a]);
    }
    assert_eq!(tokens("Llama", "<|user|> a"), [user, space, a]);
}

#[test]
fn what_sentencepiece_needs_and_the_file_lacks_is_named() {
    let vocabulary = Vocabulary::of(&[("a", -1.)]);
    let floats = |scores: Vec<f32>| Some(Value::Array(scores.into_iter().map(Value::F32).collect()));
    let count = vocabulary.0.len();
    for (key, value, expected) in [
        ("tokenizer.ggml.scores", None, "`tokenizer.ggml.scores` has no number for each token"),
        ("tokenizer.ggml.scores", floats(vec![0.; count - 1]), "`tokenizer.ggml.scores`"),
        ("tokenizer.ggml.scores", floats(vec![f32::NAN; count]), "`tokenizer.ggml.scores`"),
        ("tokenizer.ggml.scores", Some(Value::Bool(true)), "`tokenizer.ggml.scores` is true"),
        (
            "tokenizer.ggml.precompiled_charsmap",
            floats(vec![1.]),
            "`tokenizer.ggml.precompiled_charsmap` changes tokens",
        ),
        (
            "tokenizer.ggml.remove_extra_whitespaces",
            Some(Value::Bool(true)),
            "`tokenizer.ggml.remove_extra_whitespaces`",
        ),
        ("tokenizer.ggml.tokens", None, "no tokens"),
    ] {
        let told = told(vocabulary.open(&[(key, value)]));
        assert!(told.contains(expected), "{key}: {told}");
    }
    let mut lacking = vocabulary.clone();
    lacking.0.retain(|(token, ..)| token != "<0xE4>" && token != "<0x61>");
    // The letter a is a token.
    let told = told(lacking.open(&[]));
    assert!(told.contains("<0xE4>"), "{told}");
}

#[test]
fn damaged_vocabularies_never_panic() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let vocabulary =
        Vocabulary::of(&[("▁", -3.), ("a", -4.), ("▁a", -1.)]).with("<mark>", ADDED).with("</s> ", CONTROL);
    let path = vocabulary.file(folder.path(), &[]);
    let whole = std::fs::read(&path)?;
    let mut rng = fastrand::Rng::with_seed(7);
    let mut read = 0;
    for _ in 0..2_000 {
        let mut bytes = whole.clone();
        for _ in 0..rng.usize(1..8) {
            let at = rng.usize(..bytes.len().min(9_000));
            bytes[at] = [0, 1, 0x7f, 0x80, 0xff, rng.u8(..)][rng.usize(..6)];
        }
        std::fs::write(&path, bytes)?;
        let _ = Config::of_gguf(&path);
        if let Ok(text) = Text::of_gguf(&path) {
            read += 1;
            if let Ok(tokens) = text.encode("a<mark> é\u{0}</s> a世") {
                let _ = text.decode(&tokens);
            }
        }
    }
    assert!(read > 100, "{read}");
    Ok(())
}
