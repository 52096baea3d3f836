//! The bodies of requests for texts.

use opara_weights::Harmless;
use serde::Deserialize;

use crate::generate::{Prompt, Wanted};
use crate::model::{Failure, ResponseFormat, Result, Writing};

use super::super::fields::{of_body, Fields, Unread};
use super::conversation::conversation;
use super::draws::{alternatives, bias, draws, within};
use super::form::Form;
use super::harmless::HARMLESS;
use super::response_format::response_format;

/// Fields that ask for nothing that is not done anyway, with these values.
const NEUTRAL: &[(&str, &str)] = &[
    ("suffix", "\"\""),
    ("length_penalty", "1"),
    ("use_beam_search", "false"),
    ("early_stopping", "false"),
    ("tools", "[]"),
    ("tool_choice", "\"none\""),
    ("tool_choice", "\"auto\""),
    ("functions", "[]"),
    ("function_call", "\"none\""),
    ("function_call", "\"auto\""),
    ("modalities", r#"["text"]"#),
    ("bad_words", "[]"),
    ("spaces_between_special_tokens", "true"),
    ("include_stop_str_in_output", "false"),
    ("echo", "false"),
    ("add_special_tokens", "false"),
    ("continue_final_message", "false"),
    ("add_generation_prompt", "true"),
];

/// Texts of one request and prompt at most, as OpenAI's.
const MOST_CHOICES: usize = 128;

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "`prompt` must be a string, a list of tokens, or a list of these")]
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

/// A request for texts.
#[derive(Debug)]
pub(super) struct Asked {
    pub model: String,
    pub writing: Writing,
    pub told: Told,
}

/// What is told beside the texts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// Whether a stream tells the numbers of tokens at its end.
    pub usage: bool,
    /// How likely tokens are.
    pub likelihoods: bool,
    /// Whether the names of tokens there are their ids.
    pub names_are_ids: bool,
    /// The ids of prompts and answers.
    pub ids: bool,
    /// Whether the prompt is the beginning of the text.
    pub prompt: bool,
    /// Whether an answer has at most one call.
    pub one_call: bool,
}

impl Asked {
    /// Reads a body. With `allows_unread` fields that are not supported are ignored.
    pub fn read(bytes: &[u8], form: Form, allows_unread: bool) -> Result<Self> {
        let fields = of_body(bytes)?;
        let model = fields.need("model")?;
        let tokens = tokens(&fields, form)?;
        let least = fields.take::<usize>("min_tokens")?.unwrap_or(0);
        if tokens.is_some_and(|most| least > most) {
            return Err(Failure::invalid(format!("`min_tokens` is {least}, which is more than may be written")));
        }
        let is_streamed = fields.take("stream")?.unwrap_or(false);
        let alternatives = alternatives(&fields, form)?;
        let echo = form == Form::Text && fields.take("echo")?.unwrap_or(false);
        let wanted = Wanted {
            tokens,
            least,
            draws: draws(&fields)?,
            seed: fields.take::<i64>("seed")?.map(|seed| seed as u64),
            bias: bias(&fields)?,
            frequency_penalty: within(&fields, "frequency_penalty", -2., 2.)?.unwrap_or(0.),
            presence_penalty: within(&fields, "presence_penalty", -2., 2.)?.unwrap_or(0.),
            alternatives,
            prompt_alternatives: alternatives.filter(|_| echo),
            stops: stops(fields.take("stop")?)?,
            ends: fields.take("stop_token_ids")?.unwrap_or_default(),
            ignores_ends: fields.take("ignore_eos")?.unwrap_or(false),
            names_special: !fields.take("skip_special_tokens")?.unwrap_or(true),
            tenant: 0,
            is_streamed,
        };
        let mut told = Told {
            usage: usage(&fields, is_streamed, allows_unread)?,
            likelihoods: alternatives.is_some(),
            names_are_ids: fields.take("return_tokens_as_token_ids")?.unwrap_or(false),
            ids: fields.take("return_token_ids")?.unwrap_or(false),
            prompt: echo,
            one_call: false,
        };
        let (each, mut format, mut tools) = (each(&fields)?, response_format(&fields)?, Vec::new());
        let prompts = match form {
            Form::Text => prompts(&fields)?,
            Form::Chat => {
                let chat = conversation(&fields)?;
                if chat.must_call && format != ResponseFormat::Any {
                    return Err(Failure::invalid(
                        "an answer that is a call has no other form: leave out the one of the text",
                    ));
                }
                // An answer of another form is no call.
                if chat.must_call || chat.is_strict && format == ResponseFormat::Any {
                    let (of, are_several) = (chat.tools.clone(), chat.are_several);
                    format = ResponseFormat::Calls { of, are_several, is_all: chat.must_call };
                }
                (tools, told.one_call) = (chat.tools, !chat.are_several);
                vec![Prompt::Chat(chat.conversation)]
            }
        };
        Unread { harmless: Harmless { names: HARMLESS, neutral: NEUTRAL }, is_allowed: allows_unread }
            .check(&fields)?;
        Ok(Self { model, writing: Writing { prompts, each, wanted, format, tools }, told })
    }
}

/// Texts behind each prompt. All that are written are told, so `best_of` can be no other number.
fn each(fields: &Fields) -> Result<usize> {
    // Some clients send every number as one with a point.
    let (n, best) = (fields.take::<f64>("n")?.unwrap_or(1.), fields.take::<f64>("best_of")?);
    if !(1. ..=MOST_CHOICES as f64).contains(&n) || n.fract() != 0. {
        return Err(Failure::invalid(format!("`n` is {n}, and must be from 1 to {MOST_CHOICES}")));
    }
    match best.filter(|best| *best != n) {
        Some(best) => Err(Failure::invalid(format!("`best_of` is {best}: only as many texts as `n` are written"))),
        None => Ok(n as usize),
    }
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

fn prompts(fields: &Fields) -> Result<Vec<Prompt>> {
    let text = if fields.take("add_special_tokens")?.unwrap_or(true) { Prompt::Text } else { Prompt::Bare };
    let prompts: Vec<Prompt> = match fields.need::<Input>("prompt")? {
        Input::Text(one) => vec![text(one)],
        // An empty list is not known to be of tokens.
        Input::Tokens(tokens) if tokens.is_empty() => Vec::new(),
        Input::Tokens(tokens) => vec![Prompt::Tokens(tokens)],
        Input::Texts(texts) => texts.into_iter().map(text).collect(),
        Input::Rows(rows) => rows.into_iter().map(Prompt::Tokens).collect(),
    };
    match prompts.is_empty() {
        true => Err(Failure::invalid("`prompt` is empty")),
        false => Ok(prompts),
    }
}

#[cfg(test)]
mod tests {
    use opara_models::decoder::{Draws, Message};
    use serde_json::{json, Value};

    use super::*;
    use crate::generate::Tool;

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
    fn what_is_not_said_is_left_to_the_checkpoint() {
        let text =
            read(Form::Text, json!({"seed": -1, "user": "u", "n": 1, "echo": false, "logit_bias": {}})).expect("sound");
        assert_eq!((text.model.as_str(), text.writing.prompts), ("m", vec![Prompt::Text("p".into())]));
        let expected = Wanted { tokens: Some(16), seed: Some(u64::MAX), ..Wanted::default() };
        assert_eq!((text.writing.wanted, text.writing.each, text.told), (expected, 1, Told::default()));
        let chat = read(Form::Chat, json!({"logprobs": false, "tools": [], "response_format": {"type": "text"}}));
        assert_eq!(chat.expect("sound").writing.wanted, Wanted::default());
        assert_eq!(read(Form::Text, json!({"logprobs": false})).expect("sound").writing.wanted.alternatives, None);
    }

    #[test]
    fn parameters_are_taken_over() {
        let fields = json!({
            "max_tokens": 5, "max_completion_tokens": 7, "temperature": 0, "top_p": 0.5, "top_k": -1, "min_p": 0.1,
            "repetition_penalty": 1.5, "stop": ["a", "b"], "stream": true, "stream_options": {"include_usage": true},
            "seed": 3, "min_tokens": 2, "stop_token_ids": [4, 5], "ignore_eos": true, "n": 3, "best_of": 3,
            "logprobs": true, "top_logprobs": 2, "logit_bias": {"7": -1.5, "12": 100}, "frequency_penalty": -2,
            "presence_penalty": 0.25, "return_token_ids": true, "skip_special_tokens": false,
            "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                         {"role": "assistant", "content": null}],
        });
        let Asked { writing, told, .. } = read(Form::Chat, fields).expect("sound");
        let Writing { prompts, each, wanted, .. } = writing;
        let said = json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                          {"role": "assistant", "content": null}]);
        let said: Vec<Message> = serde_json::from_value(said).expect("messages");
        assert_eq!((prompts, each), (vec![Prompt::Chat(said.into())], 3));
        let draws = Draws {
            temperature: Some(0.),
            top_k: Some(0),
            top_p: Some(0.5),
            min_p: Some(0.1),
            repetition_penalty: Some(1.5),
        };
        let expected = Wanted {
            tokens: Some(7),
            least: 2,
            draws,
            seed: Some(3),
            bias: vec![(12, 100.), (7, -1.5)],
            frequency_penalty: -2.,
            presence_penalty: 0.25,
            alternatives: Some(2),
            prompt_alternatives: None,
            stops: vec!["a".into(), "b".into()],
            ends: vec![4, 5],
            ignores_ends: true,
            names_special: true,
            tenant: 0,
            is_streamed: true,
        };
        assert_eq!(wanted, expected);
        assert_eq!(told, Told { usage: true, likelihoods: true, ids: true, ..Told::default() });
        let several = read(Form::Text, json!({"prompt": [[1, 2], [3]], "echo": true})).expect("sound");
        assert_eq!(several.writing.prompts, [Prompt::Tokens(vec![1, 2]), Prompt::Tokens(vec![3])]);
        assert!(several.told.prompt);
    }

    #[test]
    fn forms_are_read() {
        let format_of = |form, fields| read(form, fields).expect("sound").writing.format;
        let schema = json!({"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}});
        let format = json!({"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": schema}});
        assert_eq!(format_of(Form::Chat, json!({"response_format": format})), ResponseFormat::Json(schema.clone()));
        let object = ResponseFormat::Json(json!({"type": "object"}));
        assert_eq!(format_of(Form::Text, json!({"response_format": {"type": "json_object"}})), object);
        assert_eq!(format_of(Form::Text, json!({"structured_outputs": {"json_object": true}})), object);
        let given = json!({"structured_outputs": {"json": schema.to_string(), "regex": null}});
        assert_eq!(format_of(Form::Text, given), ResponseFormat::Json(schema));
        let choice = ResponseFormat::Choice(vec!["yes".into(), "no".into()]);
        assert_eq!(format_of(Form::Chat, json!({"structured_outputs": {"choice": ["yes", "no"]}})), choice);
        assert_eq!(
            format_of(Form::Text, json!({"structured_outputs": {"regex": "a+"}})),
            ResponseFormat::Regex("a+".into())
        );
        let tool = json!([{"type": "function", "function": {"name": "f"}}]);
        let must = read(Form::Chat, json!({"tools": tool, "tool_choice": "required", "parallel_tool_calls": false}));
        let must = must.expect("sound");
        let of = vec![Tool { name: "f".into(), parameters: None }];
        assert_eq!(must.writing.format, ResponseFormat::Calls { of: of.clone(), are_several: false, is_all: true });
        assert_eq!((must.writing.tools, must.told.one_call), (of.clone(), true));
        let strict = json!([{"type": "function", "function": {"name": "f", "strict": true}}]);
        let may = format_of(Form::Chat, json!({"tools": strict}));
        assert_eq!(may, ResponseFormat::Calls { of, are_several: true, is_all: false });
        assert_eq!(format_of(Form::Chat, json!({"tools": strict, "tool_choice": "none"})), ResponseFormat::Any);
    }

    #[test]
    fn what_is_not_offered_is_said() {
        for (form, fields, expected) in [
            (Form::Text, json!({"n": 0}), "`n` is 0"),
            (Form::Text, json!({"n": 129}), "`n` is 129"),
            (Form::Text, json!({"n": 2, "best_of": 3}), "`best_of` is 3"),
            (Form::Text, json!({"logprobs": 21}), "`logprobs` is 21"),
            (Form::Text, json!({"logprobs": true}), "a number of tokens"),
            (Form::Chat, json!({"logprobs": 1}), "`logprobs`: invalid type"),
            (Form::Chat, json!({"top_logprobs": 3}), "`top_logprobs` is for requests with `logprobs`"),
            (Form::Chat, json!({"logprobs": true, "top_logprobs": 21}), "`top_logprobs` is 21"),
            (Form::Text, json!({"logit_bias": {"a": 1}}), "`logit_bias` names \"a\""),
            (Form::Text, json!({"logit_bias": {"1": 101}}), "`logit_bias.1` is 101"),
            (Form::Text, json!({"frequency_penalty": 2.5}), "`frequency_penalty` is 2.5"),
            (Form::Chat, json!({"echo": true}), "`echo` is not supported"),
            (Form::Chat, json!({"tools": [{"type": "web_search"}]}), "`tools[0]` is of type \"web_search\""),
            (Form::Chat, json!({"tool_choice": "required"}), "there are no `tools`"),
            (Form::Text, json!({"tools": [{"type": "function"}]}), "`tools` is not supported"),
            (Form::Chat, json!({"response_format": {"type": "xml"}}), "`response_format` of type \"xml\""),
            (Form::Chat, json!({"response_format": {"type": "json_schema"}}), "`response_format.json_schema.schema`"),
            (Form::Chat, json!({"response_format": {}}), "`response_format.type` is missing"),
            (
                Form::Text,
                json!({"structured_outputs": {"grammar": "g"}}),
                "`structured_outputs.grammar` is not supported",
            ),
            (Form::Text, json!({"structured_outputs": {"choice": []}}), "`structured_outputs.choice`"),
            (Form::Text, json!({"structured_outputs": {"regex": "a", "choice": ["b"]}}), "more than one form"),
            (Form::Text, json!({"presence_penalty": -3}), "`presence_penalty` is -3"),
            (Form::Text, json!({"prompt": []}), "`prompt` is empty"),
            (Form::Text, json!({"prompt": "a", "suffix": "b"}), "`suffix` is not supported"),
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
