//! Items of a conversation as messages.

use serde_json::{json, Map, Value};

use crate::model::{Failure, Result};

/// The messages of a request's input, behind its instructions. Items of the assistant that follow one another are one message.
pub(super) fn messages(instructions: Option<String>, input: Value) -> Result<Vec<Value>> {
    let mut messages: Vec<Value> = Vec::new();
    messages.extend(instructions.map(|text| json!({"role": "system", "content": text})));
    let items = match input {
        Value::String(text) => vec![json!({"role": "user", "content": text})],
        Value::Array(items) => items,
        _ => return Err(Failure::invalid("`input` must be a string or a list of items")),
    };
    if items.is_empty() {
        return Err(Failure::invalid("`input` is empty"));
    }
    for (at, item) in items.into_iter().enumerate() {
        add(&mut messages, item).map_err(|reason| Failure::invalid(format!("`input[{at}]`{reason}")))?;
    }
    Ok(messages)
}

fn add(messages: &mut Vec<Value>, item: Value) -> Result<(), String> {
    let Value::Object(mut item) = item else { return Err(" is not an object".into()) };
    let kind = item.get("type").and_then(Value::as_str).unwrap_or("message").to_owned();
    let mut need = |name: &str| item.shift_remove(name).ok_or_else(|| format!(".{name} is missing"));
    match kind.as_str() {
        "message" => {
            let role = match need("role")? {
                // As templates know it.
                role if role == "developer" => json!("system"),
                role => role,
            };
            let content = content(need("content")?)?;
            match role == "assistant" {
                true => of_assistant(messages, |message| {
                    let before = message.get("content").and_then(Value::as_str).unwrap_or_default();
                    message["content"] = json!(format!("{before}{content}"));
                }),
                false => messages.push(json!({"role": role, "content": content})),
            }
        }
        "function_call" => {
            let (id, name, arguments) = (need("call_id")?, need("name")?, need("arguments")?);
            let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
            of_assistant(messages, |message| match message.get_mut("tool_calls").and_then(Value::as_array_mut) {
                Some(calls) => calls.push(call),
                None => message["tool_calls"] = json!([call]),
            });
        }
        "function_call_output" => {
            let (id, output) = (need("call_id")?, content(need("output")?)?);
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": output}));
        }
        "reasoning" => {
            let parts = need("content").or_else(|_| need("summary"))?;
            let thought = if parts.is_null() { String::new() } else { content(parts)? };
            if !thought.is_empty() {
                of_assistant(messages, |message| message["reasoning_content"] = json!(thought));
            }
        }
        _ => return Err(format!(" is of type {kind:?}, which is not supported")),
    }
    Ok(())
}

/// Changes the assistant's last message, or a new one if another's is the last.
fn of_assistant(messages: &mut Vec<Value>, change: impl FnOnce(&mut Value)) {
    if messages.last().is_none_or(|message| message["role"] != "assistant") {
        messages.push(Value::Object(Map::from_iter([
            ("role".to_owned(), json!("assistant")),
            ("content".to_owned(), Value::Null),
        ])));
    }
    if let Some(message) = messages.last_mut() {
        change(message);
    }
}

/// A text, or its parts joined.
fn content(content: Value) -> Result<String, String> {
    match content {
        Value::String(text) => Ok(text),
        Value::Array(parts) => parts
            .into_iter()
            .map(|part| match (part["type"].as_str(), &part["text"]) {
                (
                    Some("input_text" | "output_text" | "text" | "reasoning_text" | "summary_text"),
                    Value::String(text),
                ) => Ok(text.clone()),
                (Some("refusal"), _) => Ok(part["refusal"].as_str().unwrap_or_default().to_owned()),
                (kind, _) => {
                    Err(format!(" has content of type {:?}: only text is supported", kind.unwrap_or_default()))
                }
            })
            .collect(),
        _ => Err(" has content that is neither a text nor a list of parts".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(input: Value) -> Result<Value> {
        Ok(messages(Some("be brief".into()), input)?.into())
    }

    #[test]
    fn items_become_messages() {
        let system = json!({"role": "system", "content": "be brief"});
        assert_eq!(of(json!("hi")), Ok(json!([system, {"role": "user", "content": "hi"}])));
        let items = json!([
            {"role": "developer", "content": "d"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "id": "msg", "role": "assistant", "status": "completed",
             "content": [{"type": "output_text", "text": "c", "annotations": []}]},
            {"type": "function_call", "id": "fc", "call_id": "x", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "y", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "x", "output": "rain"},
            {"type": "function_call_output", "call_id": "y", "output": [{"type": "input_text", "text": "sun"}]},
            {"type": "reasoning", "summary": []},
        ]);
        let call =
            |id: &str, name: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}});
        let expected = json!([
            system,
            {"role": "system", "content": "d"},
            {"role": "user", "content": "ab"},
            {"role": "assistant", "content": "c", "reasoning_content": "hm", "tool_calls": [call("x", "f"), call("y", "g")]},
            {"role": "tool", "tool_call_id": "x", "content": "rain"},
            {"role": "tool", "tool_call_id": "y", "content": "sun"},
        ]);
        assert_eq!(of(items), Ok(expected));
    }

    #[test]
    fn what_is_no_item_is_named() {
        for (input, expected) in [
            (json!(3), "`input` must be"),
            (json!([]), "`input` is empty"),
            (json!(["x"]), "`input[0]` is not an object"),
            (json!([{"role": "user"}]), "`input[0]`.content is missing"),
            (json!([{"role": "user", "content": [{"type": "input_image"}]}]), "\"input_image\": only text"),
            (json!([{"type": "item_reference", "id": "x"}]), "\"item_reference\", which is not supported"),
            (json!([{"type": "function_call", "name": "f"}]), "`input[0]`.call_id is missing"),
        ] {
            let told = of(input.clone()).expect_err("it is refused").message;
            assert!(told.contains(expected), "{input}: {told}");
        }
    }
}
