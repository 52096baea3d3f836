//! How a model writes calls of tools and its reasoning, as its chat template shows: by what the template makes of messages that have
//! some.

mod announced;
mod calls;
mod reasoning;
#[cfg(test)]
mod tests;

use serde_json::{json, Value};

pub(super) use self::announced::announced;
use self::calls::calls;
use self::reasoning::reasoning;

/// How calls and reasoning stand in an answer's text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Syntax {
    /// `None` where the template writes no calls, or writes them in a way that is not known.
    pub calls: Option<CallSyntax>,
    /// The marks before the reasoning and behind it.
    pub reasoning: Option<(String, String)>,
}

/// How calls are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallSyntax {
    /// The mark before the first call. Where it is empty, only an answer that begins with a call has calls.
    pub open: String,
    /// The mark between two calls, if there may be several.
    pub between: Option<String>,
    /// The mark behind the last call.
    pub close: String,
    /// The call itself.
    pub form: CallForm,
}

/// How one call is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallForm {
    /// An object of JSON with the name and the arguments in fields of these names.
    Object {
        /// Of an id, where one stands before the name.
        id: Option<String>,
        /// Of the name.
        name: String,
        /// Of the arguments.
        arguments: String,
    },
    /// The name, perhaps an id of the call, and the arguments as an object of JSON.
    Named {
        /// The id.
        id: CallId,
        /// Between the name, or the id, and the arguments.
        middle: String,
    },
    /// As Python writes a call: the name, and in parentheses each argument with `=` and a literal.
    Python,
    /// The name, and an object of JSON whose names stand without quotes. Another mark stands in place of each quote of a text; no text has
    /// that mark in it.
    Quoted {
        /// Between the name and the first argument: a brace.
        open: String,
        /// Before a text and behind it.
        quote: String,
    },
    /// The name and each argument as text, with marks between them.
    Marked {
        /// Between the name and the first argument's.
        first: String,
        /// Between the name of an argument and its value.
        assign: String,
        /// Between a value and the name of the next argument.
        next: String,
        /// Behind the name of a call that has no arguments.
        empty: String,
    },
}

/// Where a call has an id beside its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallId {
    /// Nowhere.
    None,
    /// Behind the name and this mark.
    Behind(String),
    /// Behind the name and this mark: a number, which is one more for each call.
    Number(String),
    /// In place of the name, which is part of it. Templates write it as clients send it.
    Naming,
}

impl Syntax {
    /// What stands around calls and reasoning.
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

const SAID: &str = "said7q";
/// The beginning of each call's id. Some templates take only ids of nine letters and digits.
const ID: &str = "call0000";
const NAMES: [&str; 2] = ["name7a", "name7b"];
/// The names and values of two arguments of each call.
const ARGUMENTS: [[&str; 4]; 2] = [["key7a", "value7a", "key7b", "71"], ["key7c", "value7c", "key7d", "72"]];

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
        // What an answer adds to a turn.
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

/// How many elements two sequences have in common at their beginning.
fn common(a: impl Iterator<Item = u8>, b: impl Iterator<Item = u8>) -> usize {
    a.zip(b).take_while(|(a, b)| a == b).count()
}

/// A call of the probes.
fn call(at: usize, has_arguments: bool) -> Value {
    let [first, value, second, number] = ARGUMENTS[at];
    let number: u32 = number.parse().unwrap_or_default();
    let arguments = if has_arguments { json!({first: value, second: number}) } else { json!({}) };
    let id = format!("{ID}{at}");
    json!({"id": id, "type": "function", "function": {"name": NAMES[at], "arguments": arguments}})
}
