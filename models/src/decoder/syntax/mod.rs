//! How a model writes calls of tools and its reasoning, as its chat template shows: by what the template makes of messages that have
//! some.

mod announced;
mod calls;
mod form;
mod probe;
mod reasoning;
#[cfg(test)]
mod tests;

use serde_json::{json, Value};

pub(super) use self::announced::announced;
use self::calls::calls;
pub use self::form::{CallForm, CallId, CallSyntax};
use self::probe::{common, SAID};
use self::reasoning::reasoning;

/// How calls and reasoning stand in an answer's text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Syntax {
    /// `None` where the template writes no calls, or writes them in a way that is not known.
    pub calls: Option<CallSyntax>,
    /// The marks before the reasoning and behind it.
    pub reasoning: Option<(String, String)>,
}

impl Syntax {
    /// The marks around calls and reasoning.
    pub fn marks(&self) -> impl Iterator<Item = &str> {
        let calls = self.calls.iter().flat_map(|calls| [Some(&calls.open), calls.between.as_ref(), Some(&calls.close)]);
        let reasoning = self.reasoning.iter().flat_map(|(open, close)| [open, close]);
        calls.flatten().chain(reasoning).map(String::as_str)
    }

    /// Whether a prompt ends within reasoning.
    pub fn ends_within_reasoning(&self, prompt: &str) -> bool {
        let open = self.reasoning.as_ref().and_then(|(open, close)| Some((prompt.rfind(open.as_str())?, close)));
        open.is_some_and(|(at, close)| prompt.rfind(close.as_str()).is_none_or(|end| end < at))
    }
}

impl Syntax {
    /// Of a template, which `write` gives a conversation to: empty where it refuses that. `None` where it writes no
    /// calls, and those are needed.
    pub(super) fn of(needs_calls: bool, write: impl Fn(Value) -> String) -> Option<Self> {
        let turn = |mut answer: Value| {
            answer["role"] = json!("assistant");
            write(json!([{"role": "user", "content": "a question"}, answer]))
        };
        let plain = turn(json!({"content": SAID}));
        let Some((before, behind)) = plain.split_once(SAID) else { return (!needs_calls).then(Self::default) };
        // The part of a turn that its answer adds.
        let body = |told: &str| {
            let start = common(before.bytes(), told.bytes());
            let end = told.len() - common(behind.bytes().rev(), told.bytes().rev());
            // Both turns may go on with marks that begin or end alike.
            let (start, end) = (tag_before(told, start), tag_behind(told, end.max(start)));
            // Between characters, since both texts have the same characters there.
            told.get(start..end).map(str::to_owned)
        };
        let mut calls = calls(&turn, &body);
        if needs_calls && calls.is_none() {
            return None;
        }
        let reasoning = reasoning(&plain, &turn, &body);
        if let (Some(calls), Some((_, close))) = (&mut calls, &reasoning) {
            // Reasoning that is empty is no part of the mark.
            let start = calls.open.rfind(close.as_str()).map_or(0, |at| at + close.len());
            calls.open = calls.open[start..].trim_start().to_owned();
        }
        Some(Self { calls, reasoning })
    }
}

/// Bytes that a tag has at most.
const LONGEST_TAG: usize = 64;

/// The beginning of the tag that a place in a text is within, or the place.
fn tag_before(text: &str, at: usize) -> usize {
    let bytes = text.as_bytes()[..at].iter().rev().take(LONGEST_TAG).take_while(|byte| !byte.is_ascii_whitespace());
    let found = bytes.enumerate().find(|(_, byte)| b"<>".contains(byte));
    found.filter(|(_, byte)| **byte == b'<').map_or(at, |(before, _)| at - before - 1)
}

/// The end of the tag that a place in a text is within, or the place.
fn tag_behind(text: &str, at: usize) -> usize {
    let bytes = text.as_bytes()[at..].iter().take(LONGEST_TAG).take_while(|byte| !byte.is_ascii_whitespace());
    let found = bytes.enumerate().find(|(_, byte)| b"<>".contains(byte));
    found.filter(|(_, byte)| **byte == b'>').map_or(at, |(behind, _)| at + behind + 1)
}
