//! A request for a response, as one for an answer to a conversation.

use opara_weights::Harmless;
use serde_json::{json, Map, Value};

use super::super::super::fields::{of_body, Fields};
use super::super::form::Form;
use super::super::request;
use super::items::messages;
use crate::model::{Failure, Result};

/// A request for a response.
pub(super) struct Asked {
    pub chat: request::Asked,
    /// Fields that the response repeats.
    pub said: Map<String, Value>,
}

/// Fields that a response repeats, with the values that are told where the request has none.
const SAID: [(&str, &str); 11] = [
    ("instructions", "null"),
    ("max_output_tokens", "null"),
    ("metadata", "{}"),
    ("parallel_tool_calls", "true"),
    ("reasoning", r#"{"effort": null, "summary": null}"#),
    ("temperature", "null"),
    ("text", r#"{"format": {"type": "text"}}"#),
    ("tool_choice", "\"auto\""),
    ("tools", "[]"),
    ("top_logprobs", "0"),
    ("top_p", "null"),
];

impl Asked {
    /// Reads a body. With `allows_unread` fields that are not supported are ignored.
    pub fn read(bytes: &[u8], allows_unread: bool) -> Result<Self> {
        let fields = of_body(bytes)?;
        let mut chat = Map::new();
        let mut said = Map::new();
        for (name, neutral) in SAID {
            let value = fields.take::<Value>(name)?.filter(|value| !value.is_null());
            said.insert(name.into(), value.unwrap_or_else(|| serde_json::from_str(neutral).unwrap_or_default()));
        }
        if fields.take::<Value>("previous_response_id")?.is_some_and(|id| !id.is_null()) {
            let message = "`previous_response_id`: no response is kept: send the whole conversation as `input`";
            return Err(Failure::invalid(message));
        }
        chat.insert("messages".into(), messages(fields.take("instructions")?, fields.need("input")?)?.into());
        include(&fields, &mut chat)?;
        text(&fields, &mut chat)?;
        let reasoning = fields.object("reasoning")?;
        put(&mut chat, "reasoning_effort", reasoning.take("effort")?);
        // The reasoning itself is told, not a summary.
        rest(&reasoning, Harmless { names: &["summary", "generate_summary"], neutral: &[] }, &mut chat);
        put(&mut chat, "max_tokens", fields.take("max_output_tokens")?);
        if let Some(tools) = fields.take::<Vec<Value>>("tools")? {
            let tools =
                tools.into_iter().enumerate().map(|(at, tool)| tool_of(tool, at)).collect::<Result<Vec<_>>>()?;
            chat.insert("tools".into(), tools.into());
        }
        put(&mut chat, "tool_choice", fields.take("tool_choice")?.map(choice));
        for name in ["metadata", "parallel_tool_calls", "temperature", "top_p"] {
            put(&mut chat, name, fields.take(name)?);
        }
        // A field that no conversation has is refused by its name.
        let neutral = &[("background", "false"), ("truncation", "\"disabled\"")];
        rest(&fields, Harmless { names: &[], neutral }, &mut chat);
        let chat = request::Asked::read(Value::Object(chat).to_string().as_bytes(), Form::Chat, allows_unread)?;
        match chat.writing.each {
            1 => Ok(Self { chat, said }),
            _ => Err(Failure::invalid("`n`: a response is one answer")),
        }
    }
}

fn put(chat: &mut Map<String, Value>, name: &str, value: Option<Value>) {
    if let Some(value) = value.filter(|value| !value.is_null()) {
        chat.insert(name.into(), value);
    }
}

/// Puts the fields that were not read, and are not harmless, beside the others, by their whole names.
fn rest(fields: &Fields, harmless: Harmless, chat: &mut Map<String, Value>) {
    for (name, value) in fields.unread(&[harmless]) {
        chat.entry(name).or_insert(value);
    }
}

/// What else is told.
fn include(fields: &Fields, chat: &mut Map<String, Value>) -> Result<()> {
    let most = fields.take::<Value>("top_logprobs")?.filter(|most| *most != json!(0));
    for told in fields.take::<Vec<String>>("include")?.unwrap_or_default() {
        match told.as_str() {
            "message.output_text.logprobs" => _ = chat.insert("logprobs".into(), json!(true)),
            // Reasoning is told as it is.
            "reasoning.encrypted_content" => {}
            _ => return Err(Failure::invalid(format!("`include` names {told:?}, which is not supported"))),
        }
    }
    put(chat, "top_logprobs", most);
    Ok(())
}

/// The form of the text.
fn text(fields: &Fields, chat: &mut Map<String, Value>) -> Result<()> {
    let text = fields.object("text")?;
    if let Some(mut format) = text.take::<Value>("format")? {
        if format["type"] == "json_schema" {
            let inner = format.as_object_mut().map(std::mem::take).unwrap_or_default();
            format = json!({"type": "json_schema", "json_schema": inner});
        }
        chat.insert("response_format".into(), format);
    }
    rest(&text, Harmless { names: &[], neutral: &[("verbosity", "\"medium\"")] }, chat);
    Ok(())
}

/// A tool as conversations have it.
fn tool_of(tool: Value, at: usize) -> Result<Value> {
    match tool {
        Value::Object(mut fields) if fields.get("type").is_some_and(|kind| kind == "function") => {
            fields.shift_remove("type");
            Ok(json!({"type": "function", "function": fields}))
        }
        tool => {
            let kind: String = tool["type"].to_string().chars().take(80).collect();
            Err(Failure::invalid(format!("`tools[{at}]` is of type {kind}: only functions are supported")))
        }
    }
}

fn choice(choice: Value) -> Value {
    let function = |name: &Value| json!({"type": "function", "function": {"name": name}});
    match choice["type"].as_str() {
        Some("function") => function(&choice["name"]),
        Some("allowed_tools") => {
            let of = |tool: &Value| if tool["type"] == "function" { function(&tool["name"]) } else { tool.clone() };
            let tools: Option<Vec<Value>> = choice["tools"].as_array().map(|tools| tools.iter().map(of).collect());
            json!({"type": "allowed_tools", "allowed_tools": {"mode": choice["mode"], "tools": tools}})
        }
        _ => choice,
    }
}
