//! Several texts of one request, and what is told beside them: likelihoods and ids of tokens.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use opara_candle::ops::Sampling;
use opara_serve::server::Settings;
use serde_json::{json, Value};

use super::post;
use super::texts::{events, texts, Texts};

const TEXT: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

async fn ask(of: &Texts, path: &str, fields: Value) -> Result<Value> {
    let mut body = json!({"model": "m", "max_tokens": 12, "temperature": 0});
    body.as_object_mut().into_iter().for_each(|body| body.extend(fields.as_object().cloned().unwrap_or_default()));
    let reply = post(&of.router, path, body.to_string()).await?;
    anyhow::ensure!(reply.status.is_success(), "{fields}: {}", String::from_utf8_lossy(&reply.body));
    reply.json()
}

/// The events of the same request as a stream.
async fn streamed(of: &Texts, path: &str, fields: Value) -> Result<Vec<Value>> {
    let mut body = json!({"model": "m", "max_tokens": 12, "temperature": 0, "stream": true,
        "stream_options": {"include_usage": true}});
    body.as_object_mut().into_iter().for_each(|body| body.extend(fields.as_object().cloned().unwrap_or_default()));
    events(&post(&of.router, path, body.to_string()).await?)
}

/// What a stream says of each text, put together as in an answer that is not one.
fn joined(events: &[Value], at: &str) -> BTreeMap<u64, String> {
    let mut texts = BTreeMap::<u64, String>::new();
    for choice in events.iter().flat_map(|event| event["choices"].as_array().into_iter().flatten()) {
        let index = choice["index"].as_u64().unwrap_or(u64::MAX);
        *texts.entry(index).or_default() += choice.pointer(at).and_then(Value::as_str).unwrap_or_default();
    }
    texts
}

/// The elements of a list of each text's pieces, one behind the other.
fn listed(events: &[Value], at: &str, index: u64) -> Vec<Value> {
    let choices = events.iter().flat_map(|event| event["choices"].as_array().into_iter().flatten());
    let choices = choices.filter(|choice| choice["index"] == index);
    choices.flat_map(|choice| choice.pointer(at).and_then(Value::as_array).cloned().unwrap_or_default()).collect()
}

#[tokio::test]
async fn several_texts_are_what_each_is_alone() -> Result<()> {
    let of = texts(&Settings::default())?;
    let drawn = |seed| Sampling { temperature: 1., seed, ..Sampling::default() };
    let mut expected = Vec::new();
    for prompt in ["abc", "on and on"] {
        for seed in 5..8 {
            expected.push(of.told(prompt, 12, drawn(seed))?);
        }
    }
    let tokens = ["abc", "on and on"].map(|prompt| prompt.bytes().map(u32::from).collect::<Vec<_>>());
    for prompts in [json!(["abc", "on and on"]), json!(tokens)] {
        let fields = json!({"prompt": prompts, "n": 3, "best_of": 3, "seed": 5, "temperature": 1});
        let reply = ask(&of, TEXT, fields.clone()).await?;
        let choices = reply["choices"].as_array().context("choices")?;
        assert_eq!(choices.len(), 6);
        for (index, choice) in choices.iter().enumerate() {
            assert_eq!((&choice["index"], &choice["text"]), (&json!(index), &json!(expected[index])));
        }
        // A prompt counts once, however many texts are behind it.
        assert_eq!(reply["usage"]["prompt_tokens"], 3 + 9);
        let events = streamed(&of, TEXT, fields).await?;
        let told = joined(&events, "/text");
        assert_eq!(told.into_values().collect::<Vec<_>>(), expected);
        let ends = events.iter().filter(|event| event["choices"][0]["finish_reason"].is_string()).count();
        assert_eq!((ends, &events[events.len() - 1]["usage"]), (6, &reply["usage"]));
    }
    // Without a seed, texts differ.
    let reply = ask(&of, TEXT, json!({"prompt": ["a", "a"], "n": 2, "temperature": 2})).await?;
    let told: std::collections::BTreeSet<String> =
        reply["choices"].as_array().into_iter().flatten().map(|choice| choice["text"].to_string()).collect();
    assert!(told.len() > 1, "{told:?}");
    Ok(())
}

#[tokio::test]
async fn several_answers_of_a_conversation() -> Result<()> {
    let of = texts(&Settings::default())?;
    let fields = json!({"messages": [{"role": "user", "content": "hi"}], "n": 2, "seed": 1, "temperature": 1});
    let reply = ask(&of, CHAT, fields.clone()).await?;
    let expected = [1, 2].map(|seed| {
        of.told("user: hi\nassistant:", 12, Sampling { temperature: 1., seed, ..Sampling::default() }).ok()
    });
    let content = |at: usize| reply["choices"][at]["message"]["content"].as_str().map(str::to_owned);
    assert_eq!([content(0), content(1)], expected);
    let events = streamed(&of, CHAT, fields).await?;
    for index in [0, 1] {
        let first = events.iter().find(|event| event["choices"][0]["index"] == index).context("an event")?;
        assert_eq!(first["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
        assert_eq!(joined(&events, "/delta/content").get(&index).cloned(), expected[index as usize]);
    }
    Ok(())
}

#[tokio::test]
async fn likelihoods_of_a_text() -> Result<()> {
    let of = texts(&Settings::default())?;
    let fields = json!({"prompt": "once upon", "logprobs": 2, "max_tokens": 20});
    let reply = ask(&of, TEXT, fields.clone()).await?;
    let choice = &reply["choices"][0];
    let (text, told) = (choice["text"].as_str().context("a text")?, &choice["logprobs"]);
    let written = reply["usage"]["completion_tokens"].as_u64().context("a number")? as usize;
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(told[list].as_array().context("a list")?.len(), written, "{list}");
    }
    for at in 0..written {
        let likely = told["token_logprobs"][at].as_f64().context("a number")?;
        let best = told["top_logprobs"][at].as_object().context("an object")?;
        let largest = best.values().filter_map(Value::as_f64).fold(f64::NEG_INFINITY, f64::max);
        // The most likely token was taken.
        assert!(likely <= 0. && likely == largest, "token {at}: {likely} of {best:?}");
        assert!(best.contains_key(told["tokens"][at].as_str().context("a name")?));
        let start = told["text_offset"][at].as_u64().context("a place")? as usize;
        assert!(start <= text.chars().count());
    }
    let events = streamed(&of, TEXT, fields).await?;
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(json!(listed(&events, &format!("/logprobs/{list}"), 0)), told[list], "{list}");
    }
    let named =
        ask(&of, TEXT, json!({"prompt": "once upon", "logprobs": 0, "return_tokens_as_token_ids": true})).await?;
    let told = &named["choices"][0]["logprobs"];
    let prompt: Vec<u32> = "once upon".bytes().map(u32::from).collect();
    let expected: Vec<String> =
        of.alone(&prompt, 12, Sampling::default())?.iter().map(|token| format!("token_id:{token}")).collect();
    assert_eq!(told["tokens"], json!(expected));
    assert_eq!(told["top_logprobs"][0].as_object().context("an object")?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn likelihoods_of_a_conversation() -> Result<()> {
    let of = texts(&Settings::default())?;
    let fields = json!({"messages": [{"role": "user", "content": "hi"}], "logprobs": true, "top_logprobs": 3,
        "temperature": 1, "seed": 3});
    let reply = ask(&of, CHAT, fields.clone()).await?;
    let content = reply["choices"][0]["logprobs"]["content"].as_array().context("a list")?.clone();
    assert_eq!(json!(content.len()), reply["usage"]["completion_tokens"]);
    let mut bytes = Vec::new();
    for token in &content {
        let top = token["top_logprobs"].as_array().context("a list")?;
        assert_eq!(top.len(), 3);
        assert!(top.windows(2).all(|two| two[0]["logprob"].as_f64() >= two[1]["logprob"].as_f64()), "{top:?}");
        assert!(token["logprob"].as_f64() <= top[0]["logprob"].as_f64());
        bytes.extend(token["bytes"].as_array().into_iter().flatten().filter_map(|byte| Some(byte.as_u64()? as u8)));
    }
    assert_eq!(json!(String::from_utf8_lossy(&bytes)), reply["choices"][0]["message"]["content"]);
    let events = streamed(&of, CHAT, fields).await?;
    assert_eq!(listed(&events, "/logprobs/content", 0), content);
    let without = ask(&of, CHAT, json!({"messages": [{"role": "user", "content": "hi"}], "logprobs": true})).await?;
    assert_eq!(without["choices"][0]["logprobs"]["content"][0]["top_logprobs"], json!([]));
    Ok(())
}

#[tokio::test]
async fn tokens_behind_a_stop_string_have_no_likelihoods() -> Result<()> {
    let of = texts(&Settings::default())?;
    let whole = of.told("abc", 40, Sampling::default())?;
    let middle: Vec<char> = whole.chars().skip(6).take(3).collect();
    let stop: String = middle.into_iter().collect();
    let kept = &whole[..whole.find(&stop).context("it is there")?];
    let fields = json!({"prompt": "abc", "max_tokens": 40, "stop": stop, "logprobs": 1, "return_token_ids": true});
    let reply = ask(&of, TEXT, fields.clone()).await?;
    let choice = &reply["choices"][0];
    assert_eq!(choice["text"], kept);
    let ids: Vec<u32> = serde_json::from_value(choice["token_ids"].clone())?;
    assert_eq!(of.text.decode(&ids)?, kept);
    assert_eq!(choice["logprobs"]["tokens"].as_array().map(Vec::len), Some(ids.len()));
    let events = streamed(&of, TEXT, fields).await?;
    assert_eq!(json!(listed(&events, "/token_ids", 0)), choice["token_ids"]);
    Ok(())
}

#[tokio::test]
async fn ids_of_tokens_are_told() -> Result<()> {
    let of = texts(&Settings::default())?;
    let expected = of.alone(&[97, 98], 12, Sampling::default())?;
    let fields = json!({"prompt": [97, 98], "return_token_ids": true});
    let reply = ask(&of, TEXT, fields.clone()).await?;
    let choice = &reply["choices"][0];
    assert_eq!((&choice["prompt_token_ids"], &choice["token_ids"]), (&json!([97, 98]), &json!(expected)));
    let events = streamed(&of, TEXT, fields).await?;
    assert_eq!(json!(listed(&events, "/token_ids", 0)), choice["token_ids"]);
    assert_eq!(listed(&events, "/prompt_token_ids", 0), [97, 98]);
    let fields = json!({"messages": [{"role": "user", "content": "hi"}], "return_token_ids": true});
    let prompt: Vec<u32> = "user: hi\nassistant:".bytes().map(u32::from).collect();
    let reply = ask(&of, CHAT, fields.clone()).await?;
    assert_eq!(reply["prompt_token_ids"], json!(prompt));
    assert_eq!(reply["choices"][0]["token_ids"], json!(of.alone(&prompt, 12, Sampling::default())?));
    let events = streamed(&of, CHAT, fields).await?;
    assert_eq!(events.iter().filter(|event| event["prompt_token_ids"] == json!(prompt)).count(), 1);
    Ok(())
}

#[tokio::test]
async fn the_prompt_is_told_with_the_text() -> Result<()> {
    let of = texts(&Settings::default())?;
    let expected: Vec<String> = ["abc", "é"]
        .into_iter()
        .map(|prompt| Ok(prompt.to_owned() + &of.told(prompt, 12, Sampling::default())?))
        .collect::<Result<_>>()?;
    let fields = json!({"prompt": ["abc", "é"], "echo": true});
    let reply = ask(&of, TEXT, fields.clone()).await?;
    assert_eq!([&reply["choices"][0]["text"], &reply["choices"][1]["text"]], [&expected[0], &expected[1]]);
    let told = joined(&streamed(&of, TEXT, fields).await?, "/text");
    assert_eq!(told.into_values().collect::<Vec<_>>(), expected);
    Ok(())
}

#[tokio::test]
async fn prompts_have_likelihoods() -> Result<()> {
    let of = texts(&Settings::default())?;
    // Of more than one part. The tokens that the model wrote have the likelihoods that they had when it wrote them.
    let prompt: Vec<u32> = (0..200).map(|at| at * 7 % 256).collect();
    let written =
        ask(&of, TEXT, json!({"prompt": prompt, "logprobs": 1, "max_tokens": 60, "return_token_ids": true})).await?;
    let told = written["choices"][0]["logprobs"]["token_logprobs"].as_array().context("a list")?;
    let ids: Vec<u32> = serde_json::from_value(written["choices"][0]["token_ids"].clone())?;
    let whole: Vec<u32> = prompt.iter().chain(&ids).copied().collect();
    for best in [0, 1, 3] {
        let fields = json!({"prompt": whole, "logprobs": best, "echo": true, "max_tokens": 2, "return_tokens_as_token_ids": true});
        let reply = ask(&of, TEXT, fields.clone()).await?;
        assert_eq!(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
        let choice = &reply["choices"][0];
        let echoed = choice["logprobs"]["token_logprobs"].as_array().context("a list")?;
        assert_eq!((echoed.len(), &echoed[0]), (whole.len() + 2, &Value::Null));
        for (at, (again, first)) in echoed[200..].iter().zip(told).enumerate() {
            let (again, first) = (again.as_f64().context("a number")?, first.as_f64().context("a number")?);
            assert!((again - first).abs() < 1e-3, "token {at}: {again} for {first}");
            let named = choice["logprobs"]["top_logprobs"][200 + at].as_object().context("an object")?;
            // The most likely one was taken.
            assert_eq!(named.len(), best.max(1), "token {at}");
        }
        let starts = choice["logprobs"]["text_offset"].as_array().context("a list")?;
        assert!(starts.windows(2).all(|two| two[0].as_u64() <= two[1].as_u64()));
        let text = choice["text"].as_str().context("a text")?;
        let before = of.text.decode(&whole)?;
        assert!(text.starts_with(&before));
        assert_eq!(starts[whole.len()], json!(before.chars().count()));
        let events = streamed(&of, TEXT, fields).await?;
        for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            assert_eq!(json!(listed(&events, &format!("/logprobs/{list}"), 0)), choice["logprobs"][list], "{list}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn bias_and_penalties_change_the_draws() -> Result<()> {
    let of = texts(&Settings::default())?;
    let letter = u32::from(b'q').to_string();
    let reply = ask(&of, TEXT, json!({"prompt": "abc", "logit_bias": {letter.as_str(): 100}})).await?;
    assert_eq!(reply["choices"][0]["text"], "q".repeat(12));
    // Each token once, since what was written is far less likely.
    let fields = json!({"prompt": "abc", "logit_bias": {letter.as_str(): 2}, "presence_penalty": 2,
        "frequency_penalty": 2, "return_token_ids": true, "max_tokens": 30});
    let ids: Vec<u32> =
        serde_json::from_value(ask(&of, TEXT, fields.clone()).await?["choices"][0]["token_ids"].clone())?;
    let plain = of.alone(&[97, 98, 99], 30, Sampling::default())?;
    let different = |ids: &[u32]| ids.iter().collect::<std::collections::BTreeSet<_>>().len();
    assert!(different(&ids) > different(&plain), "{ids:?} and {plain:?}");
    let events = streamed(&of, TEXT, fields).await?;
    assert_eq!(json!(listed(&events, "/token_ids", 0)), json!(ids));
    Ok(())
}
