//! A tokenizer whose tokens are bytes, for models of random weights.

use std::collections::BTreeMap;

use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::bpe::{Vocab, BPE};
use tokenizers::Tokenizer;

use super::byte_letters::letter;
use super::error::{DecoderError, Result};
use super::template::Templates;
use super::text::Text;

/// Conversations as lines.
const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:";

impl Text {
    /// Of 256 tokens, one for each byte, with a chat template that writes a line for each message: for models of random weights.
    ///
    /// # Errors
    /// None in practice.
    pub fn of_bytes() -> Result<Self> {
        let vocab: Vocab = (0u8..=255).map(|byte| (letter(byte).to_string(), u32::from(byte))).collect();
        let model = BPE::builder().vocab_and_merges(vocab, Vec::new());
        let mut tokenizer = Tokenizer::new(model.build().map_err(DecoderError::Tokenizer)?);
        tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, true, false)));
        tokenizer.with_decoder(Some(ByteLevel::default()));
        let templates = Templates::of(TEMPLATE, BTreeMap::new());
        Self::new(tokenizer, templates, "tokens that are bytes".into())
    }
}
