//! The bodies of requests for texts.

use opara_candle::ops::Sampling;
use opara_weights::Harmless;
use serde::Deserialize;

use crate::generate::{Prompt, Wanted};
use crate::model::{Failure, Result};

use super::super::fields::{of_body, Fields, Unread};
use super::conversation::conversation;
use super::harmless::HARMLESS;

/// Which of the two kinds of texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// `/v1/completions`.
    Text,
    /// `/v1/chat/completions`.
    Chat,
}

/// Fields that ask for nothing that is not done anyway, with these values.
const NEUTRAL: &[(&str, &str)] = &[
    ("n", "1"),
    ("best_of", "1"),
    ("echo", "false"),
    ("suffix", "\"\""),
    ("logprobs", "false"),
    ("top_logprobs", "0"),
    ("logit_bias", "{}"),
    ("frequency_penalty", "0"),
    ("presence_penalty", "0"),
    ("length_penalty", "1"),
    ("use_beam_search", "false"),
    ("early_stopping", "false"),
    ("tools", "[]"),
    ("tool_choice", "\"none\""),
    ("tool_choice", "\"auto\""),
    ("functions", "[]"),
    ("function_call", "\"none\""),
    ("function_call", "\"auto\""),
    ("response_format", r#"{"type": "text"}"#),
    ("modalities", r#"["text"]"#),
    ("bad_words", "[]"),
    ("skip_special_tokens", "true"),
    ("spaces_between_special_tokens", "true"),
    ("include_stop_str_in_output", "false"),
    ("return_token_ids", "false"),
    ("return_tokens_as_token_ids", "false"),
    ("continue_final_message", "false"),
    ("add_generation_prompt", "true"),
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
    /// Reads a body. With `allows_unread` fields that are not supported are ignored.
    pub fn read(bytes: &[u8], form: Form, allows_unread: bool) -> Result<Self> {
        let fields = of_body(bytes)?;
        let model = fields.need("model")?;
        let (sampling, tokens) = (sampling(&fields)?, tokens(&fields, form)?);
        let stops = stops(fields.take("stop")?)?;
        let least = fields.take::<usize>("min_tokens")?.unwrap_or(0);
        if tokens.is_some_and(|most| least > most) {
            return Err(Failure::invalid(format!("`min_tokens` is {least}, which is more than may be written")));
        }
        let ends = fields.take("stop_token_ids")?.unwrap_or_default();
        let ignores_ends = fields.take("ignore_eos")?.unwrap_or(false);
        let is_streamed = fields.take("stream")?.unwrap_or(false);
        let has_usage = usage(&fields, is_streamed, allows_unread)?;
        let prompt = match form {
            Form::Text => one(fields.need("prompt")?)?,
            Form::Chat => Prompt::Chat(conversation(&fields, allows_unread)?),
        };
        Unread { harmless: Harmless { names: HARMLESS, neutral: NEUTRAL }, is_allowed: allows_unread }
            .check(&fields)?;
        let wanted = Wanted { tokens, least, sampling, stops, ends, ignores_ends, tenant: 0, is_streamed };
        Ok(Self { model, prompt, wanted, has_usage })
    }
}

fn sampling(fields: &Fields) -> Result<Sampling> {
    let within = |name: &str, default: f32, min: f32, max: f32| match fields.take(name)?.unwrap_or(default) {
        value if (min..=max).contains(&value) => Ok(value),
        value => Err(Failure::invalid(format!("`{name}` is {value}, and must be from {min} to {max}"))),
    };
    let temperature = within("temperature", 1., 0., 2.)?;
    let top_p = within("top_p", 1., 0., 1.)?.max(f32::MIN_POSITIVE);
    let min_p = within("min_p", 0., 0., 1.)?;
    let repetition_penalty = within("repetition_penalty", 1., 0.01, 100.)?;
    let top_k = match fields.take::<i64>("top_k")?.unwrap_or(0) {
        -1 => 0,
        k => u32::try_from(k).map_err(|_| Failure::invalid(format!("`top_k` is {k}, and must be -1, 0 or more")))?,
    };
    let seed = fields.take::<i64>("seed")?.map_or_else(|| fastrand::u64(..), |seed| seed as u64);
    // Below a thousandth there is no difference.
    let temperature = if temperature < 1e-3 { 0. } else { temperature };
    Ok(Sampling { temperature, top_k, top_p, min_p, repetition_penalty, seed })
}

/// OpenAI's default for texts is 16, and for conversations what the context has left.
fn tokens(fields: &Fields, form: Form) -> Result<Option<usize>> {
    let (most, newer) = (fields.take("max_tokens")?, fields.take("max_completion_tokens")?);
    match newer.or(most) {
        Some(0) => Err(Failure::invalid("at least one token must be asked for: `max_tokens` is 0")),
        None if form == Form::Text => Ok(Some(16)),
        tokens => Ok(tokens),
    }
}

/// Whether a stream tells the numbers of tokens at its end.
fn usage(fields: &Fields, is_streamed: bool, allows_unread: bool) -> Result<bool> {
    let options = fields.object("stream_options")?;
    if !options.is_empty() && !is_streamed {
        return Err(Failure::invalid("`stream_options` is for streams alone: set `stream`"));
    }
    let has_usage = options.take("include_usage")?.unwrap_or(false);
    // The former pads chunks against who measures them.
    let harmless = Harmless { names: &["include_obfuscation"], neutral: &[("continuous_usage_stats", "false")] };
    Unread { harmless, is_allowed: allows_unread }.check(&options)?;
    Ok(has_usage)
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

#[cfg(test)]
mod tests {
    use opara_models::decoder::Message;
    use serde_json::{json, Value};

    use super::*;

    fn read(form: Form, fields: Value) -> Result<Asked> {
        let mut body = match form {
            Form::Text => json!({"model": "m", "prompt": "p"}),
            Form::Chat => json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]}),
        };
        for (name, value) in fields.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        Asked::read(body.to_string().as_bytes(), form, false)
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
            "seed": 3, "min_tokens": 2, "stop_token_ids": [4, 5], "ignore_eos": true, "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                                    {"role": "assistant", "content": null}],
        });
        let Asked { prompt, wanted, has_usage, .. } = read(Form::Chat, fields).expect("sound");
        let said = json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                          {"role": "assistant", "content": null}]);
        let said: Vec<Message> = serde_json::from_value(said).expect("messages");
        assert_eq!(prompt, Prompt::Chat(said.into()));
        let sampling = Sampling { top_p: 0.5, min_p: 0.1, repetition_penalty: 1.5, seed: 3, ..Sampling::default() };
        let expected = Wanted {
            tokens: Some(7),
            least: 2,
            sampling,
            stops: vec!["a".into(), "b".into()],
            ends: vec![4, 5],
            ignores_ends: true,
            tenant: 0,
            is_streamed: true,
        };
        assert_eq!((wanted, has_usage), (expected, true));
    }

    #[test]
    fn what_is_not_offered_is_said() {
        for (form, fields, expected) in [
            (Form::Text, json!({"n": 2}), "`n` must be 1"),
            (Form::Text, json!({"logprobs": 0}), "`logprobs` is not supported"),
            (Form::Chat, json!({"logprobs": true}), "`logprobs` is not supported"),
            (Form::Chat, json!({"tools": [{"type": "web_search"}]}), "`tools[0]` is of type \"web_search\""),
            (Form::Chat, json!({"tool_choice": "required"}), "`tool_choice` is not supported"),
            (Form::Text, json!({"tools": [{"type": "function"}]}), "`tools` is not supported"),
            (Form::Chat, json!({"response_format": {"type": "json_object"}}), "`response_format` is not supported"),
            (Form::Text, json!({"presence_penalty": 0.5}), "`presence_penalty` is not supported"),
            (Form::Text, json!({"prompt": ["a", "b"]}), "2 prompts"),
            (Form::Text, json!({"prompt": 7}), "a list of tokens"),
            (Form::Text, json!({"messages": [{"role": "user", "content": "hi"}]}), "`messages`"),
            (Form::Chat, json!({"prompt": "hi"}), "`prompt`"),
            (Form::Text, json!({"max_tokens": 0}), "at least one token"),
            (Form::Text, json!({"max_tokens": -1}), "`max_tokens`: invalid value"),
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
        let missing = Asked::read(br#"{"model": "m"}"#, Form::Text, false).expect_err("it is refused");
        assert_eq!(missing.message, "`prompt` is missing");
    }
}
