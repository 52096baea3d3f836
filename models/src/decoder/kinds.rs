//! Of what kinds the tokens of a GGUF file are, and which of them end a text: as llama.cpp has it, by keys and by the tokens' texts.

use std::collections::HashMap;

use super::error::Result;
use super::gguf::Gguf;

/// Of what kind a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Of no other kind.
    Plain,
    /// Of structure: texts are searched for it before they are split, and it is no part of what a model writes.
    Control,
    /// Added by hand: texts are searched for it as well, and it is a part of what a model writes.
    Added,
}

/// The kinds of all tokens, and those that end a text.
pub(super) struct Kinds {
    of: Vec<Kind>,
    ends: Vec<u32>,
}

/// Texts of tokens that end a text, be they controls or not.
const ENDS: [&str; 22] = [
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
];

/// Keys of tokens that end a text.
const END_KEYS: [&str; 3] = ["eos", "eot", "eom"];

/// Tokens of texts with a gap: their keys, texts where no key names one, and whether they end a text.
const GAPS: [(&[&str], &[&str], bool); 6] = [
    (
        &["fim_pre", "prefix"],
        &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
        false,
    ),
    (
        &["fim_suf", "suffix"],
        &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
        false,
    ),
    (
        &["fim_mid", "middle"],
        &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
        false,
    ),
    (&["fim_pad"], &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"], true),
    (&["fim_rep"], &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"], true),
    (&["fim_sep"], &["<|file_sep|>"], true),
];

/// Parts of gpt-oss' answers, which are told as they are.
const TOLD: [&str; 4] = ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// A token that no text ends with where one of each of these ends texts, and its kind then. In such vocabularies `<|end|>` ends a
/// message, of which an answer has several.
const NO_ENDS: [(&[&[&str]], &str, Kind); 2] = [
    (&[&["<|return|>", "<|flush|>"], &["<|call|>", "<|calls|>"]], "<|end|>", Kind::Added),
    (&[&["<|tool_response>"]], "</s>", Kind::Plain),
];

/// What ends a text of sentencepiece where no key says so.
const SENTENCEPIECE_END: u32 = 2;

impl Kinds {
    /// Of a file with these tokens.
    ///
    /// # Errors
    /// Kinds that are no numbers, or too few; a token that ends a text and is not in the vocabulary.
    pub fn of(gguf: &Gguf, tokens: &[&str]) -> Result<Self> {
        let name = "tokenizer.ggml.token_type";
        let types = gguf.parsed(name, "a list of numbers", Gguf::numbers)?;
        if let Some(types) = types.as_ref().filter(|types| types.len() < tokens.len()) {
            return Err(gguf.damaged(format!("`{name}` has {} kinds of {} tokens", types.len(), tokens.len())));
        }
        let of = types.into_iter().flatten().chain(std::iter::repeat(1)).take(tokens.len()).map(Kind::numbered);
        let mut kinds = Self { of: of.collect(), ends: Vec::new() };
        let known: HashMap<&str, u32> = tokens.iter().copied().zip(0..).collect();
        let id = |name: &&str| known.get(*name).copied();
        for key in END_KEYS {
            kinds.ends.extend(token(gguf, key, tokens.len())?);
        }
        let is_sentencepiece = gguf.text("tokenizer.ggml.model") == Some("llama");
        if is_sentencepiece && tokens.len() > SENTENCEPIECE_END as usize && !gguf.has_key(&key("eos")) {
            kinds.ends.push(SENTENCEPIECE_END);
        }
        for (keys, names, ends) in GAPS {
            let mut named = None;
            for key in keys {
                named = named.or(token(gguf, key, tokens.len())?);
            }
            let found = named.is_none().then(|| names.iter().find_map(id)).flatten();
            found.into_iter().for_each(|id| kinds.set(id, Kind::Control));
            kinds.ends.extend(named.or(found).filter(|_| ends));
        }
        for end in ENDS.iter().filter_map(id) {
            kinds.set(end, Kind::Control);
            kinds.ends.push(end);
        }
        TOLD.iter().filter_map(id).for_each(|id| kinds.set(id, Kind::Added));
        let is_end = |kinds: &Self, name: &str| id(&name).is_some_and(|id| kinds.ends.contains(&id));
        for (others, name, kind) in NO_ENDS {
            let is_so = others.iter().all(|others| others.iter().any(|other| is_end(&kinds, other)));
            let Some(id) = id(&name).filter(|_| is_so) else { continue };
            kinds.ends.retain(|end| *end != id);
            kinds.set(id, kind);
        }
        let mut ends = Vec::new();
        kinds.ends.into_iter().for_each(|end| {
            if !ends.contains(&end) {
                ends.push(end)
            }
        });
        Ok(Self { ends, ..kinds })
    }

    fn set(&mut self, id: u32, kind: Kind) {
        if let Some(of) = self.of.get_mut(id as usize) {
            *of = kind;
        }
    }

    /// One for each token.
    pub fn all(&self) -> &[Kind] {
        &self.of
    }

    /// The tokens that end a text.
    pub fn into_ends(self) -> Vec<u32> {
        self.ends
    }
}

impl Kind {
    /// By GGUF's numbers.
    fn numbered(number: u64) -> Self {
        match number {
            // Texts are searched for the token of what is not known, too.
            2 | 3 => Self::Control,
            4 => Self::Added,
            _ => Self::Plain,
        }
    }
}

fn key(name: &str) -> String {
    format!("tokenizer.ggml.{name}_token_id")
}

/// The token of a key, if the file has it. The largest number stands for none.
fn token(gguf: &Gguf, name: &str, tokens: usize) -> Result<Option<u32>> {
    let key = key(name);
    match gguf.optional(&key)?.filter(|id| *id != u32::MAX as usize) {
        // Without tokens in the file nobody can tell.
        Some(id) if tokens > 0 && id >= tokens => {
            Err(gguf.damaged(format!("`{key}` is {id}, and the vocabulary has {tokens} tokens")))
        }
        id => Ok(id.map(|id| id as u32)),
    }
}
