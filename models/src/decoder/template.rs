//! Chat templates: conversations as the text that a model was trained with.

use std::borrow::Cow;
use std::collections::BTreeMap;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};
use serde_json::json;

use super::conversation::{Conversation, Message, PromptEnd};
use super::error::{DecoderError, Result};
use super::jinja::{of_json, Jinja};
use super::syntax::{announced, Syntax};

/// A model's templates.
pub(super) struct Templates {
    /// The reason, if it cannot be parsed.
    default: Option<Result<Template, String>>,
    /// For conversations with tools, if they have one of their own.
    tool_use: Option<Result<Template, String>>,
    /// Tokens that templates name: `bos_token`, `eos_token`.
    tokens: BTreeMap<String, String>,
}

/// A template, and what it can read.
struct Template {
    jinja: Jinja,
    /// Whether it reads content that is a list of parts.
    reads_parts: bool,
    /// Whether it reads content that is a text.
    reads_texts: bool,
    /// Whether it writes content that is null as a word.
    writes_null: bool,
    /// Whether it reads the arguments of calls as texts of JSON, and not as objects.
    reads_json: bool,
    /// How it writes calls and reasoning.
    syntax: Syntax,
}

impl Templates {
    /// Templates by name: `default`, `tool_use`. Others have no place in a request. A template that cannot be parsed costs chats alone.
    pub fn new(sources: BTreeMap<String, String>, tokens: BTreeMap<String, String>) -> Option<Self> {
        let parse = |name: &str| {
            let parsed = Template::parse(sources.get(name)?, &tokens);
            Some(parsed.map_err(|error| format!("{error:#}")))
        };
        let (default, tool_use) = (parse("default"), parse("tool_use"));
        (default.is_some() || tool_use.is_some()).then_some(Self { default, tool_use, tokens })
    }

    /// The one template of a model.
    pub fn of(source: &str, tokens: BTreeMap<String, String>) -> Option<Self> {
        Self::new([("default".to_owned(), source.to_owned())].into(), tokens)
    }

    /// The one for conversations with tools, or without any.
    fn template(&self, has_tools: bool) -> Option<&Result<Template, String>> {
        match &self.tool_use {
            Some(template) if has_tools => Some(template),
            _ => self.default.as_ref(),
        }
    }

    /// How answers are written, with tools or without any.
    pub fn syntax(&self, has_tools: bool) -> Option<&Syntax> {
        Some(&self.template(has_tools)?.as_ref().ok()?.syntax)
    }

    /// The prompt of a conversation.
    pub fn render(&self, conversation: &Conversation) -> Result<String> {
        let has_tools = conversation.names.get("tools").is_some_and(Value::is_true);
        let template = self.template(has_tools);
        let template = template.ok_or_else(|| DecoderError::TemplateName { name: "default" })?;
        let template = template.as_ref().map_err(|reason| DecoderError::BadTemplate { reason: reason.clone() })?;
        // Who sends these asks for another answer than there is without them.
        for name in ["tools", "documents", "reasoning_effort"] {
            let is_given = conversation.names.get(name).is_some_and(Value::is_true);
            if is_given && !template.jinja.reads(name) {
                return Err(DecoderError::UnreadName { name });
            }
        }
        Ok(template.render(conversation, &self.tokens)?)
    }
}

impl Template {
    fn parse(source: &str, tokens: &BTreeMap<String, String>) -> Result<Self, Error> {
        let jinja = Jinja::parse(source, || chrono::Local::now().naive_local())?;
        let mut template = Self {
            jinja,
            reads_parts: false,
            reads_texts: true,
            writes_null: false,
            reads_json: false,
            syntax: Syntax::default(),
        };
        let probe = |messages: serde_json::Value| {
            let messages: Vec<Message> = serde_json::from_value(messages).unwrap_or_default();
            template.write(&messages.into(), tokens).unwrap_or_default()
        };
        let said = "opara probes this template";
        let of_parts = probe(json!([{"role": "user", "content": [{"type": "text", "text": said}]}]));
        let of_text = probe(json!([{"role": "user", "content": said}]));
        let call = json!({"id": "call00001", "type": "function", "function": {"name": "f", "arguments": {}}});
        let nones = |content: serde_json::Value| {
            let answer = json!({"role": "assistant", "content": content, "tool_calls": [call]});
            probe(json!([{"role": "user", "content": said}, answer])).matches("None").count()
        };
        // Written as a list, it has the names of its parts.
        let is_listed = ["'text'", "\"text\""].iter().any(|name| of_parts.contains(name));
        let writes_null = nones(json!(null)) > nones(json!(""));
        template.reads_parts = of_parts.contains(said) && !is_listed;
        template.reads_texts = of_text.contains(said) || !template.reads_parts;
        template.writes_null = writes_null;
        template.learn_syntax(tokens);
        Ok(template)
    }

    /// Finds out how calls and reasoning are written.
    fn learn_syntax(&mut self, tokens: &BTreeMap<String, String>) {
        let reads_tools = self.jinja.reads("tools");
        // Some templates write no calls without tools, some read arguments as texts.
        for (has_tools, reads_json) in [(false, false), (false, true), (true, false), (true, true)] {
            if has_tools && !reads_tools {
                break;
            }
            self.reads_json = reads_json;
            if let Some(syntax) = Syntax::of(true, |messages| self.probe(messages, has_tools, tokens)) {
                self.syntax = syntax;
                return;
            }
        }
        self.reads_json = false;
        self.syntax = Syntax::of(false, |messages| self.probe(messages, false, tokens)).unwrap_or_default();
        // A role may be written with tools alone where it has no message.
        let [of_system, asked, answer] =
            ["system", "user", "assistant"].map(|role| json!({"role": role, "content": "a question"}));
        let of_roles = self.probe(json!([of_system, asked, answer]), false, tokens);
        let of_user = |has_tools| self.probe(json!([asked]), has_tools, tokens);
        self.syntax.calls = announced(&(of_roles + &of_user(false)), &of_user(true)).filter(|_| reads_tools);
    }

    /// The text of these turns, with a tool or without any: empty where the template refuses them.
    fn probe(&self, messages: serde_json::Value, has_tools: bool, tokens: &BTreeMap<String, String>) -> String {
        let messages: Vec<Message> = serde_json::from_value(messages).unwrap_or_default();
        let parameters = json!({"type": "object", "properties": {"a": {"type": "string", "description": "d"}}});
        let function = json!({"name": "f", "description": "d", "parameters": parameters});
        let tools = Value::from_serialize(json!([{"type": "function", "function": function}]));
        let names = has_tools.then(|| ("tools".to_owned(), tools)).into_iter().collect();
        let turns = Conversation { messages, names, end: PromptEnd::Turn };
        self.render(&turns, tokens).unwrap_or_default()
    }

    fn render(&self, conversation: &Conversation, tokens: &BTreeMap<String, String>) -> Result<String, Error> {
        let messages = conversation.messages.iter().map(|message| self.readable(message));
        let messages = messages.collect::<Result<Vec<Message>, Error>>()?;
        let last = messages.last().map(|message| message.field("content"));
        let prompt = self.write(&Conversation { messages, ..conversation.clone() }, tokens)?;
        match conversation.end {
            PromptEnd::Content => until_content(prompt, last.as_ref()),
            PromptEnd::Answer | PromptEnd::Turn => Ok(prompt),
        }
    }

    /// A message with content that the template reads: text for parts, parts for text, texts for arguments.
    fn readable(&self, message: &Message) -> Result<Message, Error> {
        let message = match self.reads_json && message.field("tool_calls").kind() == ValueKind::Seq {
            true => {
                let refused = |reason| Error::new(ErrorKind::InvalidOperation, format!("`tool_calls`: {reason}"));
                &message.with_texts_of_arguments().map_err(refused)?
            }
            false => message,
        };
        let content = message.field("content");
        let has_calls = message.field("tool_calls").is_true();
        Ok(match content.kind() {
            ValueKind::Seq if !self.reads_parts => message.with("content", Value::from(texts(&content).join("\n"))),
            ValueKind::String if !self.reads_texts => {
                let part: Value = [("type", Value::from("text")), ("text", content)].into_iter().collect();
                message.with("content", Value::from(vec![part]))
            }
            ValueKind::None | ValueKind::Undefined if !has_calls || self.writes_null => {
                message.with("content", Value::from(""))
            }
            _ => message.clone(),
        })
    }

    fn write(&self, conversation: &Conversation, tokens: &BTreeMap<String, String>) -> Result<String, Error> {
        let none = || Value::from(());
        let mut names: BTreeMap<Cow<str>, Value> = BTreeMap::new();
        names.extend(tokens.iter().map(|(name, token)| (name.into(), token.as_str().into())));
        names.extend([("tools".into(), none()), ("documents".into(), none())]);
        names.extend(conversation.names.iter().map(|(name, value)| (name.into(), of_json(value))));
        let messages: Value = conversation.messages.iter().map(|message| of_json(message.value())).collect();
        names.insert("messages".into(), messages);
        names.insert("add_generation_prompt".into(), (conversation.end == PromptEnd::Answer).into());
        self.jinja.render(names.into_iter().collect())
    }
}

/// The texts of content's parts.
fn texts(content: &Value) -> Vec<String> {
    let parts = content.try_iter().into_iter().flatten();
    parts.filter_map(|part| Some(part.get_attr("text").ok()?.as_str()?.to_owned())).collect()
}

/// A prompt up to the end of the last turn's content, as transformers cuts it.
fn until_content(mut prompt: String, content: Option<&Value>) -> Result<String, Error> {
    let refused = |reason: &str| Error::new(ErrorKind::InvalidOperation, reason.to_owned());
    let content = content.map(|content| match content.as_str() {
        Some(text) => text.to_owned(),
        None => texts(content).pop().unwrap_or_default(),
    });
    let content = content.filter(|content| !content.trim().is_empty());
    let content = content.ok_or_else(|| refused("the last message has no text to be continued"))?;
    let start = prompt.rfind(content.trim());
    let start = start
        .ok_or_else(|| refused("the template does not write the last message as it is: it cannot be continued"))?;
    // Where the template keeps the spaces behind the text, they are part of it.
    let whole = content.trim_start();
    let kept = if prompt[start..].starts_with(whole) { whole } else { content.trim() };
    prompt.truncate(start + kept.len());
    Ok(prompt)
}

#[cfg(test)]
mod tests {
    use super::super::syntax::CallForm;
    use super::*;

    #[test]
    fn calls_may_be_written_with_tools_alone() {
        let calls = |source: &str| {
            let templates = Templates::of(source, BTreeMap::new()).expect("a template");
            templates.syntax(true).and_then(|syntax| syntax.calls.clone())
        };
        let turns = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}CALLS<|end|>{% endfor %}";
        let of_tools =
            "{% if tools %}{% for call in m.tool_calls or [] %}<call>{{ ARGUMENTS }}</call>{% endfor %}{% endif %}";
        let form = CallForm::Object { id: None, name: "name".into(), arguments: "arguments".into() };
        // As Hunyuan has it, with arguments as objects or as texts.
        for arguments in [
            "call.function | tojson",
            r#"'{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments + '}'"#,
        ] {
            let found = calls(&turns.replace("CALLS", of_tools).replace("ARGUMENTS", arguments)).expect("calls");
            assert_eq!((found.open.as_str(), found.close.as_str(), &found.form), ("<call>", "</call>", &form));
        }
        // As Granite 3.1 to 3.3 have it, which write no calls.
        let said = "{% if tools %}Respond only with <|tool_call|> followed by a JSON list of tools used: {{ tools }}{% endif %}";
        let found = calls(&format!("{said}{}", turns.replace("CALLS", ""))).expect("calls");
        assert_eq!(
            (found.open.as_str(), found.between.as_deref(), found.close.as_str()),
            ("<|tool_call|>[", Some(", "), "]")
        );
        assert_eq!(found.form, form);
        // Without such a mark nothing is known.
        assert_eq!(calls(&format!("{}{}", said.replace("<|tool_call|>", "calls"), turns.replace("CALLS", ""))), None);
    }
}
