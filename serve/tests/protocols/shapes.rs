//! Texts whose form is given, and how tokens are drawn where a request does not say.

use anyhow::{Context, Result};
use opara_models::decoder::Draws;
use opara_serve::server::Settings;
use serde_json::{json, Value};

use super::post;
use super::templated::{choice, refusal, special, templated, TAGGED};
use super::texts::texts;

fn schema() -> Value {
    json!({
        "type": "object", "required": ["kind", "size", "tags"], "additionalProperties": false,
        "properties": {
            "kind": {"enum": ["cat", "dog"]},
            "size": {"type": "integer", "minimum": 0, "maximum": 99},
            "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        },
    })
}

fn is_sound(text: &str) -> bool {
    let Ok(value) = serde_json::from_str::<Value>(text) else { return false };
    let is_kind = value["kind"] == "cat" || value["kind"] == "dog";
    let is_size = value["size"].as_u64().is_some_and(|size| size < 100);
    let are_tags = value["tags"].as_array().is_some_and(|tags| tags.len() <= 3 && tags.iter().all(Value::is_boolean));
    is_kind && is_size && are_tags && value.as_object().is_some_and(|fields| fields.len() == 3)
}

#[tokio::test]
async fn json_of_a_schema() -> Result<()> {
    let of = templated(TAGGED, Draws::default())?;
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": schema()}});
    for seed in 0..8 {
        let fields = json!({"response_format": format, "seed": seed, "temperature": 1.5});
        let choice = choice(&of, &fields).await?;
        let text = choice["message"]["content"].as_str().context("a text")?;
        assert!(is_sound(text), "{text}");
        assert_eq!(choice["finish_reason"], "stop");
        // Fields come in the schema's order.
        assert!(text.find("kind") < text.find("size") && text.find("size") < text.find("tags"), "{text}");
    }
    let object = choice(&of, &json!({"response_format": {"type": "json_object"}, "seed": 3, "temperature": 1})).await?;
    let text = object["message"]["content"].as_str().context("a text")?;
    let is_object = serde_json::from_str::<serde_json::Map<String, Value>>(text).is_ok();
    assert!(text.starts_with('{') && (is_object || object["finish_reason"] == "length"), "{object}");
    Ok(())
}

#[tokio::test]
async fn completions_of_a_form() -> Result<()> {
    // Without a token that ends a text.
    let of = texts(&Settings::default())?;
    let ask = |fields: Value| {
        let mut body = json!({"model": "m", "prompt": "abc", "max_tokens": 300, "temperature": 1, "seed": 2, "n": 4});
        body.as_object_mut().into_iter().for_each(|body| body.extend(fields.as_object().cloned().unwrap_or_default()));
        post(&of.router, "/v1/completions", body.to_string())
    };
    for (fields, is_sound) in [
        (
            json!({"structured_outputs": {"choice": ["yes", "no", "nothing"]}}),
            (|text| ["yes", "no", "nothing"].contains(&text)) as fn(&str) -> bool,
        ),
        (json!({"structured_outputs": {"regex": "[ab]{2}/[0-9]"}}), |text| text.len() == 4 && &text[2..3] == "/"),
        (json!({"structured_outputs": {"json": schema()}}), is_sound),
        (json!({"structured_outputs": {"json": schema()}, "ignore_eos": true}), is_sound),
        (
            json!({"structured_outputs": {"json": schema()}, "repetition_penalty": 1.3, "frequency_penalty": 0.5}),
            is_sound,
        ),
    ] {
        let reply = ask(fields.clone()).await?.json()?;
        let choices = reply["choices"].as_array().with_context(|| format!("{fields}: {reply}"))?;
        assert_eq!(choices.len(), 4);
        for choice in choices {
            let text = choice["text"].as_str().context("a text")?;
            assert!(is_sound(text), "{fields}: {text:?}");
            assert_eq!(choice["finish_reason"], "stop", "{fields}: {text:?}");
        }
    }
    for (fields, expected) in [
        (json!({"structured_outputs": {"regex": "[a"}}), "cannot be followed"),
        (json!({"structured_outputs": {"json": {"type": "nothing"}}}), "cannot be followed"),
        (json!({"structured_outputs": {"json": 7}}), "a schema of JSON is an object"),
    ] {
        let reply = ask(fields.clone()).await?;
        let message = reply.json()?["error"]["message"].to_string();
        assert!(reply.status.as_u16() == 400 && message.contains(expected), "{fields}: {message}");
    }
    Ok(())
}

#[tokio::test]
async fn the_form_is_that_of_the_answer_behind_its_reasoning() -> Result<()> {
    let of = templated(TAGGED, Draws::default())?;
    let close = special("</think>")?.to_string();
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema()}});
    let fields = json!({"response_format": format, "enable_thinking": true, "temperature": 1, "seed": 5,
        "logit_bias": {close.as_str(): 6}});
    let told = choice(&of, &fields).await?;
    assert!(is_sound(told["message"]["content"].as_str().context("a text")?), "{told}");
    let told = refusal(&of, &json!({"response_format": {"type": "grammar"}})).await?;
    assert!(told.contains("`response_format` of type \"grammar\""), "{told}");
    Ok(())
}

#[tokio::test]
async fn what_a_request_does_not_say_the_checkpoint_does() -> Result<()> {
    let greedy = Draws { temperature: Some(0.), ..Draws::default() };
    let of = templated(TAGGED, greedy)?;
    let told = |fields: Value| {
        let of = &of;
        async move { Ok::<_, anyhow::Error>(choice(of, &fields).await?["message"]["content"].clone()) }
    };
    let expected = told(json!({"temperature": 0, "max_tokens": 20})).await?;
    for seed in 0..3 {
        assert_eq!(told(json!({"seed": seed, "max_tokens": 20})).await?, expected);
    }
    assert_ne!(told(json!({"seed": 1, "temperature": 1.5, "max_tokens": 20})).await?, expected);
    let one = templated(TAGGED, Draws { top_k: Some(1), ..Draws::default() })?;
    assert_eq!(choice(&one, &json!({"seed": 4, "max_tokens": 20})).await?["message"]["content"], expected);
    let all = choice(&one, &json!({"seed": 4, "max_tokens": 20, "top_k": -1, "temperature": 2})).await?;
    assert_ne!(all["message"]["content"], expected);
    Ok(())
}
