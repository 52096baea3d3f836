//! `/v1/responses`: items, whole and as events.

use anyhow::{Context, Result};
use opara_models::decoder::Draws;
use serde_json::{json, Value};

use super::post;
use super::templated::{templated, TAGGED};
use super::texts::Texts;

fn tools() -> Value {
    json!([{"type": "function", "name": "weather", "description": "d", "strict": true, "parameters": {
        "type": "object", "required": ["city"], "additionalProperties": false, "properties": {"city": {"enum": ["Oslo", "Rome"]}}}}])
}

fn body(fields: &Value) -> Value {
    let mut body = json!({"model": "m", "input": "hi", "max_output_tokens": 200, "seed": 1});
    body.as_object_mut().into_iter().for_each(|body| body.extend(fields.as_object().cloned().unwrap_or_default()));
    body
}

/// A response, of which a stream tells the same.
async fn response(of: &Texts, fields: &Value) -> Result<Value> {
    let mut body = body(fields);
    let reply = post(&of.router, "/v1/responses", body.to_string()).await?;
    anyhow::ensure!(reply.status.is_success(), "{fields}: {}", String::from_utf8_lossy(&reply.body));
    let whole = reply.json()?;
    body["stream"] = json!(true);
    let reply = post(&of.router, "/v1/responses", body.to_string()).await?;
    let text = String::from_utf8(reply.body)?;
    let mut items: Vec<Value> = Vec::new();
    let (mut told, mut last) = (Value::Null, Value::Null);
    for (at, event) in text.split("\n\n").filter(|event| !event.trim().is_empty()).enumerate() {
        let (name, data) = event.split_once('\n').context("a name and data")?;
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").context("data")?)?;
        let kind = data["type"].as_str().context("a type")?.to_owned();
        assert_eq!((name, &data["sequence_number"]), (format!("event: {kind}").as_str(), &json!(at)));
        let index = data["output_index"].as_u64().unwrap_or_default() as usize;
        match kind.as_str() {
            "response.output_item.added" => {
                assert_eq!((index, &data["item"]["status"]), (items.len(), &json!("in_progress")));
                items.push(json!({"id": data["item"]["id"], "text": ""}));
            }
            "response.output_text.delta"
            | "response.reasoning_text.delta"
            | "response.function_call_arguments.delta" => {
                assert_eq!(data["item_id"], items[index]["id"]);
                let text = items[index]["text"].as_str().unwrap_or_default().to_owned();
                items[index]["text"] = json!(text + data["delta"].as_str().unwrap_or_default());
            }
            "response.output_text.done" | "response.reasoning_text.done" => {
                assert_eq!(data["text"], items[index]["text"])
            }
            "response.function_call_arguments.done" => assert_eq!(data["arguments"], items[index]["text"]),
            "response.output_item.done" => assert_eq!(data["item"]["id"], items[index]["id"]),
            "response.created" => assert_eq!(data["response"]["status"], "in_progress"),
            "response.completed" | "response.incomplete" => told = data["response"].clone(),
            _ => {}
        }
        last = json!(kind);
    }
    assert_eq!(last, json!(format!("response.{}", whole["status"].as_str().unwrap_or_default())));
    let without_ids = |response: &Value| {
        let mut response = response.clone();
        (response["id"], response["created_at"]) = (Value::Null, Value::Null);
        for item in response["output"].as_array_mut().into_iter().flatten() {
            (item["id"], item["call_id"]) = (Value::Null, Value::Null);
        }
        // The second time the prompt was read before.
        response["usage"]["input_tokens_details"] = Value::Null;
        response
    };
    assert_eq!(without_ids(&told), without_ids(&whole), "{fields}");
    Ok(whole)
}

fn only(text: &str) -> Value {
    json!({"choice": [text]})
}

#[tokio::test]
async fn answers_are_items() -> Result<()> {
    let of = templated(TAGGED, Draws::default())?;
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>";
    let told =
        response(&of, &json!({"structured_outputs": only("yes"), "instructions": "be brief", "temperature": 0.5}))
            .await?;
    let message = &told["output"][0];
    assert_eq!(
        (&message["type"], &message["role"], &message["status"]),
        (&json!("message"), &json!("assistant"), &json!("completed"))
    );
    assert_eq!(message["content"], json!([{"type": "output_text", "text": "yes", "annotations": [], "logprobs": []}]));
    assert_eq!(
        (&told["status"], &told["instructions"], &told["temperature"]),
        (&json!("completed"), &json!("be brief"), &json!(0.5))
    );
    assert_eq!((&told["object"], &told["error"], &told["store"]), (&json!("response"), &Value::Null, &json!(false)));
    assert_eq!((&told["usage"]["output_tokens"], &told["parallel_tool_calls"]), (&json!(3), &json!(true)));
    let both = response(&of, &json!({"structured_outputs": only(&format!("So:\n{call}")), "tools": tools()})).await?;
    let kinds: Vec<&Value> = both["output"].as_array().context("items")?.iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["message", "function_call"]);
    let called = &both["output"][1];
    assert_eq!((&called["name"], &called["status"]), (&json!("weather"), &json!("completed")));
    assert_eq!(serde_json::from_str::<Value>(called["arguments"].as_str().context("JSON")?)?, json!({"city": "Oslo"}));
    // What was answered goes back into the next request.
    let mut input = json!([{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]);
    let items = input.as_array_mut().context("a list")?;
    items.extend(both["output"].as_array().cloned().context("items")?);
    items.push(json!({"type": "function_call_output", "call_id": called["call_id"], "output": "rain"}));
    response(&of, &json!({"input": input, "tools": tools(), "structured_outputs": only("rain")})).await?;
    // A call that must be, and one that need not.
    for choice in [json!("required"), json!({"type": "function", "name": "weather"})] {
        let forced =
            response(&of, &json!({"tools": tools(), "tool_choice": choice, "parallel_tool_calls": false})).await?;
        assert_eq!(forced["output"][0]["type"], "function_call", "{forced}");
    }
    let thought = json!({"enable_thinking": true, "max_output_tokens": 20, "temperature": 0, "ignore_eos": true});
    let thought = response(&of, &thought).await?;
    assert_eq!((&thought["output"][0]["type"], &thought["status"]), (&json!("reasoning"), &json!("incomplete")));
    assert_eq!(thought["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert!(thought["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64() > Some(10), "{thought}");
    let schema =
        json!({"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": false});
    let format = json!({"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": true}});
    let formed =
        response(&of, &json!({"text": format, "include": ["message.output_text.logprobs"], "top_logprobs": 2})).await?;
    let content = &formed["output"][0]["content"][0];
    let text = content["text"].as_str().context("a text")?;
    assert_eq!(serde_json::from_str::<Value>(text)?, json!({"a": 1}));
    assert_eq!(content["logprobs"].as_array().map(Vec::len), Some(text.len()));
    assert_eq!(content["logprobs"][0]["top_logprobs"].as_array().map(Vec::len), Some(2));
    Ok(())
}

#[tokio::test]
async fn what_a_response_cannot_have_is_named() -> Result<()> {
    let of = templated(TAGGED, Draws::default())?;
    for (fields, expected) in [
        (json!({"previous_response_id": "resp_1"}), "no response is kept"),
        (json!({"input": null}), "`input` is missing"),
        (json!({"tools": [{"type": "web_search"}]}), "`tools[0]` is of type \"web_search\""),
        (json!({"background": true}), "`background` is not supported"),
        (json!({"truncation": "auto"}), "`truncation` is not supported"),
        (json!({"include": ["file_search_call.results"]}), "file_search_call.results"),
        (json!({"text": {"verbosity": "low"}}), "`text.verbosity` is not supported"),
        (json!({"conversation": "c"}), "`conversation` is not supported"),
        (json!({"n": 2}), "a response is one answer"),
        (json!({"text": {"format": {"type": "grammar"}}}), "\"grammar\" is not supported"),
        (json!({"max_output_tokens": 0}), "at least one token"),
    ] {
        let reply = post(&of.router, "/v1/responses", body(&fields).to_string()).await?;
        let told = reply.json()?["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert!(reply.status.as_u16() == 400 && told.contains(expected), "{fields}: {told}");
    }
    let reply = post(&of.router, "/v1/responses", json!({"model": "m", "input": "hi", "store": true, "user": "u",
        "metadata": {"a": "b"}, "text": {"verbosity": "medium"}, "reasoning": {"summary": "auto"}, "truncation": "disabled",
        "background": false, "include": ["reasoning.encrypted_content"], "max_output_tokens": 2}).to_string()).await?;
    assert!(reply.status.is_success(), "{}", String::from_utf8_lossy(&reply.body));
    assert_eq!(reply.json()?["metadata"], json!({"a": "b"}));
    Ok(())
}
