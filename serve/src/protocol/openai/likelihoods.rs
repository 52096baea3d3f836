//! How likely tokens are, in the two forms of OpenAI's.

use opara_models::decoder::Text;
use opara_models::engine::Likelihoods;
use serde_json::{json, Map, Value};

use crate::generate::Written;

/// Stands for a probability of zero, whose logarithm JSON does not have.
const IMPOSSIBLE: f32 = -9999.;

/// Names tokens, and knows where the next one begins in the text.
pub(super) struct Likely {
    /// Characters of the text so far, with the prompt where that is told.
    characters: usize,
    /// Bytes of the answer so far.
    bytes: usize,
    is_new: bool,
    names_are_ids: bool,
}

impl Likely {
    pub fn new(names_are_ids: bool) -> Self {
        Self { characters: 0, bytes: 0, is_new: true, names_are_ids }
    }

    /// Whether nothing was told yet.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// The tokens of a piece of a conversation.
    pub fn chat(&self, text: &Text, tokens: &[Written]) -> Value {
        let one = |token: u32, of: f32| {
            let bytes = text.token_bytes(token);
            json!({"token": self.name(token, &bytes), "logprob": finite(of), "bytes": bytes})
        };
        let content = tokens.iter().filter_map(|written| {
            let likelihoods = written.likelihoods.as_ref()?;
            let mut told = one(written.token, likelihoods.token);
            told["top_logprobs"] = likelihoods.best.iter().map(|(token, of)| one(*token, *of)).collect();
            Some(told)
        });
        json!({"content": content.collect::<Vec<_>>(), "refusal": null})
    }

    /// The tokens of a piece of a text, which is `piece`, behind those of a prompt, with how likely the latter are from the second on.
    pub fn text(
        &mut self,
        text: &Text,
        (prompt, read): (&[u32], &[Likelihoods]),
        piece: &str,
        tokens: &[Written],
    ) -> Value {
        self.is_new = false;
        let (mut names, mut likely, mut best, mut starts) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (of_prompt, mut told) = (std::iter::once(None).chain(read.iter().map(Some)), Vec::new());
        for (token, of) in prompt.iter().zip(of_prompt) {
            self.tell(text, *token, of, (&mut names, &mut likely, &mut best));
            starts.push(self.characters + String::from_utf8_lossy(&told).chars().count());
            if !text.is_special(*token) {
                told.extend(text.token_bytes(*token));
            }
        }
        self.characters += String::from_utf8_lossy(&told).chars().count();
        for Written { token, start, likelihoods } in tokens {
            self.tell(text, *token, likelihoods.as_ref(), (&mut names, &mut likely, &mut best));
            // In the middle of a character: where that begins.
            let within = start.saturating_sub(self.bytes).min(piece.len());
            let before = (0..=within).rev().find(|at| piece.is_char_boundary(*at)).unwrap_or(0);
            starts.push(self.characters + piece[..before].chars().count());
        }
        self.characters += piece.chars().count();
        self.bytes += piece.len();
        json!({"tokens": names, "token_logprobs": likely, "top_logprobs": best, "text_offset": starts})
    }

    /// Names a token, with how likely it is, where that is known, and which ones were the most likely.
    fn tell(
        &self,
        text: &Text,
        token: u32,
        of: Option<&Likelihoods>,
        (names, likely, best): (&mut Vec<String>, &mut Vec<Value>, &mut Vec<Value>),
    ) {
        let name = |token: u32| self.name(token, &text.token_bytes(token));
        names.push(name(token));
        let Some(of) = of else {
            likely.push(Value::Null);
            return best.push(Value::Null);
        };
        likely.push(json!(finite(of.token)));
        // Several tokens may have one name: the most likely one comes first.
        let mut named = Map::new();
        for (token, of) in of.best.iter().copied().chain([(token, of.token)]) {
            named.entry(name(token)).or_insert_with(|| json!(finite(of)));
        }
        best.push(Value::from(named));
    }

    fn name(&self, token: u32, bytes: &[u8]) -> String {
        match self.names_are_ids {
            true => format!("token_id:{token}"),
            false => String::from_utf8_lossy(bytes).into_owned(),
        }
    }
}

fn finite(of: f32) -> f32 {
    if of.is_finite() {
        of
    } else {
        IMPOSSIBLE
    }
}
