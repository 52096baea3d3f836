//! Conversations, as clients send them and chat templates read them.

use std::collections::BTreeMap;

use minijinja::value::ValueKind;
use minijinja::Value;
use serde::{Deserialize, Serialize};

use super::jinja::as_json;

/// One turn of a conversation: an object with a role, with what was said, and with whatever else a template reads, such as
/// `tool_calls`, `tool_call_id`, `name` and `reasoning_content`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Value")]
pub struct Message(Value);

impl Message {
    /// A turn of text.
    pub fn new(role: &str, content: &str) -> Self {
        Self([("role", role), ("content", content)].into_iter().collect())
    }

    /// `system`, `user`, `assistant`, or whatever else the template knows.
    pub fn role(&self) -> String {
        self.field("role").as_str().unwrap_or_default().to_owned()
    }

    /// A field: undefined if there is none of this name.
    pub fn field(&self, name: &str) -> Value {
        field(&self.0, name)
    }

    /// The message with another value of a field, which stays where it is among the others.
    pub fn with(&self, name: &str, value: Value) -> Self {
        Self(with(&self.0, name, value))
    }

    /// The message with objects for the arguments of its calls, which clients send as texts of JSON and templates read as objects.
    ///
    /// # Errors
    /// Calls that are none; arguments that are no object.
    pub fn with_arguments(&self) -> Result<Self, String> {
        let calls = self.field("tool_calls");
        if calls.is_undefined() {
            return Ok(self.clone());
        }
        let calls = Some(calls).filter(|calls| calls.kind() == ValueKind::Seq).ok_or("they are a list of calls")?;
        let read = |arguments: Value| {
            Ok(match arguments {
                text if text.as_str().is_some_and(|text| !text.trim().is_empty()) => {
                    let wrong = |reason: String| format!("the arguments are not an object of JSON{reason}");
                    let parsed = serde_json::from_str::<Value>(text.as_str().unwrap_or_default());
                    let parsed = parsed.map_err(|error| wrong(format!(": {error}")))?;
                    Some(parsed).filter(|value| value.kind() == ValueKind::Map).ok_or_else(|| wrong(String::new()))?
                }
                object if object.kind() == ValueKind::Map => object,
                text if !text.is_true() => std::iter::empty::<(Value, Value)>().collect(),
                _ => return Err("the arguments are an object".into()),
            })
        };
        self.change_arguments(&calls, read)
    }

    /// The message with texts of JSON for the arguments of its calls, which some templates read.
    pub(super) fn with_texts_of_arguments(&self) -> Result<Self, String> {
        let calls = self.field("tool_calls");
        let written = |arguments: Value| match arguments.kind() {
            ValueKind::Map => as_json(&arguments).map(Value::from).map_err(|error| error.to_string()),
            _ => Ok(arguments),
        };
        self.change_arguments(&calls, written)
    }

    fn change_arguments(&self, calls: &Value, change: impl Fn(Value) -> Result<Value, String>) -> Result<Self, String> {
        let change = |call: Value| {
            let function = field(&call, "function");
            if function.kind() != ValueKind::Map {
                return Err("a call has a `function`".to_owned());
            }
            let arguments = change(field(&function, "arguments"))?;
            Ok(with(&call, "function", with(&function, "arguments", arguments)))
        };
        let calls = calls.try_iter().into_iter().flatten().map(change).collect::<Result<Vec<_>, _>>()?;
        Ok(self.with("tool_calls", Value::from(calls)))
    }

    /// The message without some of its fields.
    pub fn without(&self, is_left_out: impl Fn(&str, &Value) -> bool) -> Self {
        let is_kept = |(name, value): &(Value, Value)| !is_left_out(name.as_str().unwrap_or_default(), value);
        Self(self.fields().filter(is_kept).collect())
    }

    /// All fields in the order in which they were given.
    pub fn fields(&self) -> impl Iterator<Item = (Value, Value)> + '_ {
        fields(&self.0)
    }

    pub(super) fn value(&self) -> &Value {
        &self.0
    }
}

fn field(of: &Value, name: &str) -> Value {
    of.get_attr(name).unwrap_or_default()
}

fn fields(of: &Value) -> impl Iterator<Item = (Value, Value)> + '_ {
    let names = of.try_iter().into_iter().flatten();
    names.map(|name| (name.clone(), of.get_item(&name).unwrap_or_default()))
}

/// An object with another value of a field.
fn with(object: &Value, name: &str, value: Value) -> Value {
    let mut fields: Vec<(Value, Value)> = fields(object).collect();
    match fields.iter_mut().find(|(field, _)| field.as_str() == Some(name)) {
        Some((_, old)) => *old = value,
        None => fields.push((Value::from(name), value)),
    }
    fields.into_iter().collect()
}

impl TryFrom<Value> for Message {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        if value.kind() != ValueKind::Map {
            return Err(format!("a message is an object, and this is a {}", value.kind()));
        }
        match field(&value, "role") {
            role if role.as_str().is_some() => {}
            role if role.is_undefined() => return Err("missing field `role`".into()),
            role => return Err(format!("the role of a message is a string, and this is a {}", role.kind())),
        }
        let content = field(&value, "content");
        match content.kind() {
            ValueKind::String | ValueKind::None | ValueKind::Undefined => {}
            ValueKind::Seq => content.try_iter().into_iter().flatten().try_for_each(|part| check_part(&part))?,
            _ => return Err("`content` is a string or a list of parts".into()),
        }
        Ok(Self(value))
    }
}

/// Refuses a part of a message that is not of text.
fn check_part(part: &Value) -> Result<(), String> {
    match (field(part, "type").as_str(), field(part, "text").as_str()) {
        (Some("text"), Some(_)) => Ok(()),
        (Some("text"), None) => Err("a part of a message is of type \"text\" and without `text`".into()),
        (Some(kind), _) => Err(format!("a part of a message is of type {kind:?}: only text is supported")),
        (None, _) => Err("a part of a message is an object with a `type`".into()),
    }
}

/// A conversation, and what else its template is given.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Conversation {
    /// Its turns.
    pub messages: Vec<Message>,
    /// Further names that the template reads: `tools`, `documents`, `enable_thinking`.
    pub names: BTreeMap<String, Value>,
    /// Where the prompt ends.
    pub end: PromptEnd,
}

/// Where the prompt of a conversation ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PromptEnd {
    /// Behind what asks the assistant for its next turn.
    #[default]
    Answer,
    /// Behind the last turn.
    Turn,
    /// Within the last turn, which is to be continued.
    Content,
}

impl From<Vec<Message>> for Conversation {
    fn from(messages: Vec<Message>) -> Self {
        Self { messages, ..Self::default() }
    }
}
