//! The conversation of a request, and what else its chat template reads.

use std::collections::BTreeMap;

use opara_models::decoder::{Conversation, Message, PromptEnd, Value};
use serde::Deserialize;

use crate::model::{Failure, Result};

use super::super::fields::{unread, Fields};

/// Names that a template is given by other fields, or that say what becomes of its text.
const RESERVED: [&str; 9] = [
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "tokenize",
    "return_dict",
    "return_tensors",
];

/// A tool that the model may call. What else is in it is the template's to read.
#[derive(Deserialize)]
struct Tool {
    #[serde(rename = "type")]
    kind: String,
    function: Option<Function>,
}

#[derive(Deserialize)]
struct Function {
    #[allow(dead_code, reason = "templates read it; here it must be there")]
    name: String,
}

/// Takes the fields that are a conversation's. With `allows_unread` a choice of tools that is not supported is ignored.
pub(super) fn conversation(fields: &Fields, allows_unread: bool) -> Result<Conversation> {
    let messages: Vec<Message> = fields.need("messages")?;
    if messages.is_empty() {
        return Err(Failure::invalid("`messages` is empty"));
    }
    let messages = messages.into_iter().enumerate().map(|(at, message)| read(message, at));
    let messages = messages.collect::<Result<_>>()?;
    let mut names: BTreeMap<String, Value> = fields.take("chat_template_kwargs")?.unwrap_or_default();
    if let Some(name) = names.keys().find(|name| RESERVED.contains(&name.as_str())) {
        return Err(Failure::invalid(format!("`chat_template_kwargs.{name}`: it is no name of a template's own")));
    }
    let tools = tools(fields, allows_unread)?;
    // Nothing keeps the model from several calls.
    if fields.take::<bool>("parallel_tool_calls")? == Some(false) && tools.is_some() {
        unread("parallel_tool_calls", allows_unread)?;
    }
    let named = [
        ("tools", tools.map(Value::from)),
        ("documents", fields.take::<Vec<BTreeMap<String, Value>>>("documents")?.map(Value::from)),
        ("enable_thinking", fields.take::<bool>("enable_thinking")?.map(Value::from)),
        ("reasoning_effort", fields.take::<String>("reasoning_effort")?.map(Value::from)),
    ];
    for (name, value) in named {
        let Some(value) = value else { continue };
        if names.insert(name.to_owned(), value.clone()).is_some_and(|other| other != value) {
            return Err(Failure::invalid(format!("`{name}` and `chat_template_kwargs.{name}` contradict each other")));
        }
    }
    Ok(Conversation { messages, names, end: end(fields)? })
}

/// Where the prompt ends.
fn end(fields: &Fields) -> Result<PromptEnd> {
    let asks = fields.take::<bool>("add_generation_prompt")?;
    match (fields.take::<bool>("continue_final_message")?, asks) {
        (Some(true), Some(true)) => {
            Err(Failure::invalid("`continue_final_message` and `add_generation_prompt` cannot both be true"))
        }
        (Some(true), _) => Ok(PromptEnd::Content),
        (_, Some(false)) => Ok(PromptEnd::Turn),
        _ => Ok(PromptEnd::Answer),
    }
}

/// Functions that the model may call. The text that it calls them by is its answer.
fn tools(fields: &Fields, allows_unread: bool) -> Result<Option<Vec<Value>>> {
    let choice = fields.take::<Value>("tool_choice")?;
    let calls = match choice.as_ref().map(Value::as_str) {
        None | Some(Some("auto")) => true,
        Some(Some("none")) => false,
        // Nothing makes the model call a tool.
        Some(_) => {
            unread("tool_choice", allows_unread)?;
            true
        }
    };
    let Some(tools) = fields.take::<Vec<Value>>("tools")? else { return Ok(None) };
    for (at, tool) in tools.iter().enumerate() {
        let tool =
            Tool::deserialize(tool.clone()).map_err(|error| Failure::invalid(format!("`tools[{at}]`: {error}")))?;
        if tool.kind != "function" {
            let message = format!("`tools[{at}]` is of type {:?}: only functions are supported", tool.kind);
            return Err(Failure::invalid(message));
        }
        if tool.function.is_none() {
            return Err(Failure::invalid(format!("`tools[{at}]` has no `function`")));
        }
    }
    Ok(Some(tools).filter(|tools| calls && !tools.is_empty()))
}

/// A message as templates read it: fields that are null are absent, and the arguments of calls are objects.
fn read(message: Message, at: usize) -> Result<Message> {
    let message = message.without(|name, value| match name {
        "content" => false,
        "tool_calls" => value.is_none() || value.len() == Some(0),
        _ => value.is_none(),
    });
    message.with_arguments().map_err(|reason| Failure::invalid(format!("`messages[{at}].tool_calls`: {reason}")))
}

#[cfg(test)]
mod tests {
    use opara_models::decoder::Text;
    use serde_json::json;

    use super::super::super::fields::{of_body, Unread};
    use super::*;

    fn of(body: &str) -> Result<Conversation> {
        let fields = of_body(body.as_bytes())?;
        let conversation = conversation(&fields, false)?;
        Unread::default().check(&fields)?;
        Ok(conversation)
    }

    fn messages() -> serde_json::Value {
        json!([{"role": "user", "content": "x"}])
    }

    #[test]
    fn messages_and_names_reach_the_template() -> Result<()> {
        // Not by `json!`, which sorts fields.
        let body = r#"{
            "messages": [
                {"role": "assistant", "content": null, "refusal": null, "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": 2}"}},
                    {"id": "d", "type": "function", "function": {"name": "f", "arguments": ""}}]},
                {"role": "tool", "tool_call_id": "c", "name": "f", "content": "y", "more": {"z": 1}},
                {"role": "assistant", "content": [{"type": "text", "text": "a"}], "reasoning_content": "r", "tool_calls": []}],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": 2}}}], "tool_choice": "auto",
            "documents": [{"title": "t"}], "chat_template_kwargs": {"style": [1]}, "enable_thinking": false,
            "reasoning_effort": "low", "parallel_tool_calls": true, "add_generation_prompt": false}"#;
        let Conversation { messages, names, end } = of(body)?;
        let told: Vec<String> =
            messages.iter().map(|message| serde_json::to_string(message).unwrap_or_default()).collect();
        assert_eq!(
            told[0],
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":{"b":1,"a":2}}},{"id":"d","type":"function","function":{"name":"f","arguments":{}}}]}"#
        );
        assert_eq!(told[1], r#"{"role":"tool","tool_call_id":"c","name":"f","content":"y","more":{"z":1}}"#);
        assert_eq!(told[2], r#"{"role":"assistant","content":[{"type":"text","text":"a"}],"reasoning_content":"r"}"#);
        let told = serde_json::to_string(&names).unwrap_or_default();
        assert_eq!(
            told,
            r#"{"documents":[{"title":"t"}],"enable_thinking":false,"reasoning_effort":"low","style":[1],"tools":[{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2}}}]}"#
        );
        assert_eq!(end, PromptEnd::Turn);
        let tool = json!([{"type": "function", "function": {"name": "f"}}]);
        let body = json!({"messages": self::messages(), "tools": tool, "tool_choice": "none", "chat_template_kwargs": null,
            "enable_thinking": null, "continue_final_message": true});
        let none = of(&body.to_string())?;
        assert_eq!((none.names.len(), none.end), (0, PromptEnd::Content));
        Ok(())
    }

    #[test]
    fn what_a_template_cannot_have_is_named() {
        let tool = json!([{"type": "function", "function": {"name": "f"}}]);
        for (fields, expected) in [
            (json!({"messages": []}), "`messages` is empty"),
            (json!({"messages": null}), "`messages` is missing"),
            (json!({"messages": [{"content": "x"}]}), "`messages[0]`: missing field `role`"),
            (json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}), "\"image_url\": only text"),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}),
                "\"input_audio\": only text",
            ),
            (json!({"messages": [{"role": "assistant", "tool_calls": 3}]}), "`messages[0].tool_calls`"),
            (
                json!({"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}]}),
                "not an object of JSON",
            ),
            (
                json!({"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "[1]"}}]}]}),
                "not an object of JSON",
            ),
            (json!({"tools": [{"type": "web_search"}]}), "`tools[0]` is of type \"web_search\""),
            (json!({"tools": [{"type": "function"}]}), "`tools[0]` has no `function`"),
            (json!({"tools": tool, "tool_choice": "required"}), "`tool_choice` is not supported"),
            (
                json!({"tools": tool, "tool_choice": {"type": "function", "function": {"name": "f"}}}),
                "`tool_choice` is not supported",
            ),
            (json!({"chat_template_kwargs": {"messages": 1}}), "`chat_template_kwargs.messages`"),
            (json!({"chat_template_kwargs": [1]}), "`chat_template_kwargs`"),
            (
                json!({"tools": [{"type": "function", "function": {"name": "f"}}], "parallel_tool_calls": false}),
                "`parallel_tool_calls` is not supported",
            ),
            (json!({"chat_template_kwargs": {"enable_thinking": true}, "enable_thinking": false}), "contradict"),
            (json!({"enable_thinking": "no"}), "`enable_thinking`"),
            (json!({"documents": "d"}), "`documents`"),
            (json!({"continue_final_message": true, "add_generation_prompt": true}), "cannot both be true"),
        ] {
            let mut body = json!({"messages": messages()});
            body.as_object_mut().into_iter().for_each(|body| {
                body.extend(fields.as_object().into_iter().flatten().map(|(k, v)| (k.clone(), v.clone())))
            });
            let told = of(&body.to_string()).err().map(|failure| failure.message).unwrap_or_default();
            assert!(told.contains(expected), "{fields}: {told}");
        }
    }

    #[test]
    fn what_the_template_does_not_read_is_refused_by_the_model() -> Result<()> {
        let text = Text::of_bytes().map_err(crate::generate::GenerateError::from)?;
        let body = json!({"messages": messages(), "tools": [{"type": "function", "function": {"name": "f"}}]});
        let asked = of(&body.to_string())?;
        let failure =
            Failure::from(crate::generate::GenerateError::from(text.encode_chat(&asked).expect_err("it is refused")));
        assert_eq!(failure, Failure::invalid("the model's chat template does not read `tools`: leave it out"));
        Ok(())
    }
}
