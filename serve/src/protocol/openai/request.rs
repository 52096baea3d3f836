//! The bodies of requests for texts.

use opara_candle::ops::Sampling;
use opara_models::decoder::Message;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::generate::{Prompt, Wanted};
use crate::model::{Failure, Result};

/// Which of the two kinds of texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// `/v1/completions`.
    Text,
    /// `/v1/chat/completions`.
    Chat,
}

/// Fields that are neither here nor in [`REFUSED`], such as `user`, are ignored.
#[derive(Debug, Deserialize)]
struct Body {
    model: String,
    prompt: Option<Input>,
    messages: Option<Vec<Turn>>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    seed: Option<i64>,
    stop: Option<Stops>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// What would change the answer, and is not offered.
const REFUSED: [&str; 16] = [
    "n",
    "best_of",
    "echo",
    "suffix",
    "logprobs",
    "top_logprobs",
    "logit_bias",
    "frequency_penalty",
    "presence_penalty",
    "tools",
    "functions",
    "response_format",
    "modalities",
    "audio",
    "prediction",
    "web_search_options",
];

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "`prompt` must be a string, a list of tokens, or a list of one of these")]
enum Input {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    Rows(Vec<Vec<u32>>),
}

#[derive(Debug, Deserialize)]
struct Turn {
    role: String,
    content: Option<Content>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "`content` must be a string or a list of parts")]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "`stop` must be a string or a list of strings")]
enum Stops {
    One(String),
    Several(Vec<String>),
}

/// A request for a text.
#[derive(Debug)]
pub(super) struct Asked {
    pub model: String,
    pub prompt: Prompt,
    pub wanted: Wanted,
    /// Whether a stream tells the numbers of tokens at its end.
    pub has_usage: bool,
}

impl Asked {
    /// Reads a body.
    pub fn read(bytes: &[u8], form: Form) -> Result<Self> {
        let body: Body = serde_json::from_slice(bytes)
            .map_err(|error| Failure::invalid(format!("the body is not a request for a text: {error}")))?;
        if let Some(name) =
            REFUSED.into_iter().find(|name| body.others.get(*name).is_some_and(|v| !is_neutral(name, v)))
        {
            return Err(Failure::invalid(match name {
                "n" | "best_of" => format!("`{name}` must be 1: send several requests, which are written at once"),
                _ => format!("`{name}` is not supported: leave it out"),
            }));
        }
        let is_streamed = body.stream.unwrap_or(false);
        if body.stream_options.is_some() && !is_streamed {
            return Err(Failure::invalid("`stream_options` is for streams alone: set `stream`"));
        }
        let has_usage = body.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false);
        let (sampling, tokens) = (body.sampling()?, body.tokens(form)?);
        let wanted = Wanted { tokens, sampling, stops: stops(body.stop)?, is_streamed };
        let prompt = match form {
            Form::Text => one(body.prompt.ok_or_else(|| Failure::invalid("`prompt` is missing"))?)?,
            Form::Chat => chat(body.messages.ok_or_else(|| Failure::invalid("`messages` is missing"))?)?,
        };
        Ok(Self { model: body.model, prompt, wanted, has_usage })
    }
}

impl Body {
    fn sampling(&self) -> Result<Sampling> {
        let within = |name: &str, given: Option<f32>, default: f32, min: f32, max: f32| match given.unwrap_or(default) {
            value if (min..=max).contains(&value) => Ok(value),
            value => Err(Failure::invalid(format!("`{name}` is {value}, and must be from {min} to {max}"))),
        };
        let temperature = within("temperature", self.temperature, 1., 0., 2.)?;
        let top_k = match self.top_k.unwrap_or(0) {
            -1 => 0,
            k => u32::try_from(k).map_err(|_| Failure::invalid(format!("`top_k` is {k}, and must be 0 or more")))?,
        };
        let penalty = within("repetition_penalty", self.repetition_penalty, 1., 0.01, 100.)?;
        Ok(Sampling {
            // Below that there is no difference.
            temperature: if temperature < 1e-3 { 0. } else { temperature },
            top_k,
            top_p: within("top_p", self.top_p, 1., 0., 1.)?.max(f32::MIN_POSITIVE),
            min_p: within("min_p", self.min_p, 0., 0., 1.)?,
            repetition_penalty: penalty,
            seed: self.seed.map_or_else(|| fastrand::u64(..), |seed| seed as u64),
        })
    }

    /// OpenAI's default for texts is 16, and for conversations what the context has left.
    fn tokens(&self, form: Form) -> Result<Option<usize>> {
        match self.max_completion_tokens.or(self.max_tokens) {
            Some(0) => Err(Failure::invalid("at least one token must be asked for")),
            None if form == Form::Text => Ok(Some(16)),
            tokens => Ok(tokens),
        }
    }
}

/// Is a parameter that is not supported given as if it were not?
fn is_neutral(name: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(yes) => !yes,
        Value::Number(number) => match name {
            "n" | "best_of" => number.as_f64() == Some(1.),
            // The most likely tokens may be none, and the token's own probability is asked for.
            "logprobs" => false,
            _ => number.as_f64() == Some(0.),
        },
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.iter().all(|value| name == "modalities" && value == "text"),
        Value::Object(fields) => fields.iter().all(|(field, value)| field == "type" && value == "text"),
    }
}

fn stops(stops: Option<Stops>) -> Result<Vec<String>> {
    /// As many as OpenAI's.
    const MOST: usize = 4;
    let stops = match stops {
        None => Vec::new(),
        Some(Stops::One(stop)) => vec![stop],
        Some(Stops::Several(stops)) => stops,
    };
    if stops.len() > MOST || stops.iter().any(String::is_empty) {
        return Err(Failure::invalid(format!("`stop` must have at most {MOST} strings, none of them empty")));
    }
    Ok(stops)
}

fn one(input: Input) -> Result<Prompt> {
    let several = |n: usize| Failure::invalid(format!("`prompt` has {n} prompts: send a request for each"));
    match input {
        Input::Text(text) => Ok(Prompt::Text(text)),
        Input::Tokens(tokens) => Ok(Prompt::Tokens(tokens)),
        Input::Texts(mut texts) if texts.len() == 1 => Ok(Prompt::Text(texts.remove(0))),
        Input::Rows(mut rows) if rows.len() == 1 => Ok(Prompt::Tokens(rows.remove(0))),
        Input::Texts(texts) => Err(several(texts.len())),
        Input::Rows(rows) => Err(several(rows.len())),
    }
}

fn chat(turns: Vec<Turn>) -> Result<Prompt> {
    if turns.is_empty() {
        return Err(Failure::invalid("`messages` is empty"));
    }
    let message = |turn: Turn| {
        let content = match turn.content {
            None => String::new(),
            Some(Content::Text(text)) => text,
            Some(Content::Parts(parts)) => parts.into_iter().map(text).collect::<Result<String>>()?,
        };
        Ok(Message::new(&turn.role, &content))
    };
    let messages: Vec<Message> = turns.into_iter().map(message).collect::<Result<_>>()?;
    Ok(Prompt::Chat(messages.into()))
}

fn text(part: Part) -> Result<String> {
    match part.text {
        Some(text) if part.kind == "text" => Ok(text),
        _ => Err(Failure::invalid(format!("a part of a message is of type {:?}: only text is supported", part.kind))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(form: Form, fields: Value) -> Result<Asked> {
        let mut body = match form {
            Form::Text => json!({"model": "m", "prompt": "p"}),
            Form::Chat => json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]}),
        };
        for (name, value) in fields.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        Asked::read(body.to_string().as_bytes(), form)
    }

    #[test]
    fn defaults_are_openais() {
        let text =
            read(Form::Text, json!({"seed": -1, "user": "u", "n": 1, "echo": false, "logit_bias": {}})).expect("sound");
        assert_eq!((text.model.as_str(), text.prompt), ("m", Prompt::Text("p".into())));
        let expected = Sampling { temperature: 1., seed: u64::MAX, ..Sampling::default() };
        assert_eq!((text.wanted.sampling, text.wanted.tokens), (expected, Some(16)));
        let chat = read(Form::Chat, json!({"logprobs": false, "tools": [], "response_format": {"type": "text"}}));
        assert_eq!(chat.expect("sound").wanted.tokens, None);
        let seeds = [(); 2].map(|()| read(Form::Text, json!({})).expect("sound").wanted.sampling.seed);
        assert_ne!(seeds[0], seeds[1]);
    }

    #[test]
    fn parameters_are_taken_over() {
        let fields = json!({
            "max_tokens": 5, "max_completion_tokens": 7, "temperature": 0, "top_p": 0.5, "top_k": -1, "min_p": 0.1,
            "repetition_penalty": 1.5, "stop": ["a", "b"], "stream": true, "stream_options": {"include_usage": true},
            "seed": 3, "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                                    {"role": "assistant", "content": null}],
        });
        let Asked { prompt, wanted, has_usage, .. } = read(Form::Chat, fields).expect("sound");
        let said = vec![Message::new("user", "ab"), Message::new("assistant", "")];
        assert_eq!(prompt, Prompt::Chat(said.into()));
        let sampling = Sampling { top_p: 0.5, min_p: 0.1, repetition_penalty: 1.5, seed: 3, ..Sampling::default() };
        let expected = Wanted { tokens: Some(7), sampling, stops: vec!["a".into(), "b".into()], is_streamed: true };
        assert_eq!((wanted, has_usage), (expected, true));
    }

    #[test]
    fn what_is_not_offered_is_said() {
        for (form, fields, expected) in [
            (Form::Text, json!({"n": 2}), "`n` must be 1"),
            (Form::Text, json!({"logprobs": 0}), "`logprobs` is not supported"),
            (Form::Chat, json!({"logprobs": true}), "`logprobs` is not supported"),
            (Form::Chat, json!({"tools": [{"type": "function"}]}), "`tools` is not supported"),
            (Form::Chat, json!({"response_format": {"type": "json_object"}}), "`response_format` is not supported"),
            (Form::Text, json!({"presence_penalty": 0.5}), "`presence_penalty` is not supported"),
            (Form::Text, json!({"prompt": ["a", "b"]}), "2 prompts"),
            (Form::Text, json!({"prompt": 7}), "a list of tokens"),
            (Form::Text, json!({"max_tokens": 0}), "at least one token"),
            (Form::Text, json!({"max_tokens": -1}), "invalid value"),
            (Form::Text, json!({"temperature": 2.5}), "`temperature` is 2.5"),
            (Form::Text, json!({"top_p": 1.5}), "`top_p` is 1.5"),
            (Form::Text, json!({"top_k": -2}), "`top_k` is -2"),
            (Form::Text, json!({"repetition_penalty": 0}), "`repetition_penalty` is 0"),
            (Form::Text, json!({"stop": ""}), "none of them empty"),
            (Form::Text, json!({"stop": ["a", "b", "c", "d", "e"]}), "at most 4 strings"),
            (Form::Text, json!({"stream_options": {"include_usage": true}}), "for streams alone"),
            (Form::Chat, json!({"messages": []}), "`messages` is empty"),
            (Form::Chat, json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}), "\"image_url\""),
        ] {
            let failure = read(form, fields.clone()).expect_err("it is refused");
            assert!(failure.message.contains(expected), "{fields}: {}", failure.message);
        }
        let missing = Asked::read(br#"{"model": "m"}"#, Form::Text).expect_err("it is refused");
        assert_eq!(missing.message, "`prompt` is missing");
    }
}
