//! Answers with texts, whole and in pieces, as OpenAI's clients read them.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use opara_models::decoder::Text;
use opara_models::engine::Likelihoods;
use serde_json::{json, Value};

use crate::generate::{Answer, Call, Finish, Part, Piece, Tool, Usage};
use crate::model::{Failure, Result};

use super::answer_parts::AnswerParts;
use super::form::Form;
use super::likelihoods::Likely;
use super::request::Told;

/// What is the same in all that is said about one request's texts.
pub(super) struct Frame {
    form: Form,
    model: String,
    id: String,
    created: u64,
    told: Told,
    choices: Vec<Choice>,
}

/// What is said about one of the texts.
struct Choice {
    text: Arc<Text>,
    prompt: Vec<u32>,
    /// Whether others of the same prompt stand before it.
    is_further: bool,
    likely: Likely,
    has_begun: bool,
    /// How likely the tokens of the prompt are, from the second one on, until that was told.
    read: Vec<Likelihoods>,
    /// Whether the ids of its prompt were told.
    has_prompt: bool,
    parts: AnswerParts,
    /// Tokens that were not told yet, since their text is not certain.
    held: Piece,
    usage: Usage,
}

impl Frame {
    /// Of texts, so many behind each prompt, whose model may call these tools.
    pub fn new(form: Form, model: String, told: Told, answers: &[Answer], each: usize, tools: &[Tool]) -> Self {
        let prefix = if form == Form::Chat { "chatcmpl" } else { "cmpl" };
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let choice = |(at, answer): (usize, &Answer)| {
            let (text, prompt) = (answer.tokenizer().clone(), answer.prompt().to_vec());
            let likely = Likely::new(told.names_are_ids);
            let parts = AnswerParts::new(answer, tools, told.one_call);
            Choice {
                text,
                prompt,
                is_further: at % each != 0,
                likely,
                has_begun: false,
                read: Vec::new(),
                has_prompt: false,
                parts,
                held: Piece::default(),
                usage: Usage::default(),
            }
        };
        let choices = answers.iter().enumerate().map(choice).collect();
        Self { form, model, id: format!("{prefix}-{:016x}", fastrand::u64(..)), created, told, choices }
    }

    /// The answer in one: the texts with how each has ended.
    pub fn whole(&mut self, texts: Vec<(Piece, Option<Finish>)>) -> Result<Value> {
        let choice = |(index, (piece, finish)): (usize, (Piece, Option<Finish>))| {
            let text = self.prompt(index)? + &piece.text;
            let told = match self.form {
                Form::Text => json!({"text": text}),
                Form::Chat => json!({"message": self.message(index, &text)}),
            };
            Ok(self.choice(index, told, &piece, finish))
        };
        let choices: Vec<Value> = texts.into_iter().enumerate().map(choice).collect::<Result<_>>()?;
        let mut told = self.object(if self.form == Form::Chat { "chat.completion" } else { "text_completion" });
        told["choices"] = json!(choices);
        told["usage"] = self.usage();
        self.tell_prompt(&mut told);
        Ok(told)
    }

    /// The ids of the prompt of a conversation, of which there is one.
    fn tell_prompt(&self, told: &mut Value) {
        if let Some(choice) = self.choices.first().filter(|_| self.told.ids && self.form == Form::Chat) {
            told["prompt_token_ids"] = json!(choice.prompt);
        }
    }

    /// What a stream begins with, if it does not begin with text.
    pub fn begun(&mut self) -> Vec<Value> {
        let role = || json!({"delta": {"role": "assistant", "content": ""}});
        let choices = if self.form == Form::Chat { self.choices.len() } else { 0 };
        let mut told: Vec<Value> =
            (0..choices).map(|index| self.chunk(index, role(), &Piece::default(), None)).collect();
        told.first_mut().into_iter().for_each(|told| self.tell_prompt(told));
        told
    }

    /// The message of a whole answer.
    fn message(&mut self, index: usize, text: &str) -> Value {
        let (mut content, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
        for part in self.choices[index].parts.push(text, true) {
            match part {
                Part::Content(text) => content += &text,
                Part::Reasoning(text) => reasoning += &text,
                Part::Call(call) => calls.push((call, String::new())),
                Part::Arguments(piece) => calls.last_mut().into_iter().for_each(|(_, arguments)| *arguments += &piece),
            }
        }
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !reasoning.is_empty() {
            message["reasoning_content"] = json!(reasoning);
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.iter().map(|(call, arguments)| called(call, arguments)).collect();
            if content.is_empty() {
                message["content"] = Value::Null;
            }
        }
        message
    }

    /// What is told of a piece of a text of a stream.
    pub fn piece(&mut self, index: usize, piece: Piece) -> Result<Vec<Value>> {
        self.pieces(index, piece, false)
    }

    fn pieces(&mut self, index: usize, piece: Piece, is_last: bool) -> Result<Vec<Value>> {
        let text = self.prompt(index)? + &piece.text;
        let tells_tokens = self.told.likelihoods || self.told.ids;
        if self.form == Form::Text {
            let is_told = !text.is_empty() || tells_tokens && !piece.tokens.is_empty();
            return Ok(if is_told { vec![self.chunk(index, json!({"text": text}), &piece, None)] } else { Vec::new() });
        }
        let held = &mut self.choices[index].held;
        held.text += &piece.text;
        held.tokens.extend(piece.tokens);
        // The calls that are told already.
        let mut calls = self.choices[index].parts.calls;
        let mut deltas = Vec::new();
        for part in self.choices[index].parts.push(&text, is_last) {
            let delta = match part {
                Part::Content(text) if text.is_empty() => continue,
                Part::Content(text) => json!({"content": text}),
                Part::Reasoning(text) => json!({"reasoning_content": text}),
                Part::Call(call) => {
                    let mut told = called(&call, "");
                    told["index"] = json!(calls);
                    calls += 1;
                    json!({"tool_calls": [told]})
                }
                Part::Arguments(piece) => {
                    let index = calls.saturating_sub(1);
                    json!({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
                }
            };
            deltas.push(delta);
        }
        if is_last && deltas.is_empty() && tells_tokens && !self.choices[index].held.tokens.is_empty() {
            deltas.push(json!({"content": ""}));
        }
        let chunks = deltas.into_iter().map(|delta| {
            // Its tokens are told with the first of them.
            let piece = std::mem::take(&mut self.choices[index].held);
            self.chunk(index, json!({"delta": delta}), &piece, None)
        });
        Ok(chunks.collect())
    }

    /// What a text of a stream ends with.
    pub fn end(&mut self, index: usize, finish: Option<Finish>) -> Result<Vec<Value>> {
        let mut told = self.pieces(index, Piece::default(), true)?;
        let end = match self.form {
            Form::Text => json!({"text": ""}),
            Form::Chat => json!({"delta": {}}),
        };
        told.push(self.chunk(index, end, &Piece::default(), finish));
        Ok(told)
    }

    /// Notes how likely the tokens of a text's prompt are.
    pub fn read(&mut self, index: usize, of: Vec<Likelihoods>) {
        self.choices[index].read.extend(of);
    }

    /// Notes the numbers of a text that has ended.
    pub fn count(&mut self, index: usize, usage: Usage) {
        self.choices[index].usage = usage;
    }

    /// The numbers of tokens of all texts, where a stream tells them at its end.
    pub fn numbers(&self) -> Option<Value> {
        self.told.usage.then(|| {
            let mut told = self.object(self.streamed());
            (told["choices"], told["usage"]) = (json!([]), self.usage());
            told
        })
    }

    /// The prompt, where it is told as the beginning of a text and was not yet.
    fn prompt(&mut self, index: usize) -> Result<String> {
        let choice = &mut self.choices[index];
        match self.told.prompt && !std::mem::replace(&mut choice.has_begun, true) {
            true => decoded(&choice.text, &choice.prompt),
            false => Ok(String::new()),
        }
    }

    fn chunk(&mut self, index: usize, choice: Value, piece: &Piece, finish: Option<Finish>) -> Value {
        let choice = self.choice(index, choice, piece, finish);
        let mut told = self.object(self.streamed());
        told["choices"] = json!([choice]);
        if self.told.usage {
            told["usage"] = Value::Null;
        }
        told
    }

    fn choice(&mut self, index: usize, mut choice: Value, piece: &Piece, finish: Option<Finish>) -> Value {
        let of = &mut self.choices[index];
        choice["index"] = json!(index);
        choice["logprobs"] = match self.form {
            _ if !self.told.likelihoods => Value::Null,
            _ if piece.tokens.is_empty() && !(self.told.prompt && of.likely.is_new()) => Value::Null,
            Form::Text => {
                let read = std::mem::take(&mut of.read);
                let prompt = if self.told.prompt { &of.prompt[..] } else { &[] };
                // In the first piece.
                let prompt = if of.likely.is_new() { prompt } else { &[] };
                of.likely.text(&of.text, (prompt, &read), &piece.text, &piece.tokens)
            }
            Form::Chat => of.likely.chat(&of.text, &piece.tokens),
        };
        choice["finish_reason"] = match finish {
            None => Value::Null,
            Some(Finish::Stop) if of.parts.calls > 0 => json!("tool_calls"),
            Some(Finish::Stop) => json!("stop"),
            Some(Finish::Length) => json!("length"),
        };
        if self.told.ids {
            choice["token_ids"] = piece.tokens.iter().map(|written| written.token).collect();
            // In a stream once.
            if self.form == Form::Text && !std::mem::replace(&mut of.has_prompt, true) {
                choice["prompt_token_ids"] = json!(of.prompt);
            }
        }
        choice
    }

    fn object(&self, object: &str) -> Value {
        let Self { model, id, created, .. } = self;
        json!({"id": id, "object": object, "created": created, "model": model})
    }

    fn streamed(&self) -> &'static str {
        if self.form == Form::Chat {
            "chat.completion.chunk"
        } else {
            "text_completion"
        }
    }

    /// Of all texts. A prompt counts once.
    fn usage(&self) -> Value {
        let prompts = || self.choices.iter().filter(|choice| !choice.is_further).map(|choice| choice.usage);
        let prompt: usize = prompts().map(|usage| usage.prompt).sum();
        let cached: usize = prompts().map(|usage| usage.cached).sum();
        let written: usize = self.choices.iter().map(|choice| choice.usage.written).sum();
        json!({
            "prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written,
            "prompt_tokens_details": {"cached_tokens": cached},
        })
    }
}

/// A call.
fn called(call: &Call, arguments: &str) -> Value {
    json!({"id": call_id(call), "type": "function", "function": {"name": call.name, "arguments": arguments}})
}

/// The id of a call: the model's own, if its template needs that back, or one that the templates of all models take.
pub(super) fn call_id(call: &Call) -> String {
    call.id.clone().unwrap_or_else(|| std::iter::repeat_with(fastrand::alphanumeric).take(9).collect())
}

fn decoded(text: &Text, tokens: &[u32]) -> Result<String> {
    text.decode(tokens).map_err(|error| Failure::from(crate::generate::GenerateError::from(error)))
}
