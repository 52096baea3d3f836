//! Tokenizers in GGUF files, with llama.cpp's defaults.

use candle::quantized::gguf_file::Value;
use opara_models::decoder::Text;

use super::gguf::bare;
use super::text::said_by_user;
use super::*;

fn of(others: &[(&str, Option<Value>)]) -> std::result::Result<Text, opara_models::decoder::DecoderError> {
    let folder = tempfile::tempdir().expect("a folder");
    Text::of_gguf(&bare(folder.path(), others).expect("a file"))
}

fn tokens(others: &[(&str, Option<Value>)], text: &str) -> Vec<u32> {
    of(others).expect("a tokenizer").encode(text).expect("tokens")
}

fn named(name: &str) -> Option<Value> {
    Some(Value::String(name.into()))
}

const PRE: &str = "tokenizer.ggml.pre";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const BOS: (&str, Option<Value>) = ("tokenizer.ggml.bos_token_id", Some(Value::U32(6)));

#[test]
fn texts_begin_and_end_as_llama_cpp_has_it() {
    for (pre, expected) in [
        ("llama-bpe", vec![6, 3]),
        ("llama3", vec![6, 3]),
        ("llama-v3", vec![6, 3]),
        ("falcon3", vec![6, 3]),
        ("tekken", vec![6, 3]),
        ("pixtral", vec![6, 3]),
        ("qwen2", vec![3]),
        ("gpt-2", vec![3]),
        ("smollm", vec![3]),
        ("dbrx", vec![3]),
        ("default", vec![3]),
    ] {
        assert_eq!(tokens(&[(PRE, named(pre)), BOS], "ab"), expected, "{pre}");
        // What the file says comes first.
        assert_eq!(tokens(&[(PRE, named(pre)), BOS, (ADD_BOS, Some(Value::Bool(true)))], "ab"), [6, 3], "{pre}");
        assert_eq!(tokens(&[(PRE, named(pre)), BOS, (ADD_BOS, Some(Value::Bool(false)))], "ab"), [3], "{pre}");
    }
    let ends = ("tokenizer.ggml.add_eos_token", Some(Value::Bool(true)));
    assert_eq!(tokens(&[(PRE, named("llama-bpe")), BOS, ends.clone()], "ab"), [6, 3, 6]);
    assert_eq!(tokens(&[ends], ""), [6]);
    assert_eq!(tokens(&[(PRE, None)], "ab"), [3]);
    // A conversation begins with it once.
    for template in ["{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}"] {
        let text =
            of(&[(PRE, named("llama-bpe")), BOS, ("tokenizer.chat_template", named(template))]).expect("a tokenizer");
        assert_eq!(text.encode_chat(&said_by_user("ab")).expect("tokens"), [6, 3], "{template}");
    }
}

#[test]
fn whole_tokens_come_before_merges_where_the_kind_says_so() {
    // No merge gives `abc`.
    let vocab = ["a", "b", "c", "ab", "Ġ", "abc", "<end>"].map(|token| Value::String(token.into()));
    let merges = ["a b"].map(|merge| Value::String(merge.into()));
    for (pre, expected) in
        [("llama3", vec![5]), ("llama-v3", vec![5]), ("llama-bpe", vec![5]), ("tekken", vec![5]), ("qwen2", vec![3, 2])]
    {
        let others = [
            (PRE, named(pre)),
            (ADD_BOS, Some(Value::Bool(false))),
            ("tokenizer.ggml.tokens", Some(Value::Array(vocab.to_vec()))),
            ("tokenizer.ggml.merges", Some(Value::Array(merges.to_vec()))),
        ];
        assert_eq!(tokens(&others, "abc"), expected, "{pre}");
    }
}

#[test]
fn digits_are_split_as_the_kind_says() {
    let vocab: Vec<Value> =
        ["1", "11", "111", "1111", "a", "?", "<end>"].map(|token| Value::String(token.into())).to_vec();
    let merges: Vec<Value> = ["1 1", "11 1", "11 11"].map(|merge| Value::String(merge.into())).to_vec();
    for (pre, expected) in [
        ("gpt-2", vec![3, 4]),
        ("qwen2", vec![0, 0, 0, 0, 4]),
        ("llama-bpe", vec![2, 0, 4]),
        ("smollm", vec![0, 0, 0, 0, 4]),
        ("gpt-4o", vec![2, 0, 4]),
        ("deepseek-v3", vec![2, 0, 4]),
        ("default", vec![2, 0, 4]),
        ("tekken", vec![0, 0, 0, 0, 4]),
    ] {
        let others = [
            (PRE, named(pre)),
            (ADD_BOS, Some(Value::Bool(false))),
            ("tokenizer.ggml.tokens", Some(Value::Array(vocab.clone()))),
            ("tokenizer.ggml.merges", Some(Value::Array(merges.clone()))),
        ];
        let got = tokens(&others, "1111a");
        assert_eq!(got, expected, "{pre}");
    }
}

#[test]
fn what_would_change_tokens_and_is_not_read_is_named() {
    let on = || Some(Value::Bool(true));
    for (others, expected) in [
        (vec![(PRE, named("unheard-of"))], "split by `unheard-of`"),
        (vec![("tokenizer.ggml.model", named("t5"))], "of kind `t5`"),
        (vec![(PRE, named("llama-bpe"))], "`tokenizer.ggml.bos_token_id` does not name"),
        (
            vec![(PRE, named("llama-bpe")), ("tokenizer.ggml.bos_token_id", Some(Value::U32(7)))],
            "`tokenizer.ggml.bos_token_id`",
        ),
        (
            vec![(PRE, named("llama-bpe")), ("tokenizer.ggml.bos_token_id", Some(Value::U64((1 << 32) + 6)))],
            "`tokenizer.ggml.bos_token_id`",
        ),
        (vec![("tokenizer.ggml.add_space_prefix", on())], "`tokenizer.ggml.add_space_prefix` changes tokens"),
        (vec![("tokenizer.ggml.add_sep_token", on())], "`tokenizer.ggml.add_sep_token` changes tokens"),
        (vec![("tokenizer.ggml.normalizer.lowercase", on())], "`tokenizer.ggml.normalizer.lowercase` changes tokens"),
        (vec![("tokenizer.ggml.merges", Some(Value::Array(vec![Value::String("ab".into())])))], "not a pair to merge"),
        (
            vec![("tokenizer.ggml.tokens", Some(Value::Array(vec![Value::String("a".into()); 2])))],
            "in the vocabulary twice",
        ),
    ] {
        let told = told(of(&others));
        assert!(told.contains(expected), "{expected}: {told}");
    }
    let off = Some(Value::Bool(false));
    assert!(
        of(&[("tokenizer.ggml.add_space_prefix", off.clone()), ("tokenizer.ggml.normalizer.lowercase", off)]).is_ok()
    );
}
