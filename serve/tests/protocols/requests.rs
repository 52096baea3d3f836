//! What requests say: every field is read, harmless, or refused by name; null is absent.

use anyhow::{Context, Result};
use axum::body::Body;
use axum::http::{header, Request};
use candle::Tensor;
use opara_candle::ops::Sampling;
use opara_serve::pb::grpc_inference_service_client::GrpcInferenceServiceClient;
use opara_serve::pb::{infer_parameter, InferParameter, RepositoryModelLoadRequest};
use opara_serve::server::Settings;
use serde_json::{json, Value};
use tonic::Code;

use super::grpc::text_request;
use super::texts::{serve, texts, Texts, CONTEXT};
use super::{post, send, setup, small, Reply, INFER};

const CHAT: &str = "/v1/chat/completions";

fn with(body: &Value, fields: &Value) -> String {
    let mut body = body.clone();
    for (name, value) in fields.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    body.to_string()
}

fn text_body() -> Value {
    json!({"model": "m", "prompt": "abc", "max_tokens": 4, "temperature": 0})
}

fn chat_body() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "abc"}], "max_tokens": 4, "temperature": 0})
}

fn infer_body() -> Value {
    json!({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}]})
}

/// The message of an answer's error, in both forms.
fn message(reply: &Reply) -> Result<String> {
    let json = reply.json()?;
    let message = json["error"]["message"].as_str().or(json["error"].as_str());
    Ok(message.with_context(|| json.to_string())?.to_owned())
}

/// What the answer says, without its number and its time.
fn told(reply: &Reply) -> Result<Value> {
    let mut json = reply.json()?;
    anyhow::ensure!(reply.status == 200, "{json}");
    for name in ["id", "created"] {
        json.as_object_mut().context("an object")?.remove(name);
    }
    Ok(json)
}

#[tokio::test]
async fn null_is_absent_and_a_byte_order_mark_is_passed_over() -> Result<()> {
    let of = texts(&Settings::default())?;
    let fields = [
        "stream",
        "stream_options",
        "max_completion_tokens",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "seed",
        "stop",
        "min_tokens",
        "stop_token_ids",
        "ignore_eos",
        "n",
        "logprobs",
        "tools",
        "response_format",
        "user",
        "anything",
    ];
    let nulls: Value =
        fields.iter().map(|field| ((*field).to_owned(), Value::Null)).collect::<serde_json::Map<_, _>>().into();
    for (path, body) in [("/v1/completions", text_body()), (CHAT, chat_body())] {
        let plain = told(&post(&of.router, path, body.to_string()).await?)?["choices"].clone();
        for changed in [with(&body, &nulls), format!("\u{feff}{body}")] {
            assert_eq!(told(&post(&of.router, path, changed).await?)?["choices"], plain, "{path}");
        }
    }
    let mut streamed = chat_body();
    streamed["stream"] = json!(true);
    let nested = with(&streamed, &json!({"stream_options": {"include_usage": null}}));
    assert_eq!(post(&of.router, CHAT, nested).await?.status, 200);

    let of = setup(small())?;
    let body = json!({"model": "bert", "input": "a"});
    let plain = told(&post(&of.router, "/v1/embeddings", body.to_string()).await?)?;
    let nulls = json!({"encoding_format": null, "dimensions": null, "user": null, "anything": null});
    for changed in [with(&body, &nulls), format!("\u{feff}{body}")] {
        assert_eq!(told(&post(&of.router, "/v1/embeddings", changed).await?)?, plain);
    }
    let plain = told(&post(&of.router, INFER, infer_body().to_string()).await?)?;
    let nulls = json!({
        "id": null, "parameters": null, "outputs": null, "anything": null,
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"], "parameters": null}],
    });
    let inner = json!({
        "parameters": {"timeout": null, "binary_data_output": null},
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"], "parameters": {"binary_data_size": null}}],
        "outputs": [{"name": "embedding", "parameters": null}],
    });
    for changed in [nulls.to_string(), inner.to_string(), format!("\u{feff}{}", infer_body())] {
        assert_eq!(told(&post(&of.router, INFER, changed).await?)?, plain);
    }
    let mut client = GrpcInferenceServiceClient::new(of.router.clone());
    let mut request = text_request(&["a"]);
    request.parameters.insert("timeout".into(), InferParameter { parameter_choice: None });
    client.model_infer(request).await?;
    Ok(())
}

/// Fields that ask for something, of all routes.
fn refused() -> Vec<(&'static str, Value, Value, &'static str)> {
    let texts = [
        json!({"guided_json": {}}),
        json!({"guided_choice": ["a"]}),
        json!({"truncate_prompt_tokens": 5}),
        json!({"prompt_logprobs": 1}),
        json!({"suffix": "x"}),
        json!({"bad_words": ["x"]}),
        json!({"include_stop_str_in_output": true}),
        json!({"use_beam_search": true}),
        json!({"modalities": ["text", "audio"]}),
        json!({"no_such_field": false}),
        json!({"Temperature": 1}),
    ];
    let of_texts = texts
        .into_iter()
        .flat_map(|fields| [("/v1/completions", text_body(), fields.clone(), ""), (CHAT, chat_body(), fields, "")]);
    let embeddings =
        [json!({"truncate_prompt_tokens": 3}), json!({"add_special_tokens": false}), json!({"no_such": 0})];
    let input = json!({"model": "bert", "input": "a"});
    let of_embeddings = embeddings.into_iter().map(|fields| ("/v1/embeddings", input.clone(), fields, ""));
    let mut all: Vec<_> = of_texts.chain(of_embeddings).collect();
    let input = |field: &str, value: Value| {
        let mut input = infer_body()["inputs"][0].clone();
        input[field] = value;
        json!({"inputs": [input]})
    };
    all.extend([
        (INFER, infer_body(), json!({"no_such": 1}), "no_such"),
        (INFER, infer_body(), json!({"parameters": {"temperature": 1}}), "parameters.temperature"),
        (INFER, infer_body(), input("strides", json!([1])), "inputs[0].strides"),
        (INFER, infer_body(), input("parameters", json!({"codec": 1})), "inputs[0].parameters.codec"),
        (INFER, infer_body(), json!({"outputs": [{"name": "embedding", "dtype": "FP16"}]}), "outputs[0].dtype"),
        ("/v2/repository/models/bert/load", json!({}), json!({"parameters": {"config": "{}"}}), "parameters.config"),
        ("/v2/repository/index", json!({}), json!({"ready": true, "sort": true}), "sort"),
    ]);
    all
}

#[tokio::test]
async fn fields_that_would_change_the_answer_are_refused_by_name_or_allowed_by_the_operator() -> Result<()> {
    let strict = (setup(small())?, texts(&Settings::default())?);
    let lax = Settings { allow_unread: true, ..small() };
    let lax = (setup(lax.clone())?, texts(&lax)?);
    for (path, body, fields, name) in refused() {
        let is_text = path == CHAT || path == "/v1/completions";
        let name = match name {
            "" => fields.as_object().and_then(|fields| fields.keys().next()).context("a field")?,
            name => name,
        };
        let router = if is_text { &strict.1.router } else { &strict.0.router };
        let reply = post(router, path, with(&body, &fields)).await?;
        assert_eq!(reply.status.as_u16(), 400, "{path} {fields}: {}", String::from_utf8_lossy(&reply.body));
        assert!(message(&reply)?.contains(&format!("`{name}`")), "{fields}: {}", message(&reply)?);
        let router = if is_text { &lax.1.router } else { &lax.0.router };
        let reply = post(router, path, with(&body, &fields)).await?;
        assert_eq!(reply.status.as_u16(), 200, "{path} {fields}: {}", String::from_utf8_lossy(&reply.body));
    }
    let mut client = GrpcInferenceServiceClient::new(strict.0.router.clone());
    let text = |text: &str| {
        let choice = Some(infer_parameter::ParameterChoice::StringParam(text.into()));
        InferParameter { parameter_choice: choice }
    };
    let mut request = text_request(&["a"]);
    request.inputs[0].parameters.insert("content_type".into(), text("str"));
    client.model_infer(request.clone()).await?;
    request.inputs[0].parameters.insert("codec".into(), text("x"));
    let status = client.model_infer(request).await.err().context("it is refused")?;
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("`inputs[0].parameters.codec`"), "{status}");
    let mut load = RepositoryModelLoadRequest { model_name: "bert".into(), ..Default::default() };
    load.parameters.insert("config".into(), Default::default());
    let status = client.repository_model_load(load).await.err().context("it is refused")?;
    assert!(status.message().contains("`parameters.config`"), "{status}");
    Ok(())
}

#[tokio::test]
async fn harmless_and_neutral_fields_are_taken() -> Result<()> {
    let of = texts(&Settings::default())?;
    let fields = json!({
        "user": "u", "store": true, "metadata": {"a": "b"}, "service_tier": "auto", "safety_identifier": "s",
        "prompt_cache_key": "k", "parallel_tool_calls": true, "n": 1, "best_of": 1.0, "logprobs": false, "presence_penalty": 0,
        "frequency_penalty": 0.0, "echo": false, "logit_bias": {}, "tools": [], "tool_choice": "auto",
        "response_format": {"type": "text"}, "skip_special_tokens": true,
    });
    for (path, body) in [("/v1/completions", text_body()), (CHAT, chat_body())] {
        let plain = told(&post(&of.router, path, body.to_string()).await?)?["choices"].clone();
        assert_eq!(told(&post(&of.router, path, with(&body, &fields)).await?)?["choices"], plain, "{path}");
    }
    Ok(())
}

#[tokio::test]
async fn errors_name_the_field_and_its_place() -> Result<()> {
    let (of, own) = (texts(&Settings::default())?, setup(small())?);
    for (path, body, fields, expected) in [
        ("/v1/completions", text_body(), json!({"max_tokens": -1}), "`max_tokens`: invalid value: integer `-1`"),
        ("/v1/completions", text_body(), json!({"max_tokens": 1.5}), "`max_tokens`: invalid type"),
        ("/v1/completions", text_body(), json!({"temperature": "hot"}), "`temperature`: invalid type: string"),
        ("/v1/completions", text_body(), json!({"prompt": {"a": 1}}), "`prompt`"),
        ("/v1/completions", text_body(), json!({"stop": [1]}), "`stop`"),
        ("/v1/completions", text_body(), json!({"stop_token_ids": [1, "x"]}), "`stop_token_ids[1]`"),
        ("/v1/completions", text_body(), json!({"stop_token_ids": [256]}), "token 256"),
        ("/v1/completions", text_body(), json!({"min_tokens": 5}), "`min_tokens` is 5"),
        (
            "/v1/completions",
            text_body(),
            json!({"stream": true, "stream_options": {"include_usage": 1}}),
            "`stream_options.include_usage`",
        ),
        ("/v1/completions", text_body(), json!({"stream": true, "stream_options": 3}), "`stream_options`"),
        ("/v1/completions", json!({"prompt": "a"}), json!({}), "`model` is missing"),
        (CHAT, json!({"model": "m"}), json!({}), "`messages` is missing"),
        (CHAT, chat_body(), json!({"messages": [{"content": "x"}]}), "messages[0]"),
    ] {
        let reply = post(&of.router, path, with(&body, &fields)).await?;
        assert_eq!(reply.status.as_u16(), 400, "{fields}");
        assert!(message(&reply)?.contains(expected), "{fields}: {}", message(&reply)?);
    }
    for (path, body, fields, expected) in [
        ("/v1/embeddings", json!({"model": "bert"}), json!({}), "`input` is missing"),
        (
            "/v1/embeddings",
            json!({"model": "bert", "input": "a"}),
            json!({"dimensions": "x"}),
            "`dimensions`: invalid type",
        ),
        (INFER, infer_body(), json!({"parameters": {"timeout": "x"}}), "`parameters.timeout`: invalid type"),
        (INFER, infer_body(), json!({"parameters": [1]}), "`parameters` is not an object"),
        (INFER, infer_body(), json!({"inputs": [{"name": "text"}]}), "`inputs[0].shape` is missing"),
        (INFER, infer_body(), json!({"inputs": [1]}), "`inputs[0]` is not an object"),
        (INFER, infer_body(), json!({"outputs": [{}]}), "`outputs[0].name` is missing"),
        (
            INFER,
            infer_body(),
            json!({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, "x"]}]}),
            "`inputs[0].shape[1]`",
        ),
        (INFER, json!({}), json!({}), "`inputs` is missing"),
    ] {
        let reply = post(&own.router, path, with(&body, &fields)).await?;
        assert_eq!(reply.status.as_u16(), 400, "{fields}");
        assert!(message(&reply)?.contains(expected), "{fields}: {}", message(&reply)?);
    }
    let twice = post(&own.router, "/v1/embeddings", r#"{"model": "bert", "input": "a", "input": "b"}"#).await?;
    assert!(message(&twice)?.contains("`input` is given twice"), "{}", message(&twice)?);
    let twice = r#"{"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "a", "content": "b"}]}"#;
    let twice = message(&post(&of.router, CHAT, twice).await?)?;
    assert!(twice.contains("`messages[0]`: `content` is given twice"), "{twice}");
    // Not 2^64 - 1 plus the prompt.
    let most = post(&of.router, "/v1/completions", with(&text_body(), &json!({"max_tokens": u64::MAX}))).await?;
    assert_eq!(most.json()?["error"]["code"], "context_length_exceeded");
    assert!(message(&most)?.contains(&u64::MAX.to_string()), "{}", message(&most)?);
    // Its tokens are not made.
    let long = post(&of.router, "/v1/completions", with(&text_body(), &json!({"prompt": "a".repeat(3 << 20)}))).await?;
    assert_eq!(long.json()?["error"]["code"], "context_length_exceeded");
    assert!(message(&long)?.contains("3145728 bytes"), "{}", message(&long)?);
    for path in ["/v2/models/%FF/infer", "/v2/models/%FF/ready", "/v1/models/%FF"] {
        let request = if path.ends_with("infer") { Request::post(path) } else { Request::get(path) };
        let reply = send(&own.router, request.body(Body::empty())?).await?;
        assert_eq!(reply.status.as_u16(), 400, "{path}");
        message(&reply)?;
    }
    Ok(())
}

/// The most likely tokens behind a prompt, of which none of the first `least` is one of `ends`; and all that follow until one is.
fn greedy(of: &Texts, prompt: &str, most: usize, least: usize, ends: &[u32]) -> Result<Vec<u32>> {
    let (mut tokens, start) = (of.text.encode(prompt)?, of.text.encode(prompt)?.len());
    while tokens.len() < start + most {
        let ids = Tensor::new(tokens.as_slice(), of.decoder.device())?.unsqueeze(0)?;
        let hidden = of.decoder.forward(&ids, &of.decoder.cache(1)?)?;
        let logits = of.decoder.logits(&hidden.narrow(1, tokens.len() - 1, 1)?)?.flatten_all()?.to_vec1::<f32>()?;
        let is_barred = |token: &usize| tokens.len() < start + least && ends.contains(&(*token as u32));
        let allowed = (0..logits.len()).filter(|token| !is_barred(token));
        let best = allowed.max_by(|a, b| logits[*a].total_cmp(&logits[*b])).context("a token")? as u32;
        if ends.contains(&best) {
            break;
        }
        tokens.push(best);
    }
    Ok(tokens.split_off(start))
}

#[tokio::test]
async fn no_string_ends_the_first_tokens() -> Result<()> {
    let of = serve(&Settings::default(), CONTEXT, Vec::new())?;
    let tokens = greedy(&of, "abc", 40, 0, &[])?;
    let whole = of.text.decode(&tokens)?;
    let mut ended = 0;
    for (least, at) in [(0, 2), (1, 2), (2, 2), (3, 2), (12, 7), (20, 3), (39, 39), (40, 3)] {
        let start = of.text.decode(&tokens[..least])?.len();
        let stop = of.text.decode(&tokens[at..=at])?;
        let expected = match whole[start..].find(&stop) {
            Some(end) => &whole[..start + end],
            None => &whole[..],
        };
        ended += usize::from(expected != whole);
        let body = json!({"model": "m", "prompt": "abc", "max_tokens": 40, "temperature": 0});
        let fields = json!({"min_tokens": least, "stop": stop, "ignore_eos": true});
        let reply = post(&of.router, "/v1/completions", with(&body, &fields)).await?.json()?;
        assert_eq!(reply["choices"][0]["text"], expected, "{fields}");
    }
    assert!(ended > 2, "{whole:?}");
    Ok(())
}

#[tokio::test]
async fn texts_end_as_the_request_says() -> Result<()> {
    let free = serve(&Settings::default(), CONTEXT, Vec::new())?;
    let whole = greedy(&free, "abc", 40, 0, &[])?;
    // The model's own end is in the midst of the text.
    let of = serve(&Settings { sequences: Some(2), ..Settings::default() }, CONTEXT, vec![whole[12]])?;
    let first = |token: u32| whole.iter().position(|other| *other == token).unwrap_or(whole.len());
    let further = whole[5];
    for (fields, expected, finish) in [
        (json!({}), whole[..first(whole[12])].to_vec(), "stop"),
        (json!({"ignore_eos": true}), whole.clone(), "length"),
        (json!({"stop_token_ids": [further]}), whole[..first(further).min(first(whole[12]))].to_vec(), "stop"),
        (json!({"stop_token_ids": [further], "ignore_eos": true}), whole[..first(further)].to_vec(), "stop"),
        (json!({"min_tokens": 25}), greedy(&of, "abc", 40, 25, &[whole[12]])?, ""),
        (json!({"min_tokens": 40}), greedy(&of, "abc", 40, 40, &[whole[12]])?, "length"),
        (
            json!({"min_tokens": 1, "stop_token_ids": [whole[0]]}),
            greedy(&of, "abc", 40, 1, &[whole[0], whole[12]])?,
            "",
        ),
        (json!({"min_tokens": 30, "ignore_eos": true}), whole.clone(), "length"),
    ] {
        for is_streamed in [false, true] {
            let body =
                json!({"model": "m", "prompt": "abc", "max_tokens": 40, "temperature": 0, "stream": is_streamed});
            let reply = post(&of.router, "/v1/completions", with(&body, &fields)).await?;
            let text: String = match is_streamed {
                true => super::texts::events(&reply)?
                    .iter()
                    .filter_map(|event| event["choices"][0]["text"].as_str())
                    .collect(),
                false => {
                    let json = reply.json()?;
                    let choice = &json["choices"][0];
                    assert!(finish.is_empty() || choice["finish_reason"] == finish, "{fields}: {json}");
                    assert_eq!(json["usage"]["completion_tokens"], json!(expected.len()), "{fields}");
                    choice["text"].as_str().context("a text")?.to_owned()
                }
            };
            assert_eq!(text, of.text.decode(&expected)?, "{fields}");
        }
    }
    // A text with a penalty beside it, and drawn ones: no end among the first tokens.
    for seed in 0..5 {
        let fields = json!({"min_tokens": 40, "temperature": 1.5, "seed": seed, "repetition_penalty": 1.2, "stop_token_ids": (0..128).collect::<Vec<u32>>()});
        let reply = post(
            &of.router,
            "/v1/completions",
            with(&json!({"model": "m", "prompt": "abc", "max_tokens": 40}), &fields),
        )
        .await?;
        assert_eq!(reply.json()?["usage"]["completion_tokens"], 40);
        assert!(
            !reply.json()?["choices"][0]["text"].as_str().context("a text")?.contains(|c: char| c.is_ascii()),
            "seed {seed}"
        );
    }
    let after = post(
        &of.router,
        "/v1/completions",
        json!({"model": "m", "prompt": "abc", "max_tokens": 40, "temperature": 0}).to_string(),
    );
    assert_eq!(after.await?.json()?["choices"][0]["text"], of.told("abc", 40, Sampling::default())?);
    Ok(())
}

#[tokio::test]
async fn prompts_of_one_key_are_not_seen_by_another() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "first\nsecond\n")?;
    let of = texts(&Settings { api_keys: Some(keys), ..Settings::default() })?;
    let prompt: Vec<u32> = (0..300).map(|at| at * 7 % 256).collect();
    let body = json!({"model": "m", "prompt": prompt, "max_tokens": 3, "temperature": 0}).to_string();
    let mut texts = Vec::new();
    for (key, cached) in [("first", 0), ("second", 0), ("first", 256), ("second", 256)] {
        let request = Request::post("/v1/completions").header(header::AUTHORIZATION, format!("Bearer {key}"));
        let json = send(&of.router, request.body(body.clone().into())?).await?.json()?;
        assert_eq!(json["usage"]["prompt_tokens_details"]["cached_tokens"], cached, "{key}");
        texts.push(json["choices"][0]["text"].clone());
    }
    assert!(texts.iter().all(|text| *text == texts[0]));
    Ok(())
}

#[tokio::test]
async fn the_index_tells_ready_models_alone_where_it_is_asked_to() -> Result<()> {
    let of = setup(small())?;
    let names = |reply: Reply| -> Result<usize> { Ok(reply.json()?.as_array().context("a list")?.len()) };
    assert_eq!(names(post(&of.router, "/v2/repository/index", "").await?)?, 2);
    assert_eq!(names(post(&of.router, "/v2/repository/index", r#"{"ready": true}"#).await?)?, 1);
    assert_eq!(names(post(&of.router, "/v2/repository/index", r#"{"ready": null}"#).await?)?, 2);
    Ok(())
}
