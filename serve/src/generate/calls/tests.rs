//! Calls of all forms, in pieces of all sizes.

use opara_models::decoder::{CallForm, CallId};
use serde_json::{json, Value};

use super::syntaxes::{acted, identified, lone, marked, numbered, object_form, quoted, syntax, tagged};
use super::*;

fn tools() -> Vec<Tool> {
    let parameters = json!({"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}});
    let tool = |name: &str| Tool { name: name.into(), parameters: Some(parameters.clone()) };
    vec![tool("weather"), tool("weather_now")]
}

fn listed() -> CallSyntax {
    syntax("[TOOL_CALLS] [", Some(", "), "]", object_form("arguments"))
}

fn named() -> CallSyntax {
    let form = CallForm::Named { id: CallId::None, middle: "\n```json\n".into() };
    syntax("<calls><call>function<sep>", Some("\n```</call>\n<call>function<sep>"), "\n```</call></calls>", form)
}

fn with_ids() -> CallSyntax {
    let form = CallForm::Named { id: CallId::Behind("[CALL_ID]".into()), middle: "[ARGS]".into() };
    syntax("[TOOL_CALLS]", Some("[TOOL_CALLS]"), "", form)
}

fn python() -> CallSyntax {
    syntax("<calls>[", Some(", "), "]</calls>", CallForm::Python)
}

fn lines() -> CallSyntax {
    syntax("<calls>", Some("\n"), "</calls>", CallForm::Python)
}

/// A text in pieces of random sizes.
fn pieces(text: &str, most: usize, seed: u64) -> Vec<String> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut letters, mut pieces) = (text.chars().peekable(), Vec::new());
    while letters.peek().is_some() {
        pieces.push(letters.by_ref().take(rng.usize(1..=most)).collect());
    }
    pieces
}

fn joined(found: Vec<Found>) -> (String, Vec<(String, String)>) {
    let (mut told, mut called) = (String::new(), Vec::new());
    for found in found {
        match found {
            Found::Text(text) => told += &text,
            Found::Call(call) => called.push((call.name, String::new())),
            Found::Arguments(piece) => called.last_mut().expect("a call comes first").1 += &piece,
        }
    }
    (told, called)
}

/// The text beside calls, and the calls, from pieces of `most` letters.
fn read(syntax: &CallSyntax, text: &str, most: usize, seed: u64) -> (String, Vec<(String, String)>) {
    let mut calls = Calls::new(syntax.clone(), tools());
    let mut found: Vec<Found> = pieces(text, most, seed).iter().flat_map(|piece| calls.push(piece)).collect();
    found.extend(calls.rest());
    joined(found)
}

#[test]
fn calls_are_found_however_the_text_comes() {
    let oslo = || ("weather".to_owned(), json!({"city": "Oslo", "days": 2}));
    let now = || ("weather_now".to_owned(), json!({"city": "Rome }"}));
    let empty = || ("weather".to_owned(), json!({}));
    let one = r#"{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}"#;
    let other = r#"{"name": "weather_now", "arguments": {"city": "Rome }"}}"#;
    for (syntax, text, told, expected) in [
        (tagged(), format!("<tool_call>\n{one}\n</tool_call>"), "", vec![oslo()]),
        (tagged(), format!("Let me see.\n\n<tool_call>{one}</tool_call>\n<tool_call>\n{other}\n</tool_call>\n"), "Let me see.", vec![oslo(), now()]),
        (tagged(), format!("<tool_call>\n{one}\n</tool_call> done"), " done", vec![oslo()]),
        // The end of the turn came before the mark.
        (tagged(), format!("<tool_call>\n{one}"), "", vec![oslo()]),
        (tagged(), "<tool_call>\n{\"name\": \"weather\"}\n</tool_call>".into(), "", vec![empty()]),
        (lone(), one.replace("arguments", "parameters"), "", vec![oslo()]),
        (lone(), format!(" {}", other.replace("arguments", "parameters")), "", vec![now()]),
        (listed(), format!("[TOOL_CALLS] [{one}, {other}]"), "", vec![oslo(), now()]),
        (listed(), format!("[TOOL_CALLS][{one}]"), "", vec![oslo()]),
        (
            named(),
            "<calls><call>function<sep>weather\n```json\n{\"city\": \"Oslo\", \"days\": 2}\n```</call>\n<call>function<sep>weather_now\n```json\n{\"city\": \"Rome }\"}\n```</call></calls>".into(),
            "",
            vec![oslo(), now()],
        ),
        (
            with_ids(),
            "Now:[TOOL_CALLS]weather[CALL_ID]a1B2c3D4e[ARGS]{\"city\": \"Oslo\", \"days\": 2}[TOOL_CALLS]weather_now[CALL_ID]x[ARGS] {\"city\": \"Rome }\"}".into(),
            "Now:",
            vec![oslo(), now()],
        ),
        (
            identified(),
            "So: <calls><call>functions.weather:0<args>{\"city\": \"Oslo\", \"days\": 2}</call><call>functions.weather_now:1<args>{\"city\": \"Rome }\"}</call></calls>".into(),
            "So:",
            vec![oslo(), now()],
        ),
        // The word before the name and the number behind it may be missing.
        (identified(), "<calls><call> weather<args>{}</call>\n<call>a.weather:12 <args>{}".into(), "", vec![empty(), empty()]),
        (
            numbered(),
            "<calls><call>functions.weather:0<args>{\"city\": \"Oslo\", \"days\": 2}</call><call>functions.weather_now:1<args>{\"city\": \"Rome }\"}</call></calls>".into(),
            "",
            vec![oslo(), now()],
        ),
        (
            acted(),
            "<action>[\n    {\"id\": \"0\", \"tool_name\": \"weather\", \"parameters\": {\"city\": \"Oslo\", \"days\": 2}},\n    {\"id\": \"1\", \"tool_name\": \"weather_now\", \"parameters\": {\"city\": \"Rome }\"}}\n]</action>".into(),
            "",
            vec![oslo(), now()],
        ),
        (acted(), "<action>[{\"tool_name\": \"weather\", \"parameters\": {}}]</action>".into(), "", vec![empty()]),
        (
            python(),
            "So: <calls>[weather(city='Oslo', days = 2), weather_now(city=\"Rome }\"), weather( )]</calls>".into(),
            "So:",
            vec![oslo(), now(), empty()],
        ),
        (lines(), "<calls>weather(city=\"Oslo\",\n  days=2,)\nweather_now(city='Rome }')\n</calls>".into(), "", vec![oslo(), now()]),
        // Literals that are none are texts.
        (lines(), "<calls>weather(city=Oslo, days=2)".into(), "", vec![oslo()]),
        (
            marked(),
            "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>".into(),
            "",
            vec![oslo()],
        ),
        (
            marked(),
            "So:\n<tool_call>\n<function=weather_now>\n<parameter=city>\nRome }\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=weather>\n</function>\n</tool_call>".into(),
            "So:",
            vec![now(), empty()],
        ),
        (
            quoted(),
            "So: <call>call:weather{city:<|\"|>Oslo<|\"|>, days:2}</call><call>call:weather_now{city:<|\"|>Rome }<|\"|>}</call><call>call:weather{}</call>".into(),
            "So:",
            vec![oslo(), now(), empty()],
        ),
        // As JSON has them, too.
        (quoted(), "<call>call:weather{\"city\": \"Oslo\", <|\"|>days<|\"|>:2,}</call>".into(), "", vec![oslo()]),
        // A word that is no JSON is a text, and a name without a value has null.
        (
            quoted(),
            "<call>call:weather{city:Oslo,days:[1,[],<|\"|>a\n\"b\"<|\"|>,{a:True,b:{}}],more:}</call>".into(),
            "",
            vec![("weather".into(), json!({"city": "Oslo", "days": [1, [], "a\n\"b\"", {"a": true, "b": {}}], "more": null}))],
        ),
        (quoted(), "<call>call:weather{days:[2 3".into(), "", vec![("weather".into(), Value::Null)]),
        // A letter that does not belong there ends a call.
        (quoted(), "<call>call:weather{days:[{a}]} b".into(), "a}]} b", vec![("weather".into(), json!({"days": [{}]}))]),
    ] {
        let mut calls = Calls::new(syntax.clone(), tools());
        let found = [calls.push(&text), calls.rest()].concat();
        let whole = joined(found);
        let parsed = |arguments: &String| serde_json::from_str::<Value>(arguments).unwrap_or_default();
        let calls: Vec<_> = whole.1.iter().map(|(name, arguments)| (name.clone(), parsed(arguments))).collect();
        assert_eq!((whole.0.as_str(), calls), (told, expected), "{text:?}");
        for seed in 0..60 {
            assert_eq!(read(&syntax, &text, 6, seed), whole, "{text:?}, seed {seed}");
        }
    }
}

#[test]
fn arguments_are_told_as_they_come() {
    let object = |arguments: &str| format!("{{\"name\": \"weather\", \"arguments\": {arguments}");
    let of_marks = |value: &str| format!("<tool_call>\n<function=weather>\n<parameter=city>\n{value}");
    for (syntax, text, expected) in [
        (tagged(), format!("<tool_call>\n{}", object("{\"city\": \"Os")), "{\"city\": \"Os"),
        (tagged(), format!("<tool_call>\n{}", object("\"{\\\"city\\\": \\\"Os")), "{\"city\": \"Os"),
        (tagged(), format!("<tool_call>\n{}", object("{\"days\": 2}, \"id\": \"}")), "{\"days\": 2}"),
        (lone(), object("{\"city\": \"Os").replace("arguments", "parameters"), "{\"city\": \"Os"),
        (listed(), format!("[TOOL_CALLS] [{}", object("{")), "{"),
        (named(), "<calls><call>function<sep>weather\n```json\n{\"city\": ".into(), "{\"city\": "),
        (with_ids(), "[TOOL_CALLS]weather[CALL_ID]abc[ARGS]{\"city\": \"O".into(), "{\"city\": \"O"),
        (identified(), "<calls><call>functions.weather:0<args>{\"city\": \"O".into(), "{\"city\": \"O"),
        (acted(), "<action>[{\"id\": \"0\", \"tool_name\": \"weather\", \"parameters\": {\"c".into(), "{\"c"),
        (python(), "<calls>[weather(city='a, b)', days=[1, (2".into(), "{\"city\":\"a, b)\",\"days\":"),
        (quoted(), "<call>call:weather{city:<|\"|>Os<|".into(), "{\"city\":\"Os"),
        (quoted(), "<call>call:weather{days:[1,".into(), "{\"days\":[1"),
        (marked(), of_marks("Os"), "{\"city\":\"Os"),
        // What may be the mark behind the value is held back.
        (marked(), of_marks("Oslo \"city\"\n\n</para"), "{\"city\":\"Oslo \\\"city\\\"\\n"),
        (marked(), of_marks("Oslo\n</parameter>\n<parameter=days>\n2"), "{\"city\":\"Oslo\",\"days\":"),
    ] {
        for seed in 0..60 {
            let mut calls = Calls::new(syntax.clone(), tools());
            let found = pieces(&text, 6, seed).iter().flat_map(|piece| calls.push(piece)).collect();
            assert_eq!(joined(found), (String::new(), vec![("weather".into(), expected.into())]), "{text:?}");
        }
    }
}

#[test]
fn a_call_that_is_none_does_not_hide_the_next_one() {
    let call = r#"<tool_call>{"name": "weather", "arguments": {}}</tool_call>"#;
    let other = r#"<tool_call>{"name": "other"}</tool_call>"#;
    for (text, told, calls) in [
        (format!("a <tool_call> is a mark: {call}"), "a <tool_call> is a mark:", 1),
        (format!("{other}{call}"), other, 1),
        (format!("{call}{other}{call}"), other, 2),
    ] {
        for seed in 0..60 {
            let (text, found) = read(&tagged(), &text, 1 + seed as usize, seed);
            assert_eq!((text.as_str(), found.len()), (told, calls));
        }
    }
}

#[test]
fn what_is_no_call_is_text() {
    for (syntax, text) in [
        (tagged(), "no call at all"),
        (tagged(), "a <tool_call> is a mark"),
        (tagged(), "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>"),
        (tagged(), "<tool_call>\n{\"name\": \"weather\", \"argum"),
        (tagged(), "one < two <tool"),
        (lone(), "{\"answer\": 42} is no call"),
        (lone(), "It is {\"name\": \"weather\", \"parameters\": {}}"),
        (lone(), "{ not JSON }"),
        (named(), "<calls><call>function<sep>nothing\n```json\n{}\n```</call></calls>"),
        (marked(), "<tool_call>\n<function=nothing>\n</function>\n</tool_call>"),
        (with_ids(), "[TOOL_CALLS]weather[CALL_ID]an id[ARGS]{}"),
        (identified(), "<calls><call>functions.nothing:0<args>{}</call></calls>"),
        (identified(), "<calls><call>functions.weather:a<args>{}</call></calls>"),
        (identified(), "<calls><call>rainweather:0<args>{}</call></calls>"),
        (identified(), "<calls><call>functions.weather:0"),
        (identified(), "<calls><call>functions.weather:0<args>[]"),
        (numbered(), "<calls><call>functions.weather<args>{}</call></calls>"),
        (python(), "<calls>[nothing(city='Oslo')]</calls>"),
        (python(), "a list <calls>[1, 2]"),
    ] {
        for seed in 0..60 {
            assert_eq!(read(&syntax, text, 6, seed), (text.to_owned(), Vec::new()), "seed {seed}");
        }
    }
}

/// What a template writes back is the id alone. Other ids are of no use to it.
#[test]
fn an_id_that_the_name_is_part_of_is_told() {
    let text = "<calls><call>functions.weather_now:12<args>{}</call><call>weather<args>{}</call></calls>";
    let call = |name: &str, id: Option<&str>| Call { name: name.into(), id: id.map(str::to_owned) };
    let own = call("weather_now", Some("functions.weather_now:12"));
    for (syntax, text, expected) in [
        (identified(), text, vec![own, call("weather", Some("weather"))]),
        (numbered(), "<calls><call>functions.weather:0<args>{}</call></calls>", vec![call("weather", None)]),
        (with_ids(), "[TOOL_CALLS]weather[CALL_ID]a1B2c3D4e[ARGS]{}", vec![call("weather", None)]),
    ] {
        for seed in 0..60 {
            let mut calls = Calls::new(syntax.clone(), tools());
            let found = pieces(text, 6, seed).iter().flat_map(|piece| calls.push(piece)).collect::<Vec<_>>();
            let called = found.into_iter().filter_map(|found| match found {
                Found::Call(call) => Some(call),
                _ => None,
            });
            assert_eq!(called.collect::<Vec<_>>(), expected, "{text}");
        }
    }
}
