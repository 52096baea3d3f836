//! How a model writes calls of tools and its reasoning, as its chat template shows: by what the template makes of messages that have
//! some.

use serde_json::{json, Value};

/// How calls and reasoning stand in an answer's text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Syntax {
    /// `None` where the template writes no calls, or writes them in a way that is not known.
    pub calls: Option<CallSyntax>,
    /// The marks before the reasoning and behind it.
    pub reasoning: Option<(String, String)>,
}

/// How calls are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallSyntax {
    /// The mark before the first call. Where it is empty, only an answer that begins with a call has calls.
    pub open: String,
    /// The mark between two calls, if there may be several.
    pub between: Option<String>,
    /// The mark behind the last call.
    pub close: String,
    /// The call itself.
    pub form: CallForm,
}

/// How one call is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallForm {
    /// An object of JSON with the name and the arguments in fields of these names.
    Object {
        /// Of the name.
        name: String,
        /// Of the arguments.
        arguments: String,
    },
    /// The name, perhaps an id of the call, and the arguments as an object of JSON.
    Named {
        /// Between the name and the id; `None` where there is no id.
        before_id: Option<String>,
        /// Between the name, or the id, and the arguments.
        middle: String,
    },
    /// As Python writes a call: the name, and in parentheses each argument with `=` and a literal.
    Python,
    /// The name, and an object of JSON whose names stand without quotes. Another mark stands in place of each quote of a text; no text has
    /// that mark in it.
    Quoted {
        /// Between the name and the first argument: a brace.
        open: String,
        /// Before a text and behind it.
        quote: String,
    },
    /// The name and each argument as text, with marks between them.
    Marked {
        /// Between the name and the first argument's.
        first: String,
        /// Between the name of an argument and its value.
        assign: String,
        /// Between a value and the name of the next argument.
        next: String,
        /// Behind the name of a call that has no arguments.
        empty: String,
    },
}

impl Syntax {
    /// What stands around calls and reasoning.
    pub fn marks(&self) -> impl Iterator<Item = &str> {
        let calls = self.calls.iter().flat_map(|calls| [Some(&calls.open), calls.between.as_ref(), Some(&calls.close)]);
        let reasoning = self.reasoning.iter().flat_map(|(open, close)| [open, close]);
        calls.flatten().chain(reasoning).map(String::as_str)
    }

    /// Whether a prompt ends within reasoning.
    pub fn ends_within_reasoning(&self, prompt: &str) -> bool {
        let open = self.reasoning.as_ref().and_then(|(open, close)| Some((prompt.rfind(open.as_str())?, close)));
        open.is_some_and(|(at, close)| prompt.rfind(close.as_str()).is_none_or(|end| end < at))
    }
}

const SAID: &str = "said7q";
const THOUGHT: &str = "thought7q";
/// The beginning of each call's id. Some templates take only ids of nine letters and digits.
const ID: &str = "call0000";
const NAMES: [&str; 2] = ["name7a", "name7b"];
/// The names and values of two arguments of each call.
const ARGUMENTS: [[&str; 4]; 2] = [["key7a", "value7a", "key7b", "71"], ["key7c", "value7c", "key7d", "72"]];

impl Syntax {
    /// Of a template, which `write` gives a conversation to: empty where it refuses that.
    pub(super) fn of(write: impl Fn(Value) -> String) -> Self {
        let turn = |mut answer: Value| {
            answer["role"] = json!("assistant");
            write(json!([{"role": "user", "content": "a question"}, answer]))
        };
        let plain = turn(json!({"content": SAID}));
        let Some((before, behind)) = plain.split_once(SAID) else { return Self::default() };
        // What an answer adds to a turn.
        let body = |told: &str| {
            let start = common(before.bytes(), told.bytes());
            let end = told.len() - common(behind.bytes().rev(), told.bytes().rev());
            // Between characters, since both texts have the same characters there.
            told.get(start..end.max(start)).map(str::to_owned)
        };
        Self { calls: calls(&turn, &body), reasoning: reasoning(&turn, &body) }
    }
}

/// How many elements two sequences have in common at their beginning.
fn common(a: impl Iterator<Item = u8>, b: impl Iterator<Item = u8>) -> usize {
    a.zip(b).take_while(|(a, b)| a == b).count()
}

fn reasoning(turn: &impl Fn(Value) -> String, body: &impl Fn(&str) -> Option<String>) -> Option<(String, String)> {
    let of_field = ["reasoning_content", "reasoning", "thinking"].into_iter().find_map(|field| {
        let told = body(&turn(json!({"content": SAID, field: THOUGHT})))?;
        let (open, rest) = told.split_once(THOUGHT)?;
        // Behind the reasoning stands what was said, if the end of the turn is not what all of it ends with.
        let close = rest.split_once(SAID).map_or(rest, |(close, _)| close);
        Some((open.trim().to_owned(), close.trim().to_owned()))
    });
    let is_marked = |(open, close): &(String, String)| !open.is_empty() && !close.is_empty();
    of_field.filter(is_marked).or_else(|| {
        // Templates that cut reasoning out of what was said.
        let (open, close) = ("<think>", "</think>");
        let told = turn(json!({"content": format!("{open}\n{THOUGHT}\n{close}\n\n{SAID}")}));
        (told.contains(SAID) && !told.contains(THOUGHT)).then(|| (open.into(), close.into()))
    })
}

fn calls(turn: &impl Fn(Value) -> String, body: &impl Fn(&str) -> Option<String>) -> Option<CallSyntax> {
    let call = |at: usize, has_arguments: bool| {
        let [first, value, second, number] = ARGUMENTS[at];
        let number: u32 = number.parse().unwrap_or_default();
        let arguments = if has_arguments { json!({first: value, second: number}) } else { json!({}) };
        let id = format!("{ID}{at}");
        json!({"id": id, "type": "function", "function": {"name": NAMES[at], "arguments": arguments}})
    };
    let told = |calls: Vec<Value>| body(&turn(json!({"content": "", "tool_calls": calls})));
    let one = told(vec![call(0, true)])?;
    let (form, start, end) = found(&one, 0)?;
    let two = told(vec![call(0, true), call(1, true)]).unwrap_or_default();
    let between = found(&two, 1).filter(|(other, next, _)| *other == form && *next >= end);
    let between = between.and_then(|(_, next, _)| Some(two.get(end..next)?.to_owned()));
    let form = match form {
        CallForm::Marked { first, assign, next, .. } => {
            let none = told(vec![call(0, false)])?;
            let empty = none.split_once(NAMES[0])?.1.to_owned();
            CallForm::Marked { first, assign, next, empty }
        }
        form => form,
    };
    let (open, close) = (one[..start].trim_start().to_owned(), one[end..].trim_end().to_owned());
    // Marks with an id in them are not looked for.
    let has_id = [Some(&open), between.as_ref(), Some(&close)].into_iter().flatten().any(|mark| mark.contains(ID));
    (!has_id).then_some(CallSyntax { open, between, close, form })
}

/// Where one of the calls stands in a text, and how it is written.
fn found(text: &str, at: usize) -> Option<(CallForm, usize, usize)> {
    let name = text.find(NAMES[at])?;
    let behind = name + NAMES[at].len();
    let has_arguments = |value: &Value| match value {
        Value::String(text) => text.contains(ARGUMENTS[at][0]),
        value => value.get(ARGUMENTS[at][0]).is_some(),
    };
    let starts = text[..name].rmatch_indices('{').map(|(start, _)| start);
    let object = starts.into_iter().find_map(|start| {
        let (value, length) = first_value(&text[start..])?;
        let fields = value.as_object()?;
        let name = fields.iter().find(|(_, value)| *value == NAMES[at])?.0.clone();
        let arguments = fields.iter().find(|(_, value)| has_arguments(value))?.0.clone();
        Some((CallForm::Object { name, arguments }, start, start + length))
    });
    let named = || {
        let start = behind + text[behind..].find('{')?;
        let (value, length) = first_value(&text[start..])?;
        let middle = &text[behind..start];
        let parts = middle.split_once(&format!("{ID}{at}"));
        let (before_id, middle) = parts.map_or((None, middle), |(before, middle)| (Some(before.to_owned()), middle));
        has_arguments(&value).then(|| (CallForm::Named { before_id, middle: middle.to_owned() }, name, start + length))
    };
    let python = || {
        let (arguments, _) = text[behind..].strip_prefix('(')?.split_once(')')?;
        let told: String = arguments.chars().filter(|letter| !letter.is_whitespace()).collect();
        let [first, value, second, number] = ARGUMENTS[at];
        let is_python = told.replace('"', "'") == format!("{first}='{value}',{second}={number}");
        is_python.then(|| (CallForm::Python, name, behind + arguments.len() + 2))
    };
    // Before the first argument's name, before its value, before the second one's name, and before that one's value.
    let marks = || {
        let (mut marks, mut end) = (Vec::new(), behind);
        for piece in ARGUMENTS[at] {
            let start = end + text[end..].find(piece)?;
            marks.push(text[end..start].to_owned());
            end = start + piece.len();
        }
        Some((<[String; 4]>::try_from(marks).ok()?, end))
    };
    let quoted = || {
        let ([open, assign, next, again], end) = marks()?;
        let quote = assign.strip_prefix(&again)?.to_owned();
        let comma = next.strip_prefix(&quote)?;
        let is_quoted = [&again, comma, &open].map(str::trim) == [":", ",", "{"] && !quote.trim().is_empty();
        let close = end + text[end..].find('}')?;
        let is_closed = text[end..close].trim().is_empty();
        (is_quoted && is_closed).then_some((CallForm::Quoted { open, quote }, name, close + 1))
    };
    let marked = || {
        let ([first, assign, next, again], end) = marks()?;
        let is_marked = assign == again && !assign.trim().is_empty() && !next.trim().is_empty();
        is_marked.then(|| (CallForm::Marked { first, assign, next, empty: String::new() }, name, end))
    };
    object.or_else(named).or_else(python).or_else(quoted).or_else(marked)
}

/// The value of JSON that a text begins with, and its length.
fn first_value(text: &str) -> Option<(Value, usize)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let value = values.next()?.ok()?;
    Some((value, values.byte_offset()))
}

#[cfg(test)]
mod tests {
    use super::super::jinja::{of_json, Jinja};
    use super::*;

    fn of(template: &str) -> Syntax {
        let jinja = Jinja::parse(template, chrono::NaiveDateTime::default).expect("a template");
        Syntax::of(|messages| {
            let names = [("messages", messages), ("add_generation_prompt", json!(false)), ("tools", Value::Null)];
            let value = |value: Value| of_json(&minijinja::Value::from_serialize(value));
            let names = names.map(|(name, of)| (name.to_owned(), value(of)));
            jinja.render(names.into_iter().collect()).unwrap_or_default()
        })
    }

    fn object(name: &str, arguments: &str) -> CallForm {
        CallForm::Object { name: name.into(), arguments: arguments.into() }
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

    /// As DeepSeek-V3 and R1 write them, which cut reasoning out of what was said.
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
        assert_eq!(calls.form, CallForm::Named { before_id: None, middle: "\n```json\n".into() });
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
        assert_eq!(calls.form, CallForm::Named { before_id: Some("[CALL_ID]".into()), middle: "[ARGS]".into() });
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
}
