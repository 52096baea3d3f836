//! Calls of tools and reasoning, in answers to conversations.

use anyhow::{Context, Result};
use opara_models::decoder::Draws;
use serde_json::{json, Value};

use super::templated::{
    choice, refusal, special, templated, INVOKED, KEYED, LONE, MARKED, NAMED, PYTHON, QUOTED, TAGGED, WITH_IDS,
};

fn tools() -> Value {
    let parameters = json!({
        "type": "object", "required": ["city", "days"], "additionalProperties": false,
        "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"$ref": "#/$defs/few"}},
        "$defs": {"few": {"type": "integer", "minimum": 1, "maximum": 9}},
    });
    let tool = |name: &str, parameters: &Value| json!({"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}});
    json!([
        tool("weather", &parameters),
        tool("stop", &json!({"type": "object", "properties": {}, "additionalProperties": false}))
    ])
}

/// Does a call fit its tool?
fn is_sound(call: &Value) -> bool {
    let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
    let Ok(Value::Object(arguments)) = serde_json::from_str(arguments) else { return false };
    match call["function"]["name"].as_str() {
        Some("weather") => {
            let days = arguments.get("days").and_then(Value::as_u64);
            let has_city = [json!("Oslo"), json!("Rome")].contains(&arguments["city"]);
            has_city && days.is_some_and(|days| (1..=9).contains(&days)) && arguments.len() == 2
        }
        Some("stop") => arguments.is_empty(),
        _ => false,
    }
}

#[tokio::test]
async fn what_must_be_called_is_called() -> Result<()> {
    for template in [TAGGED, NAMED, WITH_IDS, PYTHON, MARKED, INVOKED, KEYED, QUOTED, LONE] {
        let of = templated(template, Draws::default())?;
        for seed in 0..6 {
            let one = json!({"type": "function", "function": {"name": "weather"}});
            for (tool_choice, name) in [(json!("required"), None), (one, Some("weather"))] {
                let fields = json!({"tools": tools(), "tool_choice": tool_choice, "seed": seed, "temperature": 1.5,
                    "parallel_tool_calls": false});
                let choice = choice(&of, &fields).await?;
                let message = &choice["message"];
                let calls = message["tool_calls"].as_array().with_context(|| format!("{choice}"))?;
                assert_eq!((calls.len(), &choice["finish_reason"]), (1, &json!("tool_calls")), "{choice}");
                assert!(calls.iter().all(is_sound), "{choice}");
                assert!(name.is_none_or(|name| calls[0]["function"]["name"] == name), "{choice}");
                assert_eq!((&message["content"], &calls[0]["type"]), (&Value::Null, &json!("function")));
            }
        }
        // One or more, until the text is too long.
        let fields = json!({"tools": tools(), "tool_choice": "required", "seed": 1, "temperature": 2});
        let choice = choice(&of, &fields).await?;
        let calls = choice["message"]["tool_calls"].as_array().context("calls")?;
        assert!(!calls.is_empty() && calls.iter().all(is_sound), "{choice}");
    }
    Ok(())
}

#[tokio::test]
async fn a_strict_tool_is_called_as_its_schema_says_or_not_at_all() -> Result<()> {
    let mut tools = tools();
    tools[0]["function"]["strict"] = json!(true);
    let mut texts = 0;
    for (template, mark) in [
        (TAGGED, None),
        (NAMED, Some("<calls>")),
        (PYTHON, Some("<calls>")),
        (KEYED, Some("<call>")),
        (QUOTED, Some("<call>")),
        (MARKED, None),
        (LONE, None),
    ] {
        let of = templated(template, Draws::default())?;
        let (mut all, mut last) = (0, Value::Null);
        for seed in 0..12 {
            let mut fields = json!({"tools": tools, "seed": seed, "temperature": 1, "max_tokens": 200, "parallel_tool_calls": false});
            if let Some(mark) = mark {
                fields["logit_bias"] = json!({special(mark)?.to_string(): 6});
            }
            let choice = choice(&of, &fields).await?;
            let calls = choice["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
            let is_whole = choice["finish_reason"] != "length";
            assert!(!is_whole || calls.iter().all(is_sound), "{choice}");
            last = choice.clone();
            all += usize::from(is_whole && !calls.is_empty());
            texts += usize::from(choice["message"]["content"].as_str().is_some_and(|text| !text.trim().is_empty()));
        }
        assert!(mark.is_none() || all > 0, "{template}: {last}");
    }
    assert!(texts > 0);
    Ok(())
}

#[tokio::test]
async fn calls_are_found_in_what_the_model_writes() -> Result<()> {
    let of = templated(TAGGED, Draws::default())?;
    let call =
        |arguments: &str| format!("<tool_call>\n{{\"name\": \"weather\", \"arguments\": {arguments}}}\n</tool_call>");
    let oslo = call("{\"city\": \"Oslo\", \"days\": 2}");
    let both = format!("Let me see.\n{oslo}\n{}", call("{}"));
    for (text, content, calls) in [
        (&oslo, Value::Null, vec![json!({"city": "Oslo", "days": 2})]),
        (&both, json!("Let me see."), vec![json!({"city": "Oslo", "days": 2}), json!({})]),
        (&"no call".to_owned(), json!("no call"), Vec::new()),
    ] {
        // Nothing else may be written.
        let fields = json!({"tools": tools(), "structured_outputs": {"choice": [text]}, "logprobs": true});
        let told = choice(&of, &fields).await?;
        let message = &told["message"];
        assert_eq!(message["content"], content, "{told}");
        let found = message["tool_calls"].as_array().cloned().unwrap_or_default();
        let found: Vec<Value> = found
            .iter()
            .map(|call| serde_json::from_str(call["function"]["arguments"].as_str().unwrap_or_default()))
            .collect::<Result<_, _>>()?;
        assert_eq!(found, calls);
        assert_eq!(told["finish_reason"], if calls.is_empty() { "stop" } else { "tool_calls" });
        // The tokens are those of the text, whatever it means.
        assert_eq!(told["logprobs"]["content"].as_array().map(Vec::len), Some(text.len()));
    }
    let fields = json!({"tools": tools(), "structured_outputs": {"choice": [both]}, "parallel_tool_calls": false});
    let one = choice(&of, &fields).await?;
    assert_eq!(one["message"]["tool_calls"].as_array().map(Vec::len), Some(1));
    // Without tools there are no calls.
    let without = choice(&of, &json!({"structured_outputs": {"choice": [oslo]}})).await?;
    assert_eq!((&without["message"]["content"], &without["finish_reason"]), (&json!(oslo), &json!("stop")));
    // A call and its result go back into the next prompt.
    let call = json!({"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Oslo\"}"}});
    let messages = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "rain"}]);
    choice(&of, &json!({"tools": tools(), "messages": messages, "max_tokens": 3, "seed": 1})).await?;
    Ok(())
}

#[tokio::test]
async fn reasoning_is_told_apart() -> Result<()> {
    let of = templated(TAGGED, Draws::default())?;
    let oslo = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>";
    // Above the mark's own logit, so that thoughts have an end.
    let close = special("</think>")?.to_string();
    let mut thoughts = 0;
    for seed in 0..6 {
        for (text, content) in [("yes", json!("yes")), (oslo, Value::Null)] {
            let fields = json!({"tools": tools(), "enable_thinking": true, "temperature": 1, "seed": seed,
                "structured_outputs": {"choice": [text]}, "logit_bias": {close.as_str(): 4}});
            let told = choice(&of, &fields).await?;
            let message = &told["message"];
            assert_eq!(
                (&message["content"], message["tool_calls"].is_array()),
                (&content, content.is_null()),
                "{told}"
            );
            let thought = message["reasoning_content"].as_str().unwrap_or_default();
            assert!(!thought.contains("think>"), "{told}");
            thoughts += usize::from(!thought.is_empty());
        }
    }
    assert!(thoughts > 0);
    // A thought that has no end is none of the answer.
    let told =
        choice(&of, &json!({"enable_thinking": true, "max_tokens": 20, "temperature": 0, "ignore_eos": true})).await?;
    assert!(told["message"]["reasoning_content"].as_str().is_some_and(|text| !text.is_empty()), "{told}");
    assert_eq!((&told["message"]["content"], &told["finish_reason"]), (&json!(""), &json!("length")));
    Ok(())
}

#[tokio::test]
async fn what_no_model_can_be_made_to_call_is_refused() -> Result<()> {
    let of = templated(TAGGED, Draws::default())?;
    let lines =
        templated("{{ tools }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", Draws::default())?;
    for (of, fields, expected) in [
        (&lines, json!({"tools": tools(), "tool_choice": "required"}), "does not write calls"),
        (
            &of,
            json!({"tools": tools(), "tool_choice": {"type": "function", "function": {"name": "g"}}}),
            "none of `tools`",
        ),
        (
            &of,
            json!({"tools": tools(), "tool_choice": "required", "response_format": {"type": "json_object"}}),
            "has no other form",
        ),
        (
            &of,
            json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"if": {}}}}], "tool_choice": "required"}),
            "cannot be followed",
        ),
    ] {
        let told = refusal(of, &fields).await?;
        assert!(told.contains(expected), "{fields}: {told}");
    }
    Ok(())
}
