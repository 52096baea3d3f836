//! Servers of decoders whose tokens are bytes, with a chat template and special tokens of the test's own.

use std::sync::Arc;

use anyhow::{Context, Result};
use candle::{DType, Device};
use opara_models::decoder::{Config, Decoder, Draws, Text};
use opara_serve::server::Settings;
use serde_json::{json, Value};
use tokenizers::models::bpe::{Vocab, BPE};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};

use super::post;
use super::texts::{events, serve_with, Texts};

/// As Qwen's models write calls and reasoning.
pub const TAGGED: &str = r#"{%- for tool in tools or [] %}{{ tool | tojson }}{%- endfor %}
{%- for m in messages %}
{{- '<|' + m.role + '|>' }}
{%- if m.reasoning_content %}{{- '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{%- endif %}
{{- m.content or '' }}
{%- for call in m.tool_calls or [] %}
{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}\n</tool_call>' }}
{%- endfor %}{{- '<end>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- if enable_thinking %}{{- '<think>\n' }}{%- endif %}{%- endif %}"#;

/// As DeepSeek's models write calls, whose marks are special tokens.
pub const NAMED: &str = r#"{%- for tool in tools or [] %}{{ tool | tojson }}{%- endfor %}
{%- for m in messages %}
{{- '<|' + m.role + '|>' + (m.content or '') }}
{%- for call in m.tool_calls or [] %}
{%- if loop.first %}{{- '<calls>' }}{%- endif %}
{{- '<call>function<sep>' + call.function.name + '\n```json\n' + (call.function.arguments | tojson) + '\n```</call>' }}
{%- if loop.last %}{{- '</calls>' }}{%- endif %}
{%- endfor %}{{- '<end>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"#;

/// As Mistral's later models write calls, with arguments that are added as texts.
pub const WITH_IDS: &str = r#"{%- for tool in tools or [] %}{{ tool | tojson }}{%- endfor %}
{%- for m in messages %}
{{- '<|' + m.role + '|>' + (m.content or '') }}
{%- for call in m.tool_calls or [] %}
{{- '<call>' + call.function.name + '[CALL_ID]' + call.id + '[ARGS]' + call.function.arguments }}
{%- endfor %}{{- '<end>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"#;

/// Calls as in Python.
pub const PYTHON: &str = r#"{%- for tool in tools or [] %}{{ tool | tojson }}{%- endfor %}
{%- for m in messages %}
{{- '<|' + m.role + '|>' + (m.content or '') }}
{%- for call in m.tool_calls or [] %}
{{- '<calls>[' if loop.first else ', ' }}{{- call.function.name + '(' }}
{%- for name, value in call.function.arguments | items %}{{- name + '=' + (value | tojson) }}{{- '' if loop.last else ', ' }}{%- endfor %}{{- ')' }}
{{- ']</calls>' if loop.last else '' }}
{%- endfor %}{{- '<end>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"#;

/// As Qwen3-Coder writes calls: arguments between marks of letters.
pub const MARKED: &str = r#"{%- for tool in tools or [] %}{{ tool | tojson }}{%- endfor %}
{%- for m in messages %}
{{- '<|' + m.role + '|>' + (m.content or '') }}
{%- for call in m.tool_calls or [] %}
{{- '\n<tool_call>\n<function=' + call.function.name + '>\n' }}
{%- for name, value in call.function.arguments | items %}{{- '<parameter=' + name + '>\n' }}{{- value }}{{- '\n</parameter>\n' }}{%- endfor %}
{{- '</function>\n</tool_call>' }}
{%- endfor %}{{- '<end>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"#;

/// As MiniMax-M2 writes calls: names within quotes of the marks.
pub const INVOKED: &str = r#"{%- for tool in tools or [] %}{{ tool | tojson }}{%- endfor %}
{%- for m in messages %}
{{- '<|' + m.role + '|>' + (m.content or '') }}
{%- for call in m.tool_calls or [] %}
{{- '\n<tools>\n<invoke name="' + call.function.name + '">\n' }}
{%- for name, value in call.function.arguments | items %}{{- '<parameter name="' + name + '">' }}{{- value }}{{- '</parameter>\n' }}{%- endfor %}
{{- '</invoke>\n</tools>' }}
{%- endfor %}{{- '<end>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"#;

/// As GLM-4.5 writes calls: arguments between marks that are special tokens.
pub const KEYED: &str = r#"{%- for tool in tools or [] %}{{ tool | tojson }}{%- endfor %}
{%- for m in messages %}
{{- '<|' + m.role + '|>' + (m.content or '') }}
{%- for call in m.tool_calls or [] %}
{{- '\n<call>' + call.function.name + '\n' }}
{%- for name, value in call.function.arguments | items %}{{- '<key>' + name + '</key>\n<value>' }}{{- value }}{{- '</value>\n' }}{%- endfor %}
{{- '</call>' }}
{%- endfor %}{{- '<end>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"#;

/// As Gemma 4 writes calls: names without quotes, and texts between special tokens.
pub const QUOTED: &str = r#"{%- macro written(value) -%}
{%- if value is string %}{{- '<sep>' + value + '<sep>' }}{%- else %}{{- value }}{%- endif %}{%- endmacro %}
{%- for tool in tools or [] %}{{ tool | tojson }}{%- endfor %}
{%- for m in messages %}
{{- '<|' + m.role + '|>' + (m.content or '') }}
{%- for call in m.tool_calls or [] %}
{{- '<call>call:' + call.function.name + '{' }}
{%- for name, value in call.function.arguments | dictsort %}{{- name + ':' }}{{- written(value) }}{{- '' if loop.last else ',' }}{%- endfor %}
{{- '}</call>' }}
{%- endfor %}{{- '<end>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"#;

/// As Llama 3.1 writes calls: one, and nothing around it.
pub const LONE: &str = r#"{%- for tool in tools or [] %}{{ tool | tojson }}{%- endfor %}
{%- for m in messages %}
{{- '<|' + m.role + '|>' }}
{%- if m.tool_calls %}{{- '{"name": "' + m.tool_calls[0].function.name + '", "parameters": ' }}{{- m.tool_calls[0].function.arguments | tojson }}{{- '}' }}
{%- else %}{{- m.content or '' }}{%- endif %}{{- '<end>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"#;

pub const SPECIAL: [&str; 12] = [
    "<end>", "<think>", "</think>", "<calls>", "</calls>", "<call>", "</call>", "<sep>", "<key>", "</key>", "<value>",
    "</value>",
];

/// A server with this template. Tokens are bytes and those of [`SPECIAL`], of which the first ends a text.
pub fn templated(template: &str, draws: Draws) -> Result<Texts> {
    let mut letters: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    letters.sort_unstable();
    let vocab: Vocab = letters.iter().zip(0u32..).map(|(letter, id)| (letter.to_string(), id)).collect();
    let model = BPE::builder().vocab_and_merges(vocab, Vec::new()).build();
    let mut tokenizer = Tokenizer::new(model.map_err(|error| anyhow::anyhow!(error))?);
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, true, false)));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    let special = SPECIAL.map(|name| AddedToken::from(name, true));
    tokenizer.add_special_tokens(special).map_err(|error| anyhow::anyhow!(error))?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tokenizer.json");
    tokenizer.save(&path, false).map_err(|error| anyhow::anyhow!(error))?;
    std::fs::write(folder.path().join("chat_template.jinja"), template)?;
    let text = Arc::new(Text::beside(&path)?);
    let vocab = letters.len() + SPECIAL.len();
    let config = Config { vocab, max_positions: 1_200, eos: vec![256], draws, ..Config::tiny() };
    let decoder = Decoder::load(opara_weights::seeded(3, DType::F32, &Device::Cpu), &config, 1_200)?;
    serve_with(&Settings::default(), Arc::new(decoder), text)
}

/// The id of a special token.
pub fn special(name: &str) -> Result<usize> {
    Ok(256 + SPECIAL.iter().position(|special| *special == name).context("it is special")?)
}

fn body(fields: &Value) -> Value {
    let mut body = json!({"model": "m", "max_tokens": 300, "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().into_iter().for_each(|body| body.extend(fields.as_object().cloned().unwrap_or_default()));
    body
}

/// The first choice of an answer to a conversation. The same is told as a stream.
pub async fn choice(of: &Texts, fields: &Value) -> Result<Value> {
    let mut body = body(fields);
    let reply = post(&of.router, "/v1/chat/completions", body.to_string()).await?;
    anyhow::ensure!(reply.status.is_success(), "{fields}: {}", String::from_utf8_lossy(&reply.body));
    let choice = reply.json()?["choices"][0].clone();
    body["stream"] = json!(true);
    let streamed = joined(&events(&post(&of.router, "/v1/chat/completions", body.to_string()).await?)?)?;
    for field in ["content", "reasoning_content"] {
        let whole = choice["message"][field].as_str().unwrap_or_default();
        assert_eq!(streamed["message"][field].as_str().unwrap_or_default(), whole, "{field} of {fields}");
    }
    let calls = |of: &Value| {
        let calls = of["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
        calls.into_iter().map(|call| call["function"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(calls(&streamed), calls(&choice), "{fields}");
    assert_eq!(streamed["finish_reason"], choice["finish_reason"], "{fields}");
    Ok(choice)
}

/// What a refusal says.
pub async fn refusal(of: &Texts, fields: &Value) -> Result<String> {
    let reply = post(&of.router, "/v1/chat/completions", body(fields).to_string()).await?;
    anyhow::ensure!(reply.status.as_u16() == 400, "{fields}: {}", String::from_utf8_lossy(&reply.body));
    Ok(reply.json()?["error"]["message"].as_str().unwrap_or_default().to_owned())
}

/// The message of a stream's deltas, as clients put it together.
fn joined(events: &[Value]) -> Result<Value> {
    let (mut content, mut reasoning, mut calls, mut finish) = (String::new(), String::new(), Vec::new(), Value::Null);
    for choice in events.iter().filter_map(|event| event["choices"].get(0)) {
        let delta = &choice["delta"];
        content += delta["content"].as_str().unwrap_or_default();
        reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            if call["function"]["name"].is_string() {
                anyhow::ensure!(call["index"] == calls.len(), "calls are told in their order: {call}");
                anyhow::ensure!(call["id"].as_str().is_some_and(|id| id.len() == 9), "{call}");
                calls.push(call.clone());
                continue;
            }
            anyhow::ensure!(call["index"] == calls.len() - 1 && call["id"].is_null(), "a piece is of the last: {call}");
            let arguments = &mut calls.last_mut().context("a call begins with its name")?["function"]["arguments"];
            let piece = call["function"]["arguments"].as_str().unwrap_or_default();
            *arguments = json!(arguments.as_str().unwrap_or_default().to_owned() + piece);
        }
        if !choice["finish_reason"].is_null() {
            finish = choice["finish_reason"].clone();
        }
    }
    let message = json!({"content": content, "reasoning_content": reasoning, "tool_calls": calls});
    Ok(json!({"message": message, "finish_reason": finish}))
}
