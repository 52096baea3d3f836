//! Token ids of words, which are kept: texts consist of few different words.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use tokenizers::{ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, Tokenizer};

/// Words that are kept. Beyond that all are forgotten: frequent ones come back with the next texts.
const WORDS: usize = 1 << 16;

/// Bytes of the longest word that is kept.
const LONGEST: usize = 48;

/// A BERT's tokenizer, whose tokens of a word depend on that word alone: it splits texts at white space before all else.
pub(super) struct Words {
    tokenizer: Arc<Tokenizer>,
    /// Tokens before those of a text, and after them.
    around: [Vec<u32>; 2],
    known: RwLock<HashMap<Box<str>, Box<[u32]>>>,
}

impl Words {
    /// Of this tokenizer; `None` if it is of another kind.
    pub fn of(tokenizer: &Arc<Tokenizer>) -> Option<Self> {
        let splits = matches!(tokenizer.get_model(), ModelWrapper::WordPiece(_))
            && matches!(tokenizer.get_normalizer(), Some(NormalizerWrapper::BertNormalizer(_)))
            && matches!(tokenizer.get_pre_tokenizer(), Some(PreTokenizerWrapper::BertPreTokenizer(_)))
            && !tokenizer.get_added_tokens_decoder().values().any(|token| token.content.contains(char::is_whitespace));
        let around = splits.then(|| around(tokenizer)).flatten()?;
        Some(Self { tokenizer: tokenizer.clone(), around, known: RwLock::default() })
    }

    /// Tokens before those of a text, and after them.
    pub fn around(&self) -> &[Vec<u32>; 2] {
        &self.around
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The ids of a text.
    pub fn encode(&self, text: &str) -> tokenizers::Result<Vec<u32>> {
        let [before, after] = &self.around;
        let (mut ids, mut new) = (before.clone(), Vec::new());
        {
            let known = self.known.read();
            for word in text.split([' ', '\n', '\t', '\r']).filter(|word| !word.is_empty()) {
                match known.get(word) {
                    Some(tokens) => ids.extend_from_slice(tokens),
                    None => new.push((ids.len(), word)),
                }
            }
        }
        // Outside of the lock.
        if !new.is_empty() {
            ids = self.with(&ids, &new)?;
        }
        ids.extend_from_slice(after);
        Ok(ids)
    }

    /// Adds the ids of words at their places, and keeps them.
    fn with(&self, ids: &[u32], new: &[(usize, &str)]) -> tokenizers::Result<Vec<u32>> {
        let (mut all, mut taken, mut kept) = (Vec::with_capacity(ids.len() + 2 * new.len()), 0, Vec::new());
        for &(at, word) in new {
            all.extend_from_slice(&ids[taken..at]);
            taken = at;
            let encoding = self.tokenizer.encode_fast(word, false)?;
            all.extend_from_slice(encoding.get_ids());
            if word.len() <= LONGEST {
                kept.push((Box::from(word), Box::from(encoding.get_ids())));
            }
        }
        all.extend_from_slice(&ids[taken..]);
        let mut known = self.known.write();
        if known.len() + kept.len() > WORDS {
            known.clear();
        }
        known.extend(kept);
        Ok(all)
    }
}

/// What the tokenizer puts around the tokens of a text; `None` if tokens have types.
fn around(tokenizer: &Tokenizer) -> Option<[Vec<u32>; 2]> {
    let encode = |special| tokenizer.encode_fast("a", special).ok();
    let (word, all) = (encode(false)?, encode(true)?);
    if all.get_type_ids().iter().any(|&kind| kind != 0) {
        return None;
    }
    let (word, all) = (word.get_ids().to_vec(), all.get_ids());
    let at = all.windows(word.len().max(1)).position(|part| part == word)?;
    Some([all[..at].to_vec(), all[at + word.len()..].to_vec()])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tokenizer as those of BERTs.
    fn bert() -> tokenizers::Result<Tokenizer> {
        let special = |content: &str, id: usize| {
            serde_json::json!({"id": id, "content": content, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false, "special": true})
        };
        let names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
        let pieces = [
            "a", "b", "cat", "s", "##s", "##a", "##b", "##cat", ",", ".", "é", "e", "##e", "日", "σ", "##σ", "[", "]",
            "mask",
        ];
        let vocab: serde_json::Map<String, serde_json::Value> =
            names.iter().chain(&pieces).enumerate().map(|(id, piece)| (piece.to_string(), id.into())).collect();
        let json = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": names.iter().enumerate().map(|(id, name)| special(name, id)).collect::<Vec<_>>(),
            "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
                "lowercase": true},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
            "decoder": null,
            "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 8,
                "vocab": vocab},
        });
        json.to_string().parse()
    }

    #[test]
    fn ids_are_those_of_the_whole_text() -> tokenizers::Result<()> {
        let words = Words::of(&bert()?.into()).expect("it is a BERT's");
        let parts = [
            "cat",
            "a",
            "b",
            "s",
            " ",
            "  ",
            "\t",
            "\n",
            "\r",
            "\u{a0}",
            "\u{3000}",
            "\u{2028}",
            "\u{0}",
            "\u{ad}",
            "\u{200b}",
            "é",
            "e\u{301}",
            "\u{301}",
            "É",
            "Σ",
            "ΑΣ",
            "日",
            "本",
            ",",
            ".",
            "[MASK]",
            "[mask]",
            "[CLS",
            "]",
            "aaaaaaaaaaaaaaa",
            "🐈",
        ];
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..3_000 {
            let text: String = (0..rng.usize(0..12)).map(|_| parts[rng.usize(..parts.len())]).collect();
            let expected = words.tokenizer.encode_fast(text.as_str(), true)?;
            // The second time from words that are known.
            for _ in 0..2 {
                assert_eq!(words.encode(&text)?, expected.get_ids(), "{text:?}");
            }
        }
        Ok(())
    }

    #[test]
    fn other_tokenizers_are_left_alone() -> tokenizers::Result<()> {
        let mut spaces = bert()?;
        spaces.add_special_tokens([tokenizers::AddedToken::from("a b", true)])?;
        assert!(Words::of(&spaces.into()).is_none(), "a token with a space");
        let mut unsplit = bert()?;
        unsplit.with_pre_tokenizer(None::<PreTokenizerWrapper>);
        assert!(Words::of(&unsplit.into()).is_none(), "no split at white space");
        Ok(())
    }
}
