//! The conversation of a request, and what else its chat template reads.

use std::collections::BTreeMap;

use opara_models::decoder::{Conversation, Message, PromptEnd, Value};
use serde::Deserialize;

use crate::generate::Tool;
use crate::model::{Failure, Result};

use super::super::fields::Fields;

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

/// A conversation, and what its answer may or must call.
pub(super) struct Chat {
    pub conversation: Conversation,
    pub tools: Vec<Tool>,
    /// Whether the answer is calls.
    pub must_call: bool,
    /// Whether calls fit the schemas of the tools, even if there need be none.
    pub is_strict: bool,
    /// Whether there may be more than one.
    pub are_several: bool,
}

/// Takes the fields that are a conversation's.
pub(super) fn conversation(fields: &Fields) -> Result<Chat> {
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
    let Tools { given, callable, must_call, is_strict } = tools(fields)?;
    let are_several = fields.take::<bool>("parallel_tool_calls")?.unwrap_or(true);
    let named = [
        ("tools", given.map(Value::from)),
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
    let conversation = Conversation { messages, names, end: end(fields)? };
    Ok(Chat { conversation, tools: callable, must_call, is_strict, are_several })
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

/// Functions that the model may call.
#[derive(Default)]
struct Tools {
    /// As the template reads them.
    given: Option<Vec<Value>>,
    callable: Vec<Tool>,
    must_call: bool,
    /// Whether one of them says so.
    is_strict: bool,
}

fn tools(fields: &Fields) -> Result<Tools> {
    let given = fields.take::<Vec<Value>>("tools")?.unwrap_or_default();
    let read = given.iter().enumerate().map(|(at, tool)| self::tool(tool, at)).collect::<Result<Vec<_>>>()?;
    let (mut callable, strict): (Vec<Tool>, Vec<bool>) = read.into_iter().unzip();
    let is_strict = strict.contains(&true);
    let choice = match fields.take::<serde_json::Value>("tool_choice")? {
        None => Choice::AUTO,
        Some(choice) => Choice::of(&choice)?,
    };
    if given.is_empty() && choice.must_call {
        return Err(Failure::invalid("`tool_choice` asks for a call, and there are no `tools`"));
    }
    if let Some(name) = choice.of.iter().flatten().find(|name| callable.iter().all(|tool| tool.name != **name)) {
        return Err(Failure::invalid(format!("`tool_choice` names {name:?}, which is none of `tools`")));
    }
    if given.is_empty() || !choice.may_call {
        return Ok(Tools::default());
    }
    if let Some(names) = &choice.of {
        callable.retain(|tool| names.contains(&tool.name));
    }
    // The template shows all tools: a call is held to those that are allowed.
    let is_strict = is_strict || choice.of.is_some();
    Ok(Tools { given: Some(given), callable, must_call: choice.must_call, is_strict })
}

/// Which calls an answer may or must have.
struct Choice {
    may_call: bool,
    must_call: bool,
    /// The functions that may be called; all without it.
    of: Option<Vec<String>>,
}

impl Choice {
    const AUTO: Self = Self { may_call: true, must_call: false, of: None };

    fn of(choice: &serde_json::Value) -> Result<Self> {
        let message = "`tool_choice` must be \"none\", \"auto\", \"required\", name a function, or allow some";
        let read = match choice["type"].as_str() {
            Some("function") => {
                Self::name(choice).map(|name| Self { must_call: true, of: Some(vec![name]), ..Self::AUTO })
            }
            Some("allowed_tools") => {
                let allowed = &choice["allowed_tools"];
                let names = allowed["tools"].as_array().and_then(|tools| tools.iter().map(Self::name).collect());
                let mode = Self::mode(&allowed["mode"]).filter(|mode| mode.may_call);
                mode.zip(names).map(|(mode, names)| Self { of: Some(names), ..mode })
            }
            _ => Self::mode(choice),
        };
        read.ok_or_else(|| Failure::invalid(message))
    }

    fn mode(choice: &serde_json::Value) -> Option<Self> {
        match choice.as_str()? {
            "auto" => Some(Self::AUTO),
            "none" => Some(Self { may_call: false, ..Self::AUTO }),
            "required" | "any" => Some(Self { must_call: true, ..Self::AUTO }),
            _ => None,
        }
    }

    /// Of a function.
    fn name(of: &serde_json::Value) -> Option<String> {
        of["function"]["name"].as_str().filter(|_| of["type"] == "function").map(str::to_owned)
    }
}

/// A tool, and whether calls of it are to fit its schema. What else is in it is the template's to read.
fn tool(tool: &Value, at: usize) -> Result<(Tool, bool)> {
    #[derive(Deserialize)]
    struct Given {
        #[serde(rename = "type")]
        kind: String,
        function: Option<Function>,
    }
    #[derive(Deserialize)]
    struct Function {
        name: String,
        parameters: Option<serde_json::Value>,
        strict: Option<bool>,
    }
    let given =
        Given::deserialize(tool.clone()).map_err(|error| Failure::invalid(format!("`tools[{at}]`: {error}")))?;
    if given.kind != "function" {
        let message = format!("`tools[{at}]` is of type {:?}: only functions are supported", given.kind);
        return Err(Failure::invalid(message));
    }
    match given.function {
        Some(Function { name, .. }) if name.trim().is_empty() => {
            Err(Failure::invalid(format!("`tools[{at}].function.name` is empty")))
        }
        Some(Function { name, parameters, strict }) => Ok((Tool { name, parameters }, strict.unwrap_or(false))),
        None => Err(Failure::invalid(format!("`tools[{at}]` has no `function`"))),
    }
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
        let chat = conversation(&fields)?;
        Unread::default().check(&fields)?;
        Ok(chat.conversation)
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
            (json!({"tools": [{"type": "function", "function": {"name": " "}}]}), "`tools[0].function.name` is empty"),
            (json!({"tool_choice": "required"}), "there are no `tools`"),
            (json!({"tools": tool, "tool_choice": "f"}), "`tool_choice` must be"),
            (
                json!({"tools": tool, "tool_choice": {"type": "function", "function": {"name": "g"}}}),
                "names \"g\", which is none of `tools`",
            ),
            (json!({"chat_template_kwargs": {"messages": 1}}), "`chat_template_kwargs.messages`"),
            (json!({"chat_template_kwargs": [1]}), "`chat_template_kwargs`"),
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
    fn a_choice_says_what_may_be_called() -> Result<()> {
        let function =
            |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}});
        let of = |choice: serde_json::Value| -> Result<_> {
            let body = json!({"messages": messages(), "tools": [function("f"), function("g")], "tool_choice": choice,
                "parallel_tool_calls": false});
            let chat = conversation(&of_body(body.to_string().as_bytes())?)?;
            let names: Vec<String> = chat.tools.iter().map(|tool| tool.name.clone()).collect();
            Ok((chat.conversation.names.contains_key("tools"), names.join(" "), chat.must_call, chat.are_several))
        };
        assert_eq!(of(json!(null))?, (true, "f g".into(), false, false));
        assert_eq!(of(json!("auto"))?, (true, "f g".into(), false, false));
        assert_eq!(of(json!("none"))?, (false, String::new(), false, false));
        assert_eq!(of(json!("required"))?, (true, "f g".into(), true, false));
        let one = json!({"type": "function", "function": {"name": "g"}});
        assert_eq!(of(one)?, (true, "g".into(), true, false));
        let allowed = |mode: &str, names: &[&str]| {
            let tools: Vec<_> = names.iter().map(|name| function(name)).collect();
            json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}})
        };
        assert_eq!(of(allowed("auto", &["g"]))?, (true, "g".into(), false, false));
        assert_eq!(of(allowed("required", &["g", "f"]))?, (true, "f g".into(), true, false));
        let told = |choice| of(choice).err().map(|failure| failure.message).unwrap_or_default();
        assert!(told(allowed("auto", &["g", "h"])).contains("names \"h\", which is none of `tools`"));
        for wrong in [allowed("none", &["g"]), json!({"type": "allowed_tools"}), json!({"type": "custom"}), json!(3)] {
            assert!(told(wrong).contains("`tool_choice` must be"));
        }
        Ok(())
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
