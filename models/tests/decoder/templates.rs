//! What a conversation says reaches the chat template.

use opara_models::decoder::{CallForm, CallId, Conversation, Message, PromptEnd, Text, Value};
use serde_json::json;

use super::text::said_by_user;
use super::*;

/// A tokenizer whose tokens are of no interest, with files beside it.
fn text(files: &[(&str, &str)]) -> Text {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, r#"{"version": "1.0", "model": {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}}"#)
        .expect("a file");
    for (name, content) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, content).expect("a file");
    }
    Text::beside(&path).expect("a tokenizer")
}

fn of(template: &str) -> Text {
    text(&[("chat_template.jinja", template)])
}

fn conversation(messages: serde_json::Value) -> Conversation {
    serde_json::from_str::<Vec<Message>>(&messages.to_string()).expect("messages").into()
}

fn prompt(text: &Text, conversation: &Conversation) -> String {
    text.prompt(conversation).expect("a prompt")
}

#[test]
fn every_field_of_a_message_and_every_name_is_read_in_its_order() {
    let all = of("{% for m in messages %}{{ m | tojson }}{% endfor %}|{{ enable_thinking }}|{{ tools is none }}{{ add_generation_prompt }}");
    let fields = r#"[{"role": "assistant", "content": "x", "tool_calls": [{"id": "b", "function": {"z": 1, "a": 1.0}}],
                      "name": "n", "reasoning_content": "r", "any": {"z": null, "a": [true]}}]"#;
    let messages: Vec<Message> = serde_json::from_str(fields).expect("messages");
    let names = [("enable_thinking".to_owned(), Value::from(false))].into();
    let written = prompt(&all, &Conversation { messages, names, end: PromptEnd::Turn });
    let expected = r#"{"role": "assistant", "content": "x", "tool_calls": [{"id": "b", "function": {"z": 1, "a": 1.0}}], "name": "n", "reasoning_content": "r", "any": {"z": null, "a": [true]}}|False|TrueFalse"#;
    assert_eq!(written, expected);
    for (message, expected) in [
        (json!({"content": "x"}), "missing field `role`"),
        (json!({"role": 1}), "the role of a message is a string"),
        (json!({"role": "user", "content": 7}), "`content` is a string or a list of parts"),
        (json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}), "\"image_url\""),
        (json!({"role": "user", "content": [{"type": "text"}]}), "without `text`"),
        (json!("user"), "a message is an object"),
    ] {
        let refused = serde_json::from_value::<Message>(message.clone());
        assert!(told(refused).contains(expected), "{message}");
    }
}

#[test]
fn content_is_given_as_the_template_reads_it() {
    let parts = conversation(
        json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]),
    );
    let both = of("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}{% endfor %}");
    assert_eq!(prompt(&both, &parts), "[a][b]");
    assert_eq!(prompt(&both, &said_by_user("a")), "a");
    // Texts alone, parts alone.
    let texts = of("{% for m in messages %}{{ m.content }}{% endfor %}");
    assert_eq!(prompt(&texts, &parts), "a\nb");
    let lists = of("{% for m in messages %}{% for p in m.content %}[{{ p['text'] }}]{% endfor %}{% endfor %}");
    assert_eq!(prompt(&lists, &said_by_user("a")), "[a]");
    assert_eq!(prompt(&lists, &parts), "[a][b]");
}

#[test]
fn no_content_is_null_beside_calls_and_empty_elsewhere() {
    let call = json!([{"type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": "x"}}}]);
    let calls = conversation(
        json!([{"role": "user", "content": null}, {"role": "assistant", "content": null, "tool_calls": call}]),
    );
    let reads =
        of("{% for m in messages %}{% if m.content is none %}-{% else %}[{{ m.content }}]{% endif %}{% endfor %}");
    assert_eq!(prompt(&reads, &calls), "[]-");
    let of_none = of(
        "None? {% for m in messages %}{% if m.content is none %}-{% else %}[{{ m.content }}]{% endif %}{% endfor %}",
    );
    assert_eq!(prompt(&of_none, &calls), "None? []-");
    // A template that writes it as it is gets an empty text.
    let writes = of("{% for m in messages %}[{{ m.content }}]{% endfor %}");
    assert_eq!(prompt(&writes, &calls), "[][]");
}

/// Arguments of calls are objects, which some templates add to texts.
#[test]
fn arguments_are_given_as_the_template_reads_them() {
    let line = |arguments: &str| {
        format!(
            "{{% for m in messages %}}{{{{ m.role + ': ' + m.content }}}}{{% for c in m.tool_calls or [] %}}{{{{ '<call>' + c.function.name + '\n' + {arguments} + '</call>' }}}}{{% endfor %}}{{% endfor %}}"
        )
    };
    let call =
        json!({"id": "a", "type": "function", "function": {"name": "f", "arguments": {"city": "Øy", "days": [1, 2]}}});
    let turns = conversation(json!([{"role": "assistant", "content": "", "tool_calls": [call]}]));
    let turns = Conversation { end: PromptEnd::Turn, ..turns };
    for arguments in ["c.function.arguments", "c.function.arguments | tojson"] {
        let text = of(&line(arguments));
        let expected = "assistant: <call>f\n{\"city\": \"Øy\", \"days\": [1, 2]}</call>";
        assert_eq!(prompt(&text, &turns), expected, "{arguments}");
        let calls = text.syntax(true).and_then(|syntax| syntax.calls.clone()).expect("it writes calls");
        assert_eq!(calls.form, CallForm::Named { id: CallId::None, middle: "\n".into() });
    }
}

#[test]
fn templates_have_names_and_places() {
    let tools: Conversation =
        Conversation { names: [("tools".to_owned(), Value::from(vec!["t"]))].into(), ..said_by_user("x") };
    let several = r#"{"bos_token": "<b>", "chat_template": [{"name": "default", "template": "{{ bos_token }}d"},
        {"name": "tool_use", "template": "{{ tools | length }}t"}, {"name": "rag", "template": "{{"}]}"#;
    let named = text(&[
        ("tokenizer_config.json", several),
        ("special_tokens_map.json", r#"{"eos_token": "<e>", "bos_token": "<x>"}"#),
    ]);
    assert_eq!([prompt(&named, &said_by_user("x")), prompt(&named, &tools)], ["<b>d", "1t"]);
    let files = text(&[
        ("tokenizer_config.json", several),
        ("special_tokens_map.json", r#"{"eos_token": {"content": "<e>"}}"#),
        ("chat_template.jinja", "{{ eos_token }}f"),
        ("additional_chat_templates/tool_use.jinja", "{{ tools }}u"),
    ]);
    assert_eq!([prompt(&files, &said_by_user("x")), prompt(&files, &tools)], ["<e>f", "['t']u"]);
    let only = text(&[("additional_chat_templates/tool_use.jinja", "{{ tools }}u")]);
    assert!(told(only.prompt(&said_by_user("x"))).contains("no chat template of the name `default`"));
    // What is given and not read is refused.
    for name in ["tools", "documents"] {
        let given = Conversation { names: [(name.to_owned(), Value::from(vec!["t"]))].into(), ..said_by_user("x") };
        assert!(told(of("{{ messages }}").prompt(&given)).contains(&format!("does not read `{name}`")));
    }
}

#[test]
fn the_last_message_is_continued_where_its_text_ends() {
    let until = |template: &str, content: serde_json::Value| {
        let said = conversation(json!([{"role": "user", "content": "so"}, {"role": "assistant", "content": content}]));
        of(template).prompt(&Conversation { end: PromptEnd::Content, ..said })
    };
    let plain =
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}!{% endif %}";
    assert_eq!(until(plain, json!("so it ")).ok().as_deref(), Some("<user>so</><assistant>so it "));
    let trimmed = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}";
    assert_eq!(until(trimmed, json!(" so it ")).ok().as_deref(), Some("<user>so</><assistant>so it"));
    assert_eq!(until(plain, json!([{"type": "text", "text": "a"}])).ok().as_deref(), Some("<user>so</><assistant>a"));
    assert!(told(until(plain, json!(""))).contains("no text to be continued"));
    assert!(told(until("x", json!("so"))).contains("cannot be continued"));
}

#[test]
fn dates_are_those_of_the_clock() {
    let text = of("{{ strftime_now('%Y') }}{{ strftime_now('%d %b %Y') | length }}");
    let told = prompt(&text, &said_by_user("x"));
    assert!(told.starts_with("20") && told.ends_with("11"), "{told}");
    assert!(super::told(of("{{ strftime_now('%Q') }}").prompt(&said_by_user("x"))).contains("not a format of dates"));
}
