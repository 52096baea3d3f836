//! Templates of strangers: what they could do to a server, and that they cannot.

use minijinja::{Error, Value};

use super::{budget, of_json, Jinja};

fn rendered(source: &str, names: Value) -> Result<String, Error> {
    let now = || chrono::DateTime::UNIX_EPOCH.naive_utc();
    Jinja::parse(source, now).and_then(|jinja| jinja.render(names))
}

/// The part of the budget that these templates may spend: all of it takes them a second or two each. One that spends nothing would
/// run for days.
const PART: u64 = 32;

fn ends(source: &str) -> Result<String, Error> {
    let now = || chrono::DateTime::UNIX_EPOCH.naive_utc();
    Jinja::parse(source, now).and_then(|jinja| jinja.render_within(Value::UNDEFINED, budget::MOST / PART))
}

fn is_refused(source: &str) {
    let told = ends(source);
    assert!(told.is_err(), "{}: {:?}", source.chars().take(200).collect::<String>(), told.map(|text| text.len()));
}

/// A name that changes in a loop.
fn looped(start: &str, step: &str) -> String {
    format!("{{% set n = namespace(x={start}, i=0) %}}{{% for i in range(99999) %}}{{% for j in range(99999) %}}{step}{{% endfor %}}{{% endfor %}}")
}

fn set(start: &str, value: &str) -> String {
    looped(start, &format!("{{% set n.x = {value} %}}"))
}

#[test]
fn captured_texts_do_not_double() {
    for body in [
        "{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}",
        "{% set y %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = y %}",
        "{% set n.x %}{% filter upper %}{{ n.x }}{{ n.x }}{% endfilter %}{% endset %}",
        "{% set n.x %}{% call m() %}{{ n.x }}{{ n.x }}{% endcall %}{% endset %}",
        "{% set n.x %}{{ w(n.x) }}{{ w(n.x) }}{% endset %}",
    ] {
        let macros = "{% macro m() %}{{ caller() }}{% endmacro %}{% macro w(x) %}{{ x }}{% endmacro %}";
        is_refused(&format!("{macros}{}", looped("'aaaaaaaa'", body)));
    }
    let long = "a".repeat(16 << 10);
    is_refused(&looped("1", &format!("{{% set n.x %}}{long}{{% endset %}}")));
    is_refused(&format!("{{% set x %}}{}{{% endset %}}", looped("1", &long)));
    is_refused(&format!("{{% set x %}}{}{{% endset %}}", looped("1", &" ".repeat(16 << 10))));
    is_refused(&format!("{{% set x %}}{}{{% endset %}}", looped("1", &format!("{{% raw %}}{long}{{% endraw %}}"))));
}

#[test]
fn macros_do_not_call_themselves_for_ever() {
    for body in ["m(k-1) ~ m(k-1)", "m(k-1)", "m(k-1) + m(k-1)"] {
        let text = "{% macro m(k) %}some text{% if k > 0 %}{{ BODY }}{{ m(k-1) }}{% endif %}{% endmacro %}{{ m(100) }}";
        is_refused(&text.replace("BODY", body));
    }
    is_refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
    is_refused(&looped("1", "{% macro m() %}{{ n.x }}{% endmacro %}{% set n.x = m %}"));
    is_refused(&format!(
        "{{% macro m() %}}{{% macro k() %}}{{% endmacro %}}{{% endmacro %}}{}",
        looped("1", "{% macro a() %}{% endmacro %}{{ m() }}")
    ));
}

#[test]
fn deep_values_are_refused() {
    let brackets = |of: &str| format!("{}{of}{}", "[".repeat(60), "]".repeat(60));
    for value in [
        "[n.x]",
        "{'a': n.x}",
        "(n.x,)",
        "[n.x] + []",
        "[[n.x]] * 1",
        "dict(a=n.x)",
        "[n.x]|batch(1)|list",
        "n.x|batch(1)|list",
        "n.x|slice(1)|list",
        "{'a': n.x}.items()",
        "{'a': n.x}|items",
        "{'a': n.x}|dictsort",
        "cycler(n.x)",
        "[n.x, 1] if i else [n.x]",
        "n.x, 1",
        "namespace(p=n.x)",
        "namespace(p=n)",
        "n",
        "[n]",
        "loop",
        "[loop]",
        "''|default(n, true)",
        &brackets("n.x"),
        "[1]|map('default', [n.x], true)|list",
        "[{}]|map(attribute='a', default=[n.x])|list",
        "[n.x, n.x]",
        "[n.x]|groupby('a')",
        "[{'a': n.x}]|groupby('a')",
    ] {
        is_refused(&set("[]", value));
    }
    // As deep as macros go.
    let _ = ends(&format!(
        "{{% macro m(x, k) %}}{{% if k > 0 %}}{{{{ m({}, k-1) }}}}{{% endif %}}{{{{ x == x }}}}{{% endmacro %}}{{{{ m([], 110) }}}}",
        brackets("x")
    ));
    is_refused("{% for x in [[1]] recursive %}{{ loop([[x]]) }}{% endfor %}");
    is_refused(&looped("1", "{% set n.x | default(n, true) %}{% endset %}"));
    for value in ["n.x[1:]", "n.x[:]", "n.x[::-1]", "n.x * 1", "n.x|reverse", "n.x|select", "n.x + []", "n.x|unique"] {
        let _ = ends(&set("range(50)", value));
    }
    assert!(rendered("{% include 'chat' %}", Value::UNDEFINED).is_err());
    assert!(rendered("{% import 'chat' as m %}", Value::UNDEFINED).is_err());
}

#[test]
fn long_texts_are_not_read_for_ever() {
    let start = "('a' * 9000000)";
    for step in [
        "{% set y = n.x|upper %}",
        "{% set y = n.x|lower %}",
        "{% set y = n.x|title %}",
        "{% set y = n.x|capitalize %}",
        "{% set y = n.x|trim %}",
        "{% set y = n.x|length %}",
        "{% set y = n.x|wordcount %}",
        "{% set y = n.x|string %}",
        "{% set y = n.x|safe %}",
        "{% set y = n.x|escape %}",
        "{% set y = n.x|forceescape %}",
        "{% set y = n.x|reverse %}",
        "{% set y = n.x|first %}",
        "{% set y = n.x|last %}",
        "{% set y = n.x|int %}",
        "{% set y = n.x|float %}",
        "{% set y = n.x|indent %}",
        "{% set y = n.x|center(9000001) %}",
        "{% set y = n.x|truncate(8999999) %}",
        "{% set y = n.x|urlencode %}",
        "{% set y = n.x|tojson %}",
        "{% set y = n.x|format(1) %}",
        "{% set y = n.x|replace('b', 'c') %}",
        "{% set y = n.x|default(1) %}",
        "{% set y = n.x|list %}",
        "{% set y = n.x|sort %}",
        "{% set y = n.x|unique %}",
        "{% set y = n.x|join %}",
        "{% set y = n.x|min %}",
        "{% set y = n.x|map('upper')|list %}",
        "{% set y = n.x|batch(1) %}",
        "{% set y = n.x|slice(1) %}",
        "{% set y = n.x|select|list %}",
        "{% set y = n.x|groupby('a') %}",
        "{% set y = n.x|sum %}",
        "{% set y = n.x|attr('a') %}",
        "{% set y = n.x ~ 1 %}",
        "{% set y = n.x + 'a' %}",
        "{% set y = n.x * 1 %}",
        "{% set y = n.x % 1 %}",
        "{% set y = n.x[1:] %}",
        "{% set y = {'a': 1}.get(n.x) %}",
        "{% if n.x is lower %}{% endif %}",
        "{% if n.x is upper %}{% endif %}",
        "{% if n.x is startingwith n.x %}{% endif %}",
        "{% if n.x is endingwith n.x %}{% endif %}",
        "{% if n.x is in n.x %}{% endif %}",
        "{% if n.x is sameas n.x %}{% endif %}",
        "{% set y = n.x.upper() %}",
        "{% set y = n.x.strip() %}",
        "{% set y = n.x.split() %}",
        "{% set y = n.x.split('b') %}",
        "{% set y = n.x.split('a') %}",
        "{% set y = n.x.rsplit('a') %}",
        "{% set y = n.x.splitlines() %}",
        "{% set y = n.x.find('b') %}",
        "{% set y = n.x.count('a') %}",
        "{% set y = n.x.startswith('a', 1) %}",
        "{% set y = n.x.replace('a', 'b') %}",
        "{% set y = n.x.join('ab') %}",
        "{% set y = n.x.join(n.x) %}",
        "{% set y = n.x.title() %}",
        "{% set y = n.x.swapcase() %}",
        "{% set y = n.x.zfill(9000001) %}",
        "{% set y = n.x.ljust(9000001) %}",
        "{% set y = n.x.partition('b') %}",
        "{% set y = n.x.isdigit() %}",
        "{% set y = n.x.format(1) %}",
        "{% set y = '{0}{0}{0}'.format(n.x) %}",
        "{% set y = '{0}{0}{0}'.format([n.x]) %}",
        "{% set y = '%s%s%s' % (n.x, n.x, n.x) %}",
        "{% set y = '%(a)s' % {'a': [n.x]} %}",
        "{% set y = [n.x]|join(n.x) %}",
        "{% set y = [1]|tojson(indent=n.x) %}",
        "{% set y = [[1, [1]]]|tojson(separators=(n.x, n.x)) %}",
        "{% set y = strftime_now(n.x) %}",
        "{% set y = joiner(n.x)() %}{{ y }}",
        "{% set y = cycler(n.x).next() %}{{ y }}",
        "{{ raise_exception(n.x) }}",
        "{{ n.x }}",
        "{{ [n.x] }}",
    ] {
        is_refused(&looped(start, step));
    }
}

#[test]
fn lists_do_not_grow_and_are_not_read_for_ever() {
    let start = "(range(99999)|list)";
    for step in [
        "{% set n.x = n.x + [i] %}",
        "{% set n.x = [i] + n.x %}",
        "{% set n.x = n.x + n.x %}",
        "{% set n.x = n.x * 2 %}",
        "{% set n.x = n.x|list + n.x|list %}",
        "{% set y = n.x|sort %}",
        "{% set y = n.x|sort(reverse=true) %}",
        "{% set y = n.x|unique %}",
        "{% set y = n.x|join %}",
        "{% set y = n.x|sum %}",
        "{% set y = n.x|min %}",
        "{% set y = n.x|max %}",
        "{% set y = n.x|first %}{% set y = n.x|list %}",
        "{% set y = n.x|reverse %}",
        "{% set y = n.x|map('string')|list %}",
        "{% set y = n.x|select('eq', 1)|list %}",
        "{% set y = n.x|reject('in', n.x)|list %}",
        "{% set y = n.x|selectattr('a')|list %}",
        "{% set y = n.x|batch(2) %}",
        "{% set y = n.x|slice(2) %}",
        "{% set y = n.x|groupby('a') %}",
        "{% set y = n.x|tojson %}",
        "{% set y = n.x|string %}",
        "{% set y = n.x|length %}",
        "{% set y = n.x[1:] %}",
        "{% set y = n.x|last %}",
        "{% set y = n.x.count(1) %}",
        "{% set y = n.x.index(99998) %}",
        "{% set y = n.x.copy() %}",
        "{% set y = dict([[i, i]]) %}{% set y = n.x + [y] %}",
        "{% if -1 is in n.x %}{% endif %}",
        "{% set y = cycler(*n.x) %}",
        "{% set y = [n.x]|join %}",
        "{{ n.x }}",
        "{% set y = [[n.x] * 1000] * 1000 %}{{ y }}",
        "{% set y = [n.x] * 100000 %}{{ y == n.x }}",
    ] {
        is_refused(&looped(start, step));
    }
    for source in [
        "{{ ([1] * 1000000000)|list }}",
        "{{ ([1] * 1000000000)|length }}",
        "{{ [[1] * 1000] * 1000000 }}",
        "{% set x = ['a' * 16000000] * 1000 %}{{ x }}",
        "{% set n = namespace(x=[]) %}{% for i in range(1000) %}{% set n.x = n.x + ['a' * 16000000] %}{% endfor %}",
        "{% set n = namespace(x={}) %}{% for i in range(99999) %}{% set n.x = dict(n.x.items()|list + [[i, i]]) %}{% endfor %}",
        "{{ ('a' * 100000000) }}",
        "{{ debug() }}",
    ] {
        is_refused(source);
    }
}

#[test]
fn deep_sources_are_refused_or_read() {
    let many = |part: &str, count: usize| part.repeat(count);
    for source in [
        format!("{{{{ {}1{} }}}}", many("(", 100_000), many(")", 100_000)),
        format!("{{{{ {}1{} }}}}", many("[", 100_000), many("]", 100_000)),
        format!("{{{{ {}1{} }}}}", many("{1:", 60_000), many("}", 60_000)),
        format!("{{{{ {}1 }}}}", many("-", 200_000)),
        format!("{{{{ {}x }}}}", many("not ", 60_000)),
        format!("{{{{ a{} }}}}", many(".b", 100_000)),
        format!("{{{{ a{} }}}}", many("[0]", 50_000)),
        format!("{{{{ a{} }}}}", many("[x]", 50_000)),
        format!("{{{{ a{} }}}}", many("[:]", 50_000)),
        format!("{{{{ a{} }}}}", many("()", 100_000)),
        format!("{{{{ a{} }}}}", many("|d", 100_000)),
        format!("{{{{ a{} }}}}", many(" is defined", 20_000)),
        format!("{{{{ 1{} }}}}", many("+1", 100_000)),
        format!("{{{{ 1{} }}}}", many("*1", 50_000)),
        format!("{{{{ 1{} }}}}", many("**1", 50_000)),
        format!("{{{{ 1{} }}}}", many("-1", 100_000)),
        format!("{{{{ 1{} }}}}", many("/1", 100_000)),
        format!("{{{{ 1{} }}}}", many("%1", 50_000)),
        format!("{{{{ 1{} }}}}", many("~1", 100_000)),
        format!("{{{{ 1{} }}}}", many("<1", 100_000)),
        format!("{{{{ x{} }}}}", many(" and x", 40_000)),
        format!("{{{{ x{} }}}}", many(" in x", 40_000)),
        format!("{{{{ x{} }}}}", many(" if x else x", 20_000)),
        format!("{{% if x %}}{}{{% endif %}}", many("{% elif x %}", 20_000)),
        many("{% if x %}", 20_000),
        format!("{}{}", many("{% if x %}", 10_000), many("{% endif %}", 10_000)),
        many("{% for x in y %}", 15_000),
        many("{{ x }}", 36_000),
        many("{", 200_000),
        many("{#", 100_000),
        many("{% raw %}", 25_000),
        "a".repeat(300_000),
    ] {
        let _ = ends(&source);
    }
}

#[test]
fn a_long_conversation_is_written() {
    let template = "{%- macro kind(of) %}{{ of.type }}{% if of.items %}[{{ kind(of['items']) }}]{% endif %}{% endmacro -%}
{{- bos_token }}{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content']|trim %}{%- set loop_messages = messages[1:] %}{%- else %}{%- set system = '' %}{%- set loop_messages = messages %}{%- endif %}
{%- if tools %}{{- '# Tools\\n' }}You may call one or more functions to assist with the user query. You are provided with function signatures within <tools></tools> XML tags, and for each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags, as a long text of the model's makers tells.
{%- for tool in tools %}{%- if tool.type == 'function' and tool.function is mapping %}{{ tool|tojson }}{%- for name, of in tool.function.parameters.properties.items() %}{{ name }}: {{ kind(of) }}{% if name in tool.function.parameters.required %} (required){% endif %}{%- endfor %}{%- endif %}{%- endfor %}{%- endif %}
{%- set ns = namespace(last=0, seen=[], index=0) %}
{%- for m in loop_messages[::-1] %}{%- set index = (loop_messages|length - 1) - loop.index0 %}{%- if m.role == 'user' and ns.last == 0 %}{%- set ns.last = index %}{%- endif %}{%- endfor %}
{%- for m in loop_messages %}{%- set content = m.content if m.content is string else '' %}
{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
{%- set ns.seen = ns.seen + [m.role] %}
{%- if loop.previtem and loop.previtem.role == m.role %}{{- '\\n' }}{%- endif %}
{%- if (messages|selectattr('role', 'equalto', 'system')|list)|length > 9 %}{{ raise_exception('no') }}{% endif %}
{{- '<|im_start|>' + m['role'] + '\\n' + content|trim + '<|im_end|>' ~ '\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";
    let property = serde_json::json!({"type": "array", "description": "what it is", "items": {"type": "string"}});
    let properties: serde_json::Map<_, _> = (0..20).map(|at| (format!("p{at}"), property.clone())).collect();
    let parameters = serde_json::json!({"type": "object", "properties": properties, "required": ["p1", "p2"]});
    let tool = |at: usize| serde_json::json!({"type": "function", "function": {"name": format!("f{at}"), "parameters": parameters}});
    let said = "<think> thoughts </think>".to_owned() + &"a word and more of them ".repeat(80);
    let names = |messages: usize, tools: usize| {
        let role = |at: usize| if at.is_multiple_of(2) { "user" } else { "assistant" };
        let messages: Vec<_> = (0..messages).map(|at| serde_json::json!({"role": role(at), "content": said})).collect();
        let tools: Vec<_> = (0..tools).map(tool).collect();
        let names = serde_json::json!({"messages": messages, "tools": tools, "bos_token": "<s>", "add_generation_prompt": true});
        of_json(&Value::from_serialize(names))
    };
    let told = rendered(template, names(2000, 100)).expect("it is written");
    assert!(told.len() > 2000 * 1000 && told.contains("as a long text of the model's makers tells."), "{}", told.len());
}

#[test]
fn texts_between_tags_stay_as_they_are() {
    let long = "a \"quoted\" \\n {b} } text ".repeat(20);
    for (source, wanted) in [
        (format!("{{%- if true %}}\n  {long}\n  {{% endif %}}\n{long}"), format!("  {long}\n{long}")),
        (format!("{{% if true -%}}\n {long} \n{{%- endif %}}{long}\n"), format!("{}{long}", long.trim_end())),
        (format!("é{long}é"), format!("é{long}é")),
        (format!("{{# c #}}\n{long}{{# c -#}}\n b"), format!("{long}b")),
    ] {
        assert_eq!(rendered(&source, Value::UNDEFINED).ok(), Some(wanted), "{source}");
    }
}
