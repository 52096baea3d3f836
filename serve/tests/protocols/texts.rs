//! OpenAI's completions: what an engine writes in process, whole and in pieces.

use std::sync::Arc;

use anyhow::{Context, Result};
use axum::Router;
use candle::{DType, Device};
use opara_models::decoder::{Config, Decoder, Message, Text};
use opara_models::engine::{Engine, Options, Request, Sampling};
use opara_serve::batch::Registry;
use opara_serve::generate::Writer;
use opara_serve::model::{GenerationModel, Loader, Model, Models};
use opara_serve::protocol::Service;
use opara_serve::server::{router, Settings};
use serde_json::{json, Value};

use super::{get, post, Reply};

/// A server with a decoder of random weights whose tokens are bytes, and the same decoder.
pub struct Texts {
    pub router: Router,
    pub service: Service,
    pub decoder: Arc<Decoder>,
    pub text: Arc<Text>,
}

pub const CONTEXT: usize = 400;

pub fn texts(settings: &Settings) -> Result<Texts> {
    serve(settings, CONTEXT, vec![0])
}

/// The same with a decoder that no token ends.
pub fn endless_texts(settings: &Settings, context: usize) -> Result<Texts> {
    serve(settings, context, Vec::new())
}

pub fn serve(settings: &Settings, context: usize, eos: Vec<u32>) -> Result<Texts> {
    let config = Config { vocab: 256, max_positions: context, eos, ..Config::tiny() };
    let decoder = Decoder::load(opara_weights::seeded(3, DType::F32, &Device::Cpu), &config, context)?;
    serve_of(settings, Arc::new(decoder))
}

/// The same with this decoder.
pub fn serve_of(settings: &Settings, decoder: Arc<Decoder>) -> Result<Texts> {
    serve_with(settings, decoder, Arc::new(Text::of_bytes()?))
}

/// The same with this tokenizer.
pub fn serve_with(settings: &Settings, decoder: Arc<Decoder>, text: Arc<Text>) -> Result<Texts> {
    let registry = Arc::new(Registry::default());
    let (metrics, counters) = (registry.texts("m"), registry.model("m"));
    let (of, slots, limit) = (decoder.clone(), settings.sequences.unwrap_or(3), settings.queue_rows.unwrap_or(100));
    let tokenizer = text.clone();
    let loader: Loader = Arc::new(move || {
        let engine = Engine::new(of.clone(), Options { slots, ..Options::default() })?;
        let writer = Writer::start(vec![engine], tokenizer.clone(), limit, metrics.clone());
        Ok(Arc::new(GenerationModel::new(writer, counters.clone())) as Arc<dyn Model>)
    });
    let models = Arc::new(Models::new([("m".to_owned(), loader)]));
    models.load("m").map_err(|failure| anyhow::anyhow!(failure.message))?;
    let service = Service { models, registry, limits: settings.limits(), may_control: false };
    Ok(Texts { router: router(&service, settings)?, service, decoder, text })
}

impl Texts {
    /// The tokens that the model writes behind a prompt when nothing else is written.
    pub fn alone(&self, prompt: &[u32], most: usize, sampling: Sampling) -> Result<Vec<u32>> {
        let ends = self.decoder.config().eos.clone();
        let request = Request { prompt: prompt.to_vec(), most, ends, sampling, ..Request::default() };
        let mut engine = Engine::new(self.decoder.clone(), Options::default())?;
        Ok(engine.generate(&[request], |_, _| ())?.swap_remove(0))
    }

    /// The same of a text, as a text.
    pub fn told(&self, prompt: &str, most: usize, sampling: Sampling) -> Result<String> {
        Ok(self.text.decode(&self.alone(&self.text.encode(prompt)?, most, sampling)?)?)
    }
}

/// The events of a stream, without the one that ends it.
pub fn events(reply: &Reply) -> Result<Vec<Value>> {
    let text = std::str::from_utf8(&reply.body)?;
    let (events, end) = text.trim_end().rsplit_once("\n\n").context("several events")?;
    anyhow::ensure!(end == "data: [DONE]", "the end is {end:?}");
    let event = |line: &str| Ok(serde_json::from_str(line.strip_prefix("data: ").context("data")?)?);
    events.split("\n\n").map(event).collect()
}

/// What a stream says, piece by piece.
fn pieces(events: &[Value], at: &str) -> String {
    events.iter().filter_map(|event| event.pointer(at)?.as_str()).collect()
}

#[tokio::test]
async fn completions_are_what_an_engine_writes() -> Result<()> {
    let of = texts(&Settings::default())?;
    let greedy = Sampling::default();
    let drawn = Sampling { temperature: 0.7, top_k: 50, top_p: 0.9, min_p: 0.01, seed: 5, ..greedy };
    for (prompt, sampling) in [("once upon a time", greedy), ("é", drawn), ("tell me ".repeat(30).as_str(), drawn)] {
        let tokens = of.alone(&of.text.encode(prompt)?, 40, sampling)?;
        let expected = of.text.decode(&tokens)?;
        let body = json!({
            "model": "m", "prompt": prompt, "max_tokens": 40, "temperature": sampling.temperature, "top_k": sampling.top_k,
            "top_p": sampling.top_p, "min_p": sampling.min_p, "seed": sampling.seed,
        });
        let reply = post(&of.router, "/v1/completions", body.to_string()).await?.json()?;
        assert_eq!(reply["choices"][0]["text"], expected, "behind {prompt:?}");
        let finish = if tokens.len() < 40 { "stop" } else { "length" };
        assert_eq!(reply["choices"][0]["finish_reason"], finish);
        assert_eq!(reply["object"], "text_completion");
        let usage = &reply["usage"];
        let (asked, written) = (prompt.len(), tokens.len());
        assert_eq!([&usage["prompt_tokens"], &usage["completion_tokens"]], [&json!(asked), &json!(written)]);
        assert_eq!(usage["total_tokens"], json!(asked + written));

        let mut streamed = body.clone();
        streamed["stream"] = json!(true);
        streamed["stream_options"] = json!({"include_usage": true});
        let reply = post(&of.router, "/v1/completions", streamed.to_string()).await?;
        assert_eq!(reply.headers["content-type"], "text/event-stream");
        let events = events(&reply)?;
        assert_eq!(pieces(&events, "/choices/0/text"), expected, "behind {prompt:?}");
        let (end, rest) = events.split_last().context("events")?;
        assert_eq!((&end["choices"], &end["usage"]["completion_tokens"]), (&json!([]), &json!(written)));
        assert!(rest.iter().all(|event| event["usage"].is_null() && event["id"] == end["id"]));
        assert_eq!(rest.last().context("an end")?["choices"][0]["finish_reason"], finish);
    }
    Ok(())
}

#[tokio::test]
async fn tokens_are_taken_as_a_prompt_and_read_once() -> Result<()> {
    let of = texts(&Settings::default())?;
    let prompt: Vec<u32> = (0..300).map(|at| at * 7 % 256).collect();
    let expected = of.text.decode(&of.alone(&prompt, 9, Sampling::default())?)?;
    let body = json!({"model": "m", "prompt": [prompt], "max_tokens": 9, "temperature": 0}).to_string();
    for cached in [0, 256] {
        let reply = post(&of.router, "/v1/completions", body.clone()).await?.json()?;
        assert_eq!(reply["choices"][0]["text"], expected);
        assert_eq!(reply["usage"]["prompt_tokens_details"]["cached_tokens"], cached);
    }
    let metrics = String::from_utf8(get(&of.router, "/metrics").await?.body)?;
    for line in [
        "opara_text_tokens_total{model=\"m\",kind=\"prompt\"} 600",
        "opara_text_tokens_total{model=\"m\",kind=\"cached\"} 256",
        "opara_text_sequences{model=\"m\",state=\"running\"} 0",
        "opara_text_sequences{model=\"m\",state=\"waiting\"} 0",
        "opara_text_first_token_seconds_count{model=\"m\"} 2",
        "opara_text_slots{model=\"m\"} 3",
        "vllm:num_requests_running{model_name=\"m\"} 0",
        "vllm:num_requests_waiting{model_name=\"m\"} 0",
        "vllm:kv_cache_usage_perc{model_name=\"m\"} 0.0",
        "vllm:prompt_tokens_total{model_name=\"m\"} 600",
        "vllm:generation_tokens_total{model_name=\"m\"} 18",
        "vllm:prefix_cache_hits_total{model_name=\"m\"} 256",
        "vllm:time_to_first_token_seconds_count{model_name=\"m\"} 2",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    Ok(())
}

#[tokio::test]
async fn the_fields_of_a_conversation_are_read_or_refused_by_name() -> Result<()> {
    let of = texts(&Settings::default())?;
    let ask = |fields: Value| {
        let mut body = json!({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().into_iter().for_each(|body| body.extend(fields.as_object().cloned().unwrap_or_default()));
        post(&of.router, "/v1/chat/completions", body.to_string())
    };
    // One token for each byte of what the template writes.
    for (fields, prompt) in [
        (json!({}), "user: hi\nassistant:"),
        (
            json!({"chat_template_kwargs": {"x": 1}, "enable_thinking": false, "tools": [], "tool_choice": "none"}),
            "user: hi\nassistant:",
        ),
        (
            json!({"messages": [{"role": "tool", "tool_call_id": "c", "name": "f", "content": "y"}]}),
            "tool: y\nassistant:",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}),
            "user: a\nb\nassistant:",
        ),
        (
            json!({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "so it "}],
                "continue_final_message": true}),
            "user: x\nassistant: so it ",
        ),
    ] {
        let reply = ask(fields.clone()).await?.json()?;
        assert_eq!(reply["usage"]["prompt_tokens"], json!(prompt.len()), "{fields}: {reply}");
    }
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    for (fields, name) in [
        (json!({"tools": tool}), "`tools`"),
        (json!({"documents": [{"text": "t"}]}), "`documents`"),
        (json!({"reasoning_effort": "low"}), "`reasoning_effort`"),
        (json!({"tool_choice": "required"}), "`tool_choice`"),
        (json!({"chat_template_kwargs": {"tokenize": false}}), "`chat_template_kwargs.tokenize`"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]}),
            "image_url",
        ),
        (
            json!({"continue_final_message": true, "messages": [{"role": "user", "content": ""}]}),
            "no text to be continued",
        ),
    ] {
        let reply = ask(fields.clone()).await?;
        assert_eq!(reply.status.as_u16(), 400, "{fields}");
        let message = reply.json()?["error"]["message"].to_string();
        assert!(message.contains(name), "{fields}: {message}");
    }
    Ok(())
}

#[tokio::test]
async fn conversations_go_through_the_template() -> Result<()> {
    let of = texts(&Settings::default())?;
    let said = vec![Message::new("system", "be brief"), Message::new("user", "hello")];
    let prompt = of.text.encode_chat(&said.into())?;
    let sampling = Sampling { temperature: 1., seed: 8, ..Sampling::default() };
    let expected = of.text.decode(&of.alone(&prompt, 20, sampling)?)?;
    let mut body = json!({
        "model": "m", "seed": 8, "max_completion_tokens": 20,
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": [{"type": "text", "text": "hello"}]}],
    });
    let reply = post(&of.router, "/v1/chat/completions", body.to_string()).await?.json()?;
    assert_eq!(reply["object"], "chat.completion");
    assert_eq!(reply["choices"][0]["message"], json!({"role": "assistant", "content": expected, "refusal": null}));
    body["stream"] = json!(true);
    let events = events(&post(&of.router, "/v1/chat/completions", body.to_string()).await?)?;
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(pieces(&events, "/choices/0/delta/content"), expected);
    assert!(events.iter().all(|event| event["object"] == "chat.completion.chunk" && event.get("usage").is_none()));
    Ok(())
}

#[tokio::test]
async fn texts_end_before_a_stop_string() -> Result<()> {
    let of = texts(&Settings::default())?;
    let whole = of.told("abc", 60, Sampling::default())?;
    // Of letters from the middle, so that pieces of it are held back.
    let (at, _) = whole.char_indices().nth(9).context("a longer text")?;
    let stop: String = whole[at..].chars().take(2).collect();
    let expected = &whole[..whole.find(&stop).context("it is there")?];
    for is_streamed in [false, true] {
        let body = json!({
            "model": "m", "prompt": "abc", "max_tokens": 60, "temperature": 0, "stop": [stop, "never"], "stream": is_streamed,
        });
        let reply = post(&of.router, "/v1/completions", body.to_string()).await?;
        let (text, finish) = if is_streamed {
            let events = events(&reply)?;
            let finish = events.last().context("an end")?["choices"][0]["finish_reason"].clone();
            (pieces(&events, "/choices/0/text"), finish)
        } else {
            let reply = reply.json()?;
            (
                reply["choices"][0]["text"].as_str().context("a text")?.to_owned(),
                reply["choices"][0]["finish_reason"].clone(),
            )
        };
        assert_eq!((text.as_str(), finish), (expected, json!("stop")), "streamed: {is_streamed}");
    }
    Ok(())
}

#[tokio::test]
async fn bad_requests_for_texts_are_openais_errors() -> Result<()> {
    let of = texts(&Settings::default())?;
    for (status, body) in [
        (400, json!({"model": "m"})),
        (400, json!({"prompt": "a"})),
        (400, json!({"model": "m", "prompt": ""})),
        (400, json!({"model": "m", "prompt": [256]})),
        (400, json!({"model": "m", "prompt": []})),
        (400, json!({"model": "m", "prompt": "a", "n": 0})),
        (400, json!({"model": "m", "prompt": "a", "logprobs": 21})),
        (400, json!({"model": "m", "prompt": "a", "logit_bias": {"256": 1}})),
        (413, json!({"model": "m", "prompt": vec!["a"; 100], "n": 100})),
        (400, json!({"model": "m", "prompt": "a", "temperature": 7})),
        (404, json!({"model": "other", "prompt": "a"})),
    ] {
        let reply = post(&of.router, "/v1/completions", body.to_string()).await?;
        assert_eq!(reply.status.as_u16(), status, "{body}: {}", String::from_utf8_lossy(&reply.body));
        assert!(reply.json()?["error"]["message"].is_string());
    }
    for body in [
        json!({"model": "m", "prompt": "a".repeat(CONTEXT)}),
        json!({"model": "m", "prompt": "a", "max_tokens": CONTEXT, "stream": true}),
    ] {
        let reply = post(&of.router, "/v1/completions", body.to_string()).await?;
        let error = &reply.json()?["error"];
        assert_eq!((reply.status.as_u16(), &error["code"]), (400, &json!("context_length_exceeded")), "{error}");
        assert!(error["message"].as_str().context("a message")?.contains("400"), "{error}");
    }
    for (body, param) in [
        (json!({"model": "m", "prompt": "a", "n": 0}), json!("n")),
        (json!({"model": "m", "prompt": "a", "suffix": "b"}), json!("suffix")),
        (json!({"model": "other", "prompt": "a"}), Value::Null),
    ] {
        let reply = post(&of.router, "/v1/completions", body.to_string()).await?.json()?;
        assert_eq!(reply["error"]["param"], param, "{reply}");
    }
    let embedded = post(&of.router, "/v1/embeddings", json!({"model": "m", "input": "a"}).to_string()).await?;
    assert_eq!(embedded.json()?["error"]["message"], "model \"m\" is not an embedder");
    let inferred =
        post(&of.router, "/v2/models/m/infer", super::one("text", "BYTES", json!([1]), json!(["a"]))).await?;
    assert!(inferred.json()?["error"].as_str().context("an error")?.contains("/v1/completions"));
    let other = super::setup(super::small())?;
    let written = post(&other.router, "/v1/completions", json!({"model": "bert", "prompt": "a"}).to_string()).await?;
    assert_eq!(written.json()?["error"]["message"], "this model does not write texts");
    Ok(())
}

#[tokio::test]
async fn tokens_of_prompts_and_texts_of_tokens() -> Result<()> {
    let of = texts(&Settings::default())?;
    let ask = |path: &'static str, body: Value| {
        let router = of.router.clone();
        async move { post(&router, path, body.to_string()).await?.json() }
    };
    let prompt = ask("/tokenize", json!({"model": "m", "prompt": "é", "return_token_strs": true})).await?;
    let expected =
        json!({"count": 2, "max_model_len": CONTEXT, "tokens": [195, 169], "token_strs": ["\u{fffd}", "\u{fffd}"]});
    assert_eq!(prompt, expected);
    let chat =
        ask("/tokenize", json!({"messages": [{"role": "user", "content": "hi"}], "add_special_tokens": false})).await?;
    let told: Vec<u32> = "user: hi\nassistant:".bytes().map(u32::from).collect();
    assert_eq!((&chat["tokens"], &chat["token_strs"]), (&json!(told), &Value::Null));
    let text = ask("/detokenize", json!({"model": "m", "tokens": told})).await?;
    assert_eq!(text, json!({"prompt": "user: hi\nassistant:"}));
    for (path, body, status) in [
        ("/tokenize", json!({"model": "m", "prompt": 7}), 422),
        ("/tokenize", json!({"model": "m", "prompt": "a", "other": 7}), 422),
        ("/tokenize", json!({"model": "other", "prompt": "a"}), 422),
        ("/detokenize", json!({"model": "m"}), 400),
        ("/detokenize", json!({"model": "m", "tokens": [1], "other": 7}), 400),
    ] {
        let reply = post(&of.router, path, body.to_string()).await?;
        assert_eq!(reply.status.as_u16(), status, "{body}: {}", String::from_utf8_lossy(&reply.body));
    }
    let models = get(&of.router, "/v1/models").await?.json()?;
    assert_eq!((&models["data"][0]["id"], &models["data"][0]["max_model_len"]), (&json!("m"), &json!(CONTEXT)));
    Ok(())
}
