//! Answers with texts, whole and in pieces, as OpenAI's clients read them.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{json, Value};

use crate::generate::{Finish, Usage};

use super::request::Form;

/// What is the same in all that is said about one text.
pub(super) struct Frame {
    form: Form,
    model: String,
    id: String,
    created: u64,
    /// Whether a stream tells the numbers of tokens at its end.
    has_usage: bool,
}

impl Frame {
    pub fn new(form: Form, model: String, has_usage: bool) -> Self {
        let prefix = if form == Form::Chat { "chatcmpl" } else { "cmpl" };
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        Self { form, model, id: format!("{prefix}-{:016x}", fastrand::u64(..)), created, has_usage }
    }

    /// The answer in one.
    pub fn whole(&self, text: &str, finish: Option<Finish>, of: Usage) -> Value {
        let choice = match self.form {
            Form::Text => json!({"text": text}),
            Form::Chat => json!({"message": {"role": "assistant", "content": text, "refusal": null}}),
        };
        let object = if self.form == Form::Chat { "chat.completion" } else { "text_completion" };
        let mut told = self.told(object, choice, finish);
        told["usage"] = usage(of);
        told
    }

    /// What a stream begins with, if it does not begin with text.
    pub fn beginning(&self) -> Option<Value> {
        let role = json!({"delta": {"role": "assistant", "content": ""}});
        (self.form == Form::Chat).then(|| self.chunk(role, None))
    }

    /// A piece of a stream.
    pub fn piece(&self, text: &str) -> Value {
        let choice = match self.form {
            Form::Text => json!({"text": text}),
            Form::Chat => json!({"delta": {"content": text}}),
        };
        self.chunk(choice, None)
    }

    /// What a stream ends with.
    pub fn end(&self, finish: Option<Finish>, of: Usage) -> Vec<Value> {
        let choice = match self.form {
            Form::Text => json!({"text": ""}),
            Form::Chat => json!({"delta": {}}),
        };
        let mut end = vec![self.chunk(choice, finish)];
        if self.has_usage {
            let mut told = self.chunk(json!({}), None);
            (told["choices"], told["usage"]) = (json!([]), usage(of));
            end.push(told);
        }
        end
    }

    fn chunk(&self, choice: Value, finish: Option<Finish>) -> Value {
        let object = if self.form == Form::Chat { "chat.completion.chunk" } else { "text_completion" };
        let mut told = self.told(object, choice, finish);
        if self.has_usage {
            told["usage"] = Value::Null;
        }
        told
    }

    fn told(&self, object: &str, mut choice: Value, finish: Option<Finish>) -> Value {
        choice["index"] = json!(0);
        choice["logprobs"] = Value::Null;
        choice["finish_reason"] = match finish {
            None => Value::Null,
            Some(Finish::Stop) => json!("stop"),
            Some(Finish::Length) => json!("length"),
        };
        let Self { model, id, created, .. } = self;
        json!({"id": id, "object": object, "created": created, "model": model, "choices": [choice]})
    }
}

fn usage(Usage { prompt, cached, written }: Usage) -> Value {
    json!({
        "prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": cached},
    })
}
