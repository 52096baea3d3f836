//! How a model writes calls of tools, as its chat template shows.

use serde_json::{json, Value};

use super::form::{CallForm, CallId, CallSyntax};
use super::probe::{call, common, ARGUMENTS, ID, NAMES};

/// How a turn's `body` has calls, where it has some in a form that is known.
pub(super) fn calls(turn: &impl Fn(Value) -> String, body: &impl Fn(&str) -> Option<String>) -> Option<CallSyntax> {
    // Some templates write them beside no content alone.
    let contents = [json!(""), Value::Null];
    contents.into_iter().find_map(|content| {
        let told = |calls: Vec<Value>| body(&turn(json!({"content": content, "tool_calls": calls})));
        of_calls(&told)
    })
}

fn of_calls(told: &impl Fn(Vec<Value>) -> Option<String>) -> Option<CallSyntax> {
    let one = told(vec![call(0, true)])?;
    let (form, start, end) = found(&one, 0)?;
    let two = told(vec![call(0, true), call(1, true)]).unwrap_or_default();
    let second = found(&two, 1).filter(|(_, next, _)| *next >= end);
    let second = second.and_then(|(other, next, last)| {
        let form = if other == form { other } else { counted(&form, &other)? };
        Some((form, Some(two.get(end..next)?.to_owned()), &two[last..]))
    });
    // Some templates end several calls alone with a mark.
    let (form, between, close) = second.unwrap_or((form, None, &one[end..]));
    let form = match form {
        CallForm::Marked { first, assign, next, .. } => {
            let none = told(vec![call(0, false)])?;
            let empty = none.split_once(NAMES[0])?.1.to_owned();
            CallForm::Marked { first, assign, next, empty }
        }
        form => form,
    };
    let (open, close) = (one[..start].trim_start().to_owned(), close.trim_end().to_owned());
    // Marks with an id in them are not looked for. An id has to end before the mark behind it.
    let has_id = [Some(&open), between.as_ref(), Some(&close)].into_iter().flatten().any(|mark| mark.contains(ID));
    let is_endless = match &form {
        CallForm::Named { id: CallId::Naming | CallId::Number(_), middle } => {
            middle.trim_start().starts_with(CallId::has)
        }
        _ => false,
    };
    (!has_id && !is_endless).then_some(CallSyntax { open, between, close, form })
}

/// The form of calls that have a number between name and arguments, of what the first one and the second one have there.
fn counted(first: &CallForm, second: &CallForm) -> Option<CallForm> {
    let middle = |form: &CallForm| match form {
        CallForm::Named { id: CallId::None, middle } => Some(middle.clone()),
        _ => None,
    };
    let (first, second) = (middle(first)?, middle(second)?);
    let at = common(first.bytes(), second.bytes());
    let numbered = |middle: &str| {
        let number = middle.get(at..)?.chars().next()?.to_digit(10)?;
        Some((number, middle.get(at + 1..)?.to_owned()))
    };
    let ((number, middle), (next, other)) = (numbered(&first)?, numbered(&second)?);
    let is_counted = number + 1 == next && middle == other;
    is_counted.then(|| CallForm::Named { id: CallId::Number(first[..at].to_owned()), middle })
}

/// Where one of the calls stands in a text, and how it is written.
fn found(text: &str, at: usize) -> Option<(CallForm, usize, usize)> {
    let id = format!("{ID}{at}");
    let has_arguments = |value: &Value| match value {
        Value::String(text) => text.contains(ARGUMENTS[at][0]),
        value => value.get(ARGUMENTS[at][0]).is_some(),
    };
    // The arguments behind a place, with what stands before them.
    let arguments = |behind: usize| {
        let start = behind + text[behind..].find('{')?;
        let (value, length) = first_value(&text[start..])?;
        has_arguments(&value).then(|| (&text[behind..start], start + length))
    };
    let Some(name) = text.find(NAMES[at]) else {
        let start = text.find(&id)?;
        let (middle, end) = arguments(start + id.len())?;
        return Some((CallForm::Named { id: CallId::Naming, middle: middle.to_owned() }, start, end));
    };
    let behind = name + NAMES[at].len();
    let starts = text[..name].rmatch_indices('{').map(|(start, _)| start);
    let object = starts.into_iter().find_map(|start| {
        let (value, length) = first_value(&text[start..])?;
        let fields = value.as_object()?;
        let key = fields.iter().find(|(_, value)| *value == NAMES[at])?.0;
        let arguments = fields.iter().find(|(_, value)| has_arguments(value))?.0.clone();
        let is_id = |value: &str| value == id || value.parse::<u32>().is_ok();
        let mut ids = fields.iter().filter(|(_, value)| value.as_str().is_some_and(is_id)).map(|(field, _)| field);
        let id = ids.find(|field| text[start..name].contains(&format!("\"{field}\""))).cloned();
        Some((CallForm::Object { id, name: key.clone(), arguments }, start, start + length))
    });
    let named = || {
        let (middle, end) = arguments(behind)?;
        let parts = middle.split_once(&id);
        let (id, middle) =
            parts.map_or((CallId::None, middle), |(before, middle)| (CallId::Behind(before.into()), middle));
        Some((CallForm::Named { id, middle: middle.to_owned() }, name, end))
    };
    let python = || {
        let (arguments, _) = text[behind..].strip_prefix('(')?.split_once(')')?;
        // Some templates write numbers between quotes, too.
        let told: String =
            arguments.chars().filter(|letter| !letter.is_whitespace() && !"'\"".contains(*letter)).collect();
        let [first, value, second, number] = ARGUMENTS[at];
        let is_python = told == format!("{first}={value},{second}={number}");
        is_python.then(|| (CallForm::Python, name, behind + arguments.len() + 2))
    };
    // Before the first argument's name, before its value, before the second one's name, and before that one's value.
    let marks = || {
        let (mut marks, mut end) = (Vec::new(), behind);
        for piece in ARGUMENTS[at] {
            let start = end + text[end..].find(piece)?;
            marks.push(text[end..start].to_owned());
            end = start + piece.len();
        }
        Some((<[String; 4]>::try_from(marks).ok()?, end))
    };
    let quoted = || {
        let ([open, assign, next, again], end) = marks()?;
        let quote = assign.strip_prefix(&again)?.to_owned();
        let comma = next.strip_prefix(&quote)?;
        let is_quoted = [&again, comma, &open].map(str::trim) == [":", ",", "{"] && !quote.trim().is_empty();
        let close = end + text[end..].find('}')?;
        let is_closed = text[end..close].trim().is_empty();
        (is_quoted && is_closed).then_some((CallForm::Quoted { open, quote }, name, close + 1))
    };
    let marked = || {
        let ([first, assign, next, again], end) = marks()?;
        let is_marked = assign == again && !assign.trim().is_empty() && !next.trim().is_empty();
        is_marked.then(|| (CallForm::Marked { first, assign, next, empty: String::new() }, name, end))
    };
    object.or_else(named).or_else(python).or_else(quoted).or_else(marked)
}

/// The value of JSON that a text begins with, and its length.
fn first_value(text: &str) -> Option<(Value, usize)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let value = values.next()?.ok()?;
    Some((value, values.byte_offset()))
}
