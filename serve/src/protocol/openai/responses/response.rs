//! A response as it is written: its items, and the events that tell them.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use opara_models::decoder::Text;
use serde_json::{json, Map, Value};

use super::super::answer_parts::AnswerParts;
use super::super::events::call_id;
use super::super::likelihoods::Likely;
use super::super::refusal::error;
use super::super::request::Told;
use crate::generate::{Answer, Finish, Part, Piece, Tool, Usage};
use crate::model::Failure;

/// A response that is being written.
pub(super) struct Response {
    id: String,
    created: u64,
    model: String,
    said: Map<String, Value>,
    parts: AnswerParts,
    /// How likely tokens are, where that is told.
    likely: Option<Likely>,
    text: Arc<Text>,
    /// Items that have ended.
    output: Vec<Value>,
    item: Option<Item>,
    /// How likely tokens are whose text is not certain.
    held: Vec<Value>,
    /// Tokens of reasoning.
    thought: usize,
    finish: Option<Finish>,
    usage: Usage,
    events: u64,
}

/// The item that is being written.
struct Item {
    kind: Kind,
    id: String,
    /// Its text, or a call's arguments.
    text: String,
    /// How likely the tokens of a message are.
    likely: Vec<Value>,
}

enum Kind {
    Message,
    Reasoning,
    Call { id: String, name: String },
}

impl Item {
    fn new(kind: Kind) -> Self {
        let prefix = match kind {
            Kind::Message => "msg",
            Kind::Reasoning => "rs",
            Kind::Call { .. } => "fc",
        };
        Self { kind, id: format!("{prefix}_{:016x}", fastrand::u64(..)), text: String::new(), likely: Vec::new() }
    }

    /// Whether its text is a part of its content.
    fn has_content(&self) -> bool {
        !matches!(self.kind, Kind::Call { .. })
    }

    /// The only part of its content, if it has any.
    fn content(&self) -> Option<Value> {
        let Self { text, likely, .. } = self;
        match self.kind {
            Kind::Message => Some(json!({"type": "output_text", "text": text, "annotations": [], "logprobs": likely})),
            Kind::Reasoning => Some(json!({"type": "reasoning_text", "text": text})),
            Kind::Call { .. } => None,
        }
    }

    fn told(&self, status: &str) -> Value {
        let Self { id, text, .. } = self;
        let content: Vec<Value> = self.content().filter(|_| status != "in_progress").into_iter().collect();
        match &self.kind {
            Kind::Message => {
                json!({"type": "message", "id": id, "status": status, "role": "assistant", "content": content})
            }
            Kind::Reasoning => {
                json!({"type": "reasoning", "id": id, "status": status, "summary": [], "content": content})
            }
            Kind::Call { id: call, name } => json!({
                "type": "function_call", "id": id, "status": status, "call_id": call, "name": name, "arguments": text,
            }),
        }
    }

    /// The events' names of its text.
    fn stem(&self) -> &'static str {
        match self.kind {
            Kind::Message => "response.output_text",
            Kind::Reasoning => "response.reasoning_text",
            Kind::Call { .. } => "response.function_call_arguments",
        }
    }
}

impl Response {
    /// Of a request that said `said`, whose model may call these tools.
    pub fn new(model: String, said: Map<String, Value>, told: Told, answer: &Answer, tools: &[Tool]) -> Self {
        Self {
            id: format!("resp_{:016x}", fastrand::u64(..)),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            model,
            said,
            parts: AnswerParts::new(answer, tools, told.one_call),
            likely: told.likelihoods.then(|| Likely::new(told.names_are_ids)),
            text: answer.tokenizer().clone(),
            output: Vec::new(),
            item: None,
            held: Vec::new(),
            thought: 0,
            finish: None,
            usage: Usage::default(),
            events: 0,
        }
    }

    /// The events that a stream begins with.
    pub fn begun(&mut self) -> Vec<Value> {
        ["response.created", "response.in_progress"].map(|name| self.all(name)).into()
    }

    /// Takes a piece of the text: its events.
    pub fn push(&mut self, piece: &Piece) -> Vec<Value> {
        if let Some(likely) = &self.likely {
            if let Value::Array(tokens) = likely.chat(&self.text, &piece.tokens)["content"].take() {
                self.held.extend(tokens);
            }
        }
        let events = self.parts(&piece.text, false);
        if matches!(&self.item, Some(Item { kind: Kind::Reasoning, .. })) {
            self.thought += piece.tokens.len();
        }
        events
    }

    /// The text has ended: the last events.
    pub fn end(&mut self, finish: Option<Finish>, usage: Usage) -> Vec<Value> {
        let mut events = self.parts("", true);
        (self.finish, self.usage) = (finish, usage);
        let status = self.status();
        events.extend(self.close(status));
        events.push(self.all(&format!("response.{status}")));
        events
    }

    /// The event of a failure, behind which there are no others.
    pub fn failure(&mut self, failure: &Failure) -> Value {
        let mut told = error(failure)["error"].take();
        let (message, code, param) = (told["message"].take(), told["code"].take(), told["param"].take());
        self.event("error", json!({"message": message, "code": code, "param": param}))
    }

    /// All of it.
    pub fn whole(&self) -> Value {
        let Usage { prompt, cached, written } = self.usage;
        let is_cut = self.finish == Some(Finish::Length);
        let mut told = json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": self.status(), "model": self.model,
            "output": self.output, "error": null, "previous_response_id": null, "store": false, "truncation": "disabled",
            "background": false, "incomplete_details": is_cut.then(|| json!({"reason": "max_output_tokens"})), "usage": null,
        });
        if self.finish.is_some() {
            told["usage"] = json!({
                "input_tokens": prompt, "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": written, "output_tokens_details": {"reasoning_tokens": self.thought}, "total_tokens": prompt + written,
            });
        }
        for (name, value) in &self.said {
            told[name] = value.clone();
        }
        told
    }

    fn status(&self) -> &'static str {
        match self.finish {
            None => "in_progress",
            Some(Finish::Stop) => "completed",
            Some(Finish::Length) => "incomplete",
        }
    }

    fn parts(&mut self, text: &str, is_last: bool) -> Vec<Value> {
        let mut events = Vec::new();
        for part in self.parts.push(text, is_last) {
            match part {
                Part::Content(text) if text.is_empty() => {}
                Part::Content(text) => {
                    if !matches!(&self.item, Some(Item { kind: Kind::Message, .. })) {
                        events.extend(self.open(Kind::Message));
                    }
                    let likely = std::mem::take(&mut self.held);
                    events.extend(self.goes_on(&text, likely));
                }
                Part::Reasoning(text) => {
                    if !matches!(&self.item, Some(Item { kind: Kind::Reasoning, .. })) {
                        events.extend(self.open(Kind::Reasoning));
                    }
                    self.held.clear();
                    events.extend(self.goes_on(&text, Vec::new()));
                }
                Part::Call(call) => {
                    self.held.clear();
                    events.extend(self.open(Kind::Call { id: call_id(&call), name: call.name }));
                }
                Part::Arguments(piece) => {
                    self.held.clear();
                    events.extend(self.goes_on(&piece, Vec::new()));
                }
            }
        }
        events
    }

    /// Begins an item.
    fn open(&mut self, kind: Kind) -> Vec<Value> {
        let mut events = self.close("completed");
        let (item, at) = (Item::new(kind), self.output.len());
        events.push(
            self.event("response.output_item.added", json!({"output_index": at, "item": item.told("in_progress")})),
        );
        if let Some(part) = item.content() {
            let part = json!({"item_id": item.id, "output_index": at, "content_index": 0, "part": part});
            events.push(self.event("response.content_part.added", part));
        }
        self.item = Some(item);
        events
    }

    /// Adds to the item's text.
    fn goes_on(&mut self, text: &str, likely: Vec<Value>) -> Option<Value> {
        let at = self.output.len();
        let item = self.item.as_mut()?;
        item.text += text;
        let mut told = json!({"item_id": item.id, "output_index": at, "delta": text});
        if item.has_content() {
            told["content_index"] = json!(0);
        }
        if matches!(item.kind, Kind::Message) {
            told["logprobs"] = json!(likely);
            item.likely.extend(likely);
        }
        let name = format!("{}.delta", item.stem());
        Some(self.event(&name, told))
    }

    /// Ends the item, if there is one.
    fn close(&mut self, status: &str) -> Vec<Value> {
        let (Some(item), at) = (self.item.take(), self.output.len()) else { return Vec::new() };
        let mut events = Vec::new();
        let mut told = json!({"item_id": item.id, "output_index": at});
        match &item.kind {
            Kind::Call { name, .. } => (told["name"], told["arguments"]) = (json!(name), json!(item.text)),
            kind => {
                (told["content_index"], told["text"]) = (json!(0), json!(item.text));
                if matches!(kind, Kind::Message) {
                    told["logprobs"] = json!(item.likely);
                }
            }
        }
        events.push(self.event(&format!("{}.done", item.stem()), told));
        if let Some(part) = item.content() {
            let part = json!({"item_id": item.id, "output_index": at, "content_index": 0, "part": part});
            events.push(self.event("response.content_part.done", part));
        }
        let told = item.told(status);
        events.push(self.event("response.output_item.done", json!({"output_index": at, "item": told})));
        self.output.push(told);
        events
    }

    /// An event that tells all there is.
    fn all(&mut self, name: &str) -> Value {
        let response = self.whole();
        self.event(name, json!({"response": response}))
    }

    fn event(&mut self, name: &str, mut told: Value) -> Value {
        (told["type"], told["sequence_number"]) = (json!(name), json!(self.events));
        self.events += 1;
        told
    }
}
