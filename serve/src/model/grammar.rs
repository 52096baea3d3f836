//! Texts that follow a grammar, by llguidance.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use opara_models::decoder::Text;
use opara_models::engine::Guidance;

use super::{Failure, Kind, Result};
use crate::generate::Guide;

/// The vocabulary of a model, as grammars need it.
pub(super) struct Grammars {
    factory: ParserFactory,
    vocab: u32,
}

impl Grammars {
    /// Of a tokenizer, and the tokens that end a text. Takes a while.
    ///
    /// # Errors
    /// A vocabulary that grammars cannot be followed with.
    pub fn new(text: &Text, vocab: usize, ends: &[u32]) -> Result<Self> {
        let word = |token: u32| match text.is_special(token) {
            // No letters of a grammar are a special token.
            true => [&[TokTrie::SPECIAL_TOKEN_MARKER], &text.token_bytes(token)[..]].concat(),
            false => text.token_bytes(token),
        };
        let vocab = vocab as u32;
        let mut words: Vec<Vec<u8>> = (0..vocab).map(word).collect();
        let mut ends = ends.to_vec();
        // Grammars need a token that ends texts. Where there is none, one stands for it that is not drawn.
        words.push(Vec::new());
        ends.push(vocab);
        let trie = TokTrie::from(&TokRxInfo::new(vocab + 1, ends[0]), &words).with_eos_tokens(&ends);
        let factory = ParserFactory::new_simple(&(Arc::new(ApproximateTokEnv::new(trie)) as _));
        let mut factory = factory.map_err(|error| Failure::new(Kind::Internal, format!("no grammars: {error:#}")))?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        Ok(Self { factory, vocab })
    }

    /// What guides one text by a grammar.
    ///
    /// # Errors
    /// A grammar that is not sound, or too large.
    pub fn guide(&self, grammar: String) -> Result<Box<dyn Guide>> {
        let parser = || self.factory.create_parser(TopLevelGrammar::from_lark(grammar));
        let wrong = |reason: String| {
            Failure::invalid(format!("the form that the text shall have cannot be followed: {reason}"))
        };
        let parser = catch_unwind(AssertUnwindSafe(parser)).map_err(|_| wrong("its grammar is too involved".into()))?;
        let parser = parser.map_err(|error| wrong(error.to_string()))?;
        let matcher = Matcher::new(Ok(parser));
        match matcher.get_error() {
            Some(error) => Err(wrong(error)),
            None => Ok(Box::new(Following { matcher, vocab: self.vocab })),
        }
    }
}

/// Where a text stands in its grammar.
struct Following {
    matcher: Matcher,
    vocab: u32,
}

impl Guide for Following {
    fn next(&mut self) -> Result<Guidance, String> {
        if let Some(error) = self.matcher.get_error() {
            return Err(error);
        }
        if self.matcher.is_stopped() {
            return Ok(Guidance::End);
        }
        let mut allowed = self.matcher.compute_mask().map_err(|error| error.to_string())?;
        let may_end = allowed.is_allowed(self.vocab);
        allowed.disallow_token(self.vocab);
        match allowed.is_zero() && may_end {
            true => Ok(Guidance::End),
            false => Ok(Guidance::Of(allowed.into())),
        }
    }

    fn take(&mut self, token: u32) -> Result<(), String> {
        self.matcher.consume_token(token).map_err(|error| error.to_string())
    }
}
