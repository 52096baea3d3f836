//! Which tokens of a GGUF file end a text, and which are no part of it: as llama.cpp has it.

use candle::quantized::gguf_file::Value;
use opara_models::decoder::Text;

use super::gguf::bare;
use super::*;

/// Metadata of these tokens, of one kind if `kinds` are fewer, and what else the file says.
struct Vocabulary<'a> {
    tokens: &'a [&'a str],
    kinds: Vec<i32>,
    keys: Vec<(&'static str, u32)>,
}

impl<'a> Vocabulary<'a> {
    fn of(tokens: &'a [&'a str]) -> Self {
        Self { tokens, kinds: vec![1; tokens.len()], keys: Vec::new() }
    }

    fn file(&self, folder: &Path) -> std::path::PathBuf {
        let tokens = self.tokens.iter().map(|token| Value::String(token.to_string())).collect();
        let kinds = self.kinds.iter().map(|kind| Value::I32(*kind)).collect();
        let mut others = vec![
            ("tokenizer.ggml.tokens", Some(Value::Array(tokens))),
            ("tokenizer.ggml.merges", Some(Value::Array(Vec::new()))),
            ("tokenizer.ggml.token_type", Some(Value::Array(kinds))),
            ("tokenizer.ggml.eos_token_id", None),
        ];
        for (key, id) in &self.keys {
            others.retain(|(other, _)| other != key);
            others.push((*key, Some(Value::U32(*id))));
        }
        bare(folder, &others).expect("a file")
    }

    fn read(&self) -> std::result::Result<Vec<&'a str>, opara_models::decoder::DecoderError> {
        let folder = tempfile::tempdir().expect("a folder");
        let mut ends: Vec<_> = Config::of_gguf(self.file(folder.path()))?.eos;
        ends.sort_unstable();
        Ok(ends.into_iter().map(|id| self.tokens[id as usize]).collect())
    }

    fn ends(&self) -> Vec<&'a str> {
        self.read().expect("a sound file")
    }

    fn text(&self) -> Text {
        let folder = tempfile::tempdir().expect("a folder");
        Text::of_gguf(&self.file(folder.path())).expect("a tokenizer")
    }
}

#[test]
fn tokens_end_a_text_by_their_own_text() {
    for name in [
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "<｜end▁of▁sentence｜>",
        "[e~[",
        "<|fim_pad|>",
        "<fim-pad>",
        "<fim_pad>",
        "<PAD>",
        "[PAD]",
        "<|fim_repo|>",
        "<|repo_name|>",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",
        "<|file_sep|>",
    ] {
        let tokens = ["a", "<|im_start|>", "<end>", name];
        for kind in [1, 3, 4, 5] {
            let vocabulary = Vocabulary { kinds: vec![1, 3, 3, kind], ..Vocabulary::of(&tokens) };
            assert_eq!(vocabulary.ends(), [name], "kind {kind}");
        }
        // A key adds to that.
        let keys = vec![("tokenizer.ggml.eos_token_id", 2)];
        assert_eq!(Vocabulary { keys, ..Vocabulary::of(&tokens) }.ends(), ["<end>", name]);
        // Whatever kind the file has it of, it is no part of a text.
        let text = Vocabulary::of(&tokens).text();
        let ids = text.encode(&format!("a{name}a")).expect("tokens");
        assert_eq!(ids, [0, 3, 0], "{name}");
        assert_eq!(text.decode(&ids).expect("text"), "aa", "{name}");
    }
}

#[test]
fn other_controls_end_no_text() {
    let tokens = ["<|im_start|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<s>", "<pad>", "<|eot_id|> "];
    for kind in [1, 3, 4] {
        assert!(Vocabulary { kinds: vec![kind; 7], ..Vocabulary::of(&tokens) }.ends().is_empty());
    }
    // Those of texts with a gap are no part of a text, though.
    let text = Vocabulary::of(&tokens).text();
    assert_eq!(text.decode(&[0, 1, 2, 3]).expect("text"), "<|im_start|>");
}

#[test]
fn every_key_of_an_end_counts_and_takes_the_place_of_texts() {
    let tokens = ["a", "b", "<|file_sep|>", "<|fim_pad|>", "<|repo_name|>"];
    let of = |keys: &[(&'static str, u32)]| Vocabulary { keys: keys.to_vec(), ..Vocabulary::of(&tokens) }.ends();
    let (all, pad, sep) =
        ("tokenizer.ggml.eom_token_id", "tokenizer.ggml.fim_pad_token_id", "tokenizer.ggml.fim_sep_token_id");
    assert_eq!(of(&[(all, 0), ("tokenizer.ggml.eot_token_id", 1)]), tokens);
    assert_eq!(of(&[(pad, 0), (sep, 1), ("tokenizer.ggml.fim_rep_token_id", 1)]), ["a", "b"]);
    // The largest number stands for none.
    assert_eq!(of(&[(all, u32::MAX), (pad, u32::MAX)]), tokens[2..]);
}

#[test]
fn the_end_of_a_message_is_none_of_an_answer_of_several() {
    for (others, expected) in [
        (&["<|return|>", "<|call|>"][..], &["<|return|>", "<|call|>"][..]),
        (&["<|return|>", "<|calls|>"], &["<|return|>", "<|calls|>"]),
        (&["<|flush|>", "<|calls|>"], &["<|flush|>", "<|calls|>"]),
        (&["<|return|>"], &["<|end|>", "<|return|>"]),
        (&["<|call|>"], &["<|end|>", "<|call|>"]),
        (&["<|return|>", "<|flush|>"], &["<|end|>", "<|return|>", "<|flush|>"]),
    ] {
        let tokens: Vec<&str> = ["a", "<|end|>", "<|channel|>"].iter().chain(others).copied().collect();
        let kinds = [vec![1], vec![3; tokens.len() - 1]].concat();
        let vocabulary = Vocabulary { kinds, ..Vocabulary::of(&tokens) };
        assert_eq!(vocabulary.ends(), expected, "{others:?}");
        let told = if expected.contains(&"<|end|>") { "<|channel|>a" } else { "<|channel|>a<|end|>" };
        assert_eq!(vocabulary.text().decode(&[2, 0, 1]).expect("text"), told, "{others:?}");
    }
    let tokens = ["<s>", "</s>", "<|tool_response>", "<turn|>"];
    assert_eq!(Vocabulary::of(&tokens).ends(), ["<|tool_response>", "<turn|>"]);
}

#[test]
fn an_end_beyond_the_vocabulary_and_kinds_of_fewer_tokens_are_named() {
    let tokens = ["a", "b", "c"];
    for (key, kinds, expected) in [
        (("tokenizer.ggml.eos_token_id", 3), 3, "`tokenizer.ggml.eos_token_id` is 3, and the vocabulary has 3 tokens"),
        (("tokenizer.ggml.eot_token_id", 9), 3, "`tokenizer.ggml.eot_token_id` is 9"),
        (("tokenizer.ggml.fim_pad_token_id", 4), 3, "`tokenizer.ggml.fim_pad_token_id` is 4"),
        (("tokenizer.ggml.eos_token_id", 2), 2, "`tokenizer.ggml.token_type` has 2 kinds of 3 tokens"),
    ] {
        let vocabulary = Vocabulary { kinds: vec![1; kinds], keys: vec![key], ..Vocabulary::of(&tokens) };
        let told = told(vocabulary.read());
        assert!(told.contains(expected), "{told}");
    }
}
