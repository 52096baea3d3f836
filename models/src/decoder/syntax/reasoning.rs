//! How a model writes its reasoning, as its chat template shows.

use serde_json::{json, Value};

use super::probe::{call, SAID};

const THOUGHT: &str = "thought7q";

/// The marks before reasoning and behind it. `plain` is a turn that has none.
pub(super) fn reasoning(
    plain: &str,
    turn: &impl Fn(Value) -> String,
    body: &impl Fn(&str) -> Option<String>,
) -> Option<(String, String)> {
    let is_marked = |(open, close): &(String, String)| !open.is_empty() && !close.is_empty();
    let of_field = |field: &str| {
        let told = turn(json!({"content": SAID, field: THOUGHT}));
        let between = body(&told)?;
        let (open, rest) = between.split_once(THOUGHT)?;
        // The answer's text follows the reasoning, unless `body` cut it off with the end of the turn.
        let close = rest.split_once(SAID).map_or(rest, |(close, _)| close).trim();
        let open = match open.trim() {
            // Perhaps it has the mark of its own where there is no reasoning, too.
            "" => last_tag(told.split_once(THOUGHT)?.0).filter(|open| is_empty_between(plain, open, close))?,
            open => open,
        };
        Some((open.to_owned(), close.to_owned())).filter(is_marked)
    };
    // Some templates write it before calls alone.
    let before_calls = |field: &str| {
        let told = body(&turn(json!({"content": "", field: THOUGHT, "tool_calls": [call(0, true)]})))?;
        let (open, rest) = told.split_once(THOUGHT)?;
        Some((last_tag(open)?.to_owned(), first_tag(rest)?.to_owned())).filter(is_marked)
    };
    let fields = ["reasoning_content", "reasoning", "thinking", "tool_plan"];
    fields.into_iter().find_map(of_field).or_else(|| fields.into_iter().find_map(before_calls)).or_else(|| {
        // Templates that cut reasoning out of the answer's text.
        let (open, close) = ("<think>", "</think>");
        let told = turn(json!({"content": format!("{open}\n{THOUGHT}\n{close}\n\n{SAID}")}));
        (told.contains(SAID) && !told.contains(THOUGHT)).then(|| (open.into(), close.into()))
    })
}

/// Whether two marks stand in a text with nothing between them.
fn is_empty_between(text: &str, open: &str, close: &str) -> bool {
    text.rfind(open).is_some_and(|at| text[at + open.len()..].trim_start().starts_with(close))
}

/// The tag that a text ends with.
fn last_tag(text: &str) -> Option<&str> {
    let text = text.trim_end();
    text.ends_with('>').then(|| &text[text.rfind('<').unwrap_or(text.len())..])
}

/// The tag that a text begins with.
fn first_tag(text: &str) -> Option<&str> {
    let text = text.trim_start();
    text.starts_with('<').then(|| &text[..text.find('>').map_or(0, |end| end + 1)])
}
