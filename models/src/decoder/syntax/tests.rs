//! The syntax that is found in templates as published models have them.

use super::super::jinja::{of_json, Jinja};
use super::*;

fn of(template: &str) -> Syntax {
    let jinja = Jinja::parse(template, chrono::NaiveDateTime::default).expect("a template");
    Syntax::of(false, |messages| {
        let names = [("messages", messages), ("add_generation_prompt", json!(false)), ("tools", Value::Null)];
        let value = |value: Value| of_json(&minijinja::Value::from_serialize(value));
        let names = names.map(|(name, of)| (name.to_owned(), value(of)));
        jinja.render(names.into_iter().collect()).unwrap_or_default()
    })
    .unwrap_or_default()
}

fn object(name: &str, arguments: &str) -> CallForm {
    CallForm::Object { id: None, name: name.into(), arguments: arguments.into() }
}

/// As Qwen2.5 and Qwen3 write them.
const TAGGED: &str = r#"{%- for message in messages %}
{%- if message.role == "user" %}
{{- '<|im_start|>user\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == "assistant" %}
{%- set content = message.content %}
{%- set reasoning = message.reasoning_content if message.reasoning_content is string else '' %}
{{- '<|im_start|>assistant\n' }}
{%- if reasoning %}{{- '<think>\n' + reasoning.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}{%- else %}{{- content }}{%- endif %}
{%- for tool_call in message.tool_calls %}
{%- if (loop.first and content) or (not loop.first) %}{{- '\n' }}{%- endif %}
{%- set tool_call = tool_call.function %}
{{- '<tool_call>\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}{{- tool_call.arguments | tojson }}{{- '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endif %}{%- endfor %}"#;

#[test]
fn objects_between_tags_and_reasoning() {
    let Syntax { calls, reasoning } = of(TAGGED);
    let (open, close) = ("<tool_call>\n".into(), "\n</tool_call>".into());
    let between = Some("\n</tool_call>\n<tool_call>\n".into());
    assert_eq!(calls, Some(CallSyntax { open, between, close, form: object("name", "arguments") }));
    assert_eq!(reasoning, Some(("<think>".into(), "</think>".into())));
}

/// As Llama 3.1 writes them: one at a time, and nothing around it.
#[test]
fn an_object_alone() {
    let Syntax { calls, reasoning } = of(r#"{%- for message in messages %}
{%- if not 'tool_calls' in message %}{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
{%- else %}
{%- if not message.tool_calls|length == 1 %}{{- raise_exception("one tool call at once!") }}{%- endif %}
{%- set tool_call = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}" }}{{- "<|eot_id|>" }}
{%- endif %}{%- endfor %}"#);
    let (open, close) = (String::new(), String::new());
    assert_eq!(calls, Some(CallSyntax { open, between: None, close, form: object("name", "parameters") }));
    assert_eq!(reasoning, None);
}

/// As Mistral's models write them.
#[test]
fn a_list_of_objects_with_ids() {
    let Syntax { calls, .. } = of(r#"{%- for message in messages %}
{%- if message["role"] == "user" %}{{- "[INST] " + message["content"] + "[/INST]" }}
{%- elif message.tool_calls is defined and message.tool_calls is not none %}
{{- "[TOOL_CALLS] [" }}
{%- for tool_call in message.tool_calls %}
{%- set out = tool_call.function|tojson %}{{- out[:-1] }}{{- ', "id": "' + tool_call.id + '"}' }}
{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]</s>" }}{%- endif %}
{%- endfor %}
{%- else %}{{- " " + message["content"] + "</s>" }}{%- endif %}{%- endfor %}"#);
    let calls = calls.expect("it writes calls");
    assert_eq!(
        (calls.open.as_str(), calls.between.as_deref(), calls.close.as_str()),
        ("[TOOL_CALLS] [", Some(", "), "]")
    );
    assert_eq!(calls.form, object("name", "arguments"));
}

/// As DeepSeek-V3 and R1 write them, which cut reasoning out of the answer's text.
#[test]
fn names_before_their_arguments() {
    let Syntax { calls, reasoning } = of(r#"{%- for message in messages %}
{%- if message['role'] == 'user' %}{{- '<｜User｜>' + message['content'] }}{%- endif %}
{%- if message['role'] == 'assistant' %}{{- '<｜Assistant｜>' }}
{%- for tool in message['tool_calls'] or [] %}
{%- if loop.first %}{{- '<｜tool▁calls▁begin｜>' }}{%- else %}{{- '\n' }}{%- endif %}
{{- '<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\n```json\n' + tool['function']['arguments'] | tojson + '\n```<｜tool▁call▁end｜>' }}
{%- if loop.last %}{{- '<｜tool▁calls▁end｜>' }}{%- endif %}
{%- endfor %}
{%- set content = message['content'] %}
{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1] %}{%- endif %}
{{- content + '<｜end▁of▁sentence｜>' }}{%- endif %}{%- endfor %}"#);
    let calls = calls.expect("it writes calls");
    assert_eq!(calls.open, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>");
    assert_eq!(calls.form, CallForm::Named { id: CallId::None, middle: "\n```json\n".into() });
    let between = "\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>";
    assert_eq!(calls.between.as_deref(), Some(between));
    assert_eq!(calls.close, "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>");
    assert_eq!(reasoning, Some(("<think>".into(), "</think>".into())));
}

/// As Qwen3-Coder writes them.
#[test]
fn arguments_between_marks() {
    let Syntax { calls, .. } = of(r#"{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' + message.content }}
{%- for tool_call in message.tool_calls or [] %}
{{- '\n<tool_call>\n<function=' + tool_call.function.name + '>\n' }}
{%- for name, value in tool_call.function.arguments | items %}
{{- '<parameter=' + name + '>\n' }}{{- value }}{{- '\n</parameter>\n' }}
{%- endfor %}{{- '</function>\n</tool_call>' }}{%- endfor %}
{{- '<|im_end|>\n' }}{%- endfor %}"#);
    let calls = calls.expect("it writes calls");
    assert_eq!(calls.open, "<tool_call>\n<function=");
    let form = CallForm::Marked {
        first: ">\n<parameter=".into(),
        assign: ">\n".into(),
        next: "\n</parameter>\n<parameter=".into(),
        empty: ">\n</function>\n</tool_call>".into(),
    };
    assert_eq!(calls.form, form);
    assert_eq!(calls.close, "\n</parameter>\n</function>\n</tool_call>");
    let between = "\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=";
    assert_eq!(calls.between.as_deref(), Some(between));
}

/// As Mistral's later models write them.
#[test]
fn names_and_ids_before_their_arguments() {
    let Syntax { calls, .. } = of(r#"{%- for message in messages %}
{%- if message['role'] == 'user' %}{{- '[INST]' + message['content'] + '[/INST]' }}
{%- else %}{{- message['content'] }}
{%- for tool_call in message['tool_calls'] or [] %}
{{- '[TOOL_CALLS]' + tool_call['function']['name'] + '[CALL_ID]' + tool_call['id'] + '[ARGS]' + tool_call['function']['arguments'] | tojson }}
{%- endfor %}{{- '</s>' }}{%- endif %}{%- endfor %}"#);
    let calls = calls.expect("it writes calls");
    assert_eq!((calls.open.as_str(), calls.close.as_str()), ("[TOOL_CALLS]", ""));
    assert_eq!(calls.between.as_deref(), Some("[TOOL_CALLS]"));
    assert_eq!(calls.form, CallForm::Named { id: CallId::Behind("[CALL_ID]".into()), middle: "[ARGS]".into() });
}

/// As Kimi K2 and K2 Thinking write them. The name stands within the id alone, which clients send back.
#[test]
fn ids_in_place_of_names() {
    let Syntax { calls, reasoning } = of(r#"{%- for message in messages %}
{{- '<|im_' + message.role + '|>' + message.role + '<|im_middle|>' }}
{%- if message.role == 'assistant' %}{{- '<think>' + message.get('reasoning_content', '') + '</think>' }}{%- endif %}
{{- message.content }}
{%- if message.tool_calls %}{{- '<|tool_calls_section_begin|>' }}
{%- for tool_call in message.tool_calls %}
{{- '<|tool_call_begin|>' + tool_call.id + '<|tool_call_argument_begin|>' + tool_call.function.arguments | tojson + '<|tool_call_end|>' }}
{%- endfor %}{{- '<|tool_calls_section_end|>' }}{%- endif %}
{{- '<|im_end|>' }}{%- endfor %}"#);
    let open = "<|tool_calls_section_begin|><|tool_call_begin|>".into();
    let between = Some("<|tool_call_end|><|tool_call_begin|>".into());
    let close = "<|tool_call_end|><|tool_calls_section_end|>".into();
    let form = CallForm::Named { id: CallId::Naming, middle: "<|tool_call_argument_begin|>".into() };
    assert_eq!(calls, Some(CallSyntax { open, between, close, form }));
    assert_eq!(reasoning, Some(("<think>".into(), "</think>".into())));
}

/// As llama.cpp's template for Kimi K2 writes them.
#[test]
fn numbers_behind_names() {
    for (first, expected) in [("loop.index0", true), ("loop.index", true), ("2 * loop.index", false)] {
        let Syntax { calls, .. } = of(&r#"{%- for message in messages %}
{{- '<|im_' + message.role + '|>' + message.content }}
{%- for tool_call in message.tool_calls or [] %}
{{- '<call>functions.' + tool_call.function.name + ':' }}{{- FIRST }}{{- '<arguments>' + tool_call.function.arguments | tojson + '</call>' }}
{%- endfor %}{{- '<|im_end|>' }}{%- endfor %}"#
            .replace("FIRST", first));
        let calls = calls.expect("it writes calls");
        assert_eq!(calls.open, "<call>functions.");
        let form = CallForm::Named { id: CallId::Number(":".into()), middle: "<arguments>".into() };
        assert_eq!((calls.form == form, calls.between.is_some()), (expected, expected), "{first}");
    }
}

/// As Command R7B and A write them. Answers and calls stand between marks that begin and end alike.
#[test]
fn marks_that_begin_alike_are_whole() {
    for field in ["tool_plan", "reasoning_content"] {
        let Syntax { calls, reasoning } = of(&r#"{%- set ids = namespace(next=0) %}
{%- for message in messages %}
{{- '<|TURN|><|' + message.role + '|>' }}
{%- if message.tool_calls %}{{- '<|START_THINKING|>' }}{{- message.FIELD }}{{- '<|END_THINKING|><|START_ACTION|>[\n' }}
{%- for tool_call in message.tool_calls %}
{{- '    {"tool_call_id": "' }}{{- ids.next }}{{- '", "tool_name": "' + tool_call.function.name + '", "parameters": ' + tool_call.function.arguments | tojson + '}' }}
{{- '\n' if loop.last else ',\n' }}{%- set ids.next = ids.next + 1 %}
{%- endfor %}{{- ']<|END_ACTION|>' }}
{%- else %}{{- '<|START_RESPONSE|>' + message.content + '<|END_RESPONSE|>' }}{%- endif %}
{{- '<|END_TURN|>' }}{%- endfor %}"#
            .replace("FIELD", field));
        let (open, between) = ("<|START_ACTION|>[\n    ".into(), Some(",\n    ".into()));
        let id = Some("tool_call_id".into());
        let form = CallForm::Object { id, name: "tool_name".into(), arguments: "parameters".into() };
        assert_eq!(calls, Some(CallSyntax { open, between, close: "\n]<|END_ACTION|>".into(), form }));
        assert_eq!(reasoning, Some(("<|START_THINKING|>".into(), "<|END_THINKING|>".into())));
    }
}

/// As the first templates of DeepSeek-V3 and R1 do: calls beside no content alone, and a mark behind several alone.
#[test]
fn calls_beside_no_content() {
    let Syntax { calls, .. } = of(r#"{%- for message in messages %}
{%- if message.content is none %}
{%- for tool in message.tool_calls %}
{{- '<calls><call>' if loop.first else '\n<call>' }}{{- tool.function.name + '<sep>' + tool.function.arguments | tojson + '</call>' }}
{{- '' if loop.first else '</calls>' }}
{%- endfor %}
{%- else %}{{- '<' + message.role + '>' + message.content }}{%- endif %}{{- '<end>' }}{%- endfor %}"#);
    let calls = calls.expect("it writes calls");
    assert_eq!((calls.open.as_str(), calls.close.as_str()), ("<calls><call>", "</call></calls>"));
    assert_eq!(calls.between.as_deref(), Some("</call>\n<call>"));
}

/// As Nemotron Nano writes them.
#[test]
fn lists_whose_marks_begin_as_those_of_reasoning() {
    let Syntax { calls, .. } = of(r#"{%- for message in messages %}
{{- '<|' + message.role + '|>' }}
{%- if message.tool_calls %}{{- '<TOOLCALL>[' }}
{%- for tool_call in message.tool_calls %}{{- tool_call.function | tojson }}{{- '' if loop.last else ', ' }}{%- endfor %}{{- ']</TOOLCALL>' }}
{%- else %}{{- '<think></think>' + message.content }}{%- endif %}
{{- '\n<end>' }}{%- endfor %}"#);
    let calls = calls.expect("it writes calls");
    assert_eq!((calls.open.as_str(), calls.close.as_str()), ("<TOOLCALL>[", "]</TOOLCALL>"));
    assert_eq!(calls.form, object("name", "arguments"));
}

/// As OLMo 3 and the models of Liquid AI write them.
#[test]
fn calls_of_python() {
    for (first, between, last) in
        [("<function_calls>", "\n", "</function_calls>"), ("<|tool_call_start|>[", ", ", "]<|tool_call_end|>")]
    {
        let Syntax { calls, .. } = of(&r#"{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' + message.content }}
{%- for tool_call in message.tool_calls or [] %}
{%- if loop.first %}{{- 'FIRST' }}{%- else %}{{- 'BETWEEN' }}{%- endif %}
{{- tool_call.function.name + '(' }}
{%- for name, value in tool_call.function.arguments | items %}{{- name + '=' + value | tojson }}{%- if not loop.last %}{{- ', ' }}{%- endif %}{%- endfor %}
{{- ')' }}{%- if loop.last %}{{- 'LAST' }}{%- endif %}{%- endfor %}
{{- '<|im_end|>\n' }}{%- endfor %}"#
            .replace("FIRST", first)
            .replace("BETWEEN", &between.replace('\n', "\\n"))
            .replace("LAST", last));
        let (open, between, close) = (first.into(), Some(between.into()), last.into());
        assert_eq!(calls, Some(CallSyntax { open, between, close, form: CallForm::Python }));
    }
}

/// As Gemma 4 and FunctionGemma write them.
#[test]
fn arguments_with_quotes_of_their_own() {
    for quote in ["<|\"|>", "<escape>"] {
        let Syntax { calls, .. } = of(&r#"{%- macro written(value) -%}
{%- if value is string %}{{- 'QUOTE' + value + 'QUOTE' }}{%- else %}{{- value }}{%- endif %}{%- endmacro %}
{%- for message in messages %}
{{- '<|turn>' + message.role + '\n' + message.content }}
{%- for tool_call in message.tool_calls or [] %}
{{- '<|tool_call>call:' + tool_call.function.name + '{' }}
{%- for name, value in tool_call.function.arguments | dictsort %}{{- name + ':' }}{{- written(value) }}{%- if not loop.last %}{{- ',' }}{%- endif %}{%- endfor %}
{{- '}<tool_call|>' }}{%- endfor %}
{{- '<turn|>\n' }}{%- endfor %}"#
            .replace("QUOTE", quote));
        let (open, between) = ("<|tool_call>call:".into(), Some("<tool_call|><|tool_call>call:".into()));
        let form = CallForm::Quoted { open: "{".into(), quote: quote.into() };
        assert_eq!(calls, Some(CallSyntax { open, between, close: "<tool_call|>".into(), form }));
    }
}

/// Marks that are other ones in each call cannot be looked for.
#[test]
fn ids_around_a_call_are_not_known() {
    let Syntax { calls, .. } = of(r#"{%- for message in messages %}
{{- message.role + ': ' + message.content }}
{%- for tool_call in message.tool_calls or [] %}
{{- '<call id="' + tool_call.id + '">' + tool_call.function | tojson + '</call>' }}{%- endfor %}{%- endfor %}"#);
    assert_eq!(calls, None);
}

#[test]
fn templates_without_calls_have_no_syntax() {
    let lines = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    assert_eq!(of(lines), Syntax::default());
    assert_eq!(of("{{ raise_exception('no') }}"), Syntax::default());
}
