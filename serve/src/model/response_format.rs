//! The format that a text shall have, as a grammar of llguidance.

use opara_models::decoder::{CallForm, CallSyntax, Syntax, Text};
use serde_json::Value;

use super::call_grammar::calls;
use super::rules::{between_slashes, literal, Rules, ANY};
use super::{Failure, Result};
use crate::generate::Tool;

/// The format that a text shall have.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum ResponseFormat {
    /// Any.
    #[default]
    Any,
    /// JSON of this schema.
    Json(Value),
    /// A regular expression.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Calls of these tools.
    Calls {
        /// One of these each.
        of: Vec<Tool>,
        /// Whether there may be more than one call.
        are_several: bool,
        /// Whether there is nothing else. If not, any text may stand before the calls, and there need be none.
        is_all: bool,
    },
}

impl ResponseFormat {
    /// Its grammar, behind the end of the reasoning where the prompt is within it. `None` where any text will do.
    ///
    /// # Errors
    /// Calls, which the template of the model does not write, or whose arguments cannot be made to fit their schema.
    pub(super) fn grammar(&self, text: &Text, syntax: &Syntax, is_thinking: bool) -> Result<Option<String>> {
        let mut rules = Rules::new(text);
        let body = match (self, &syntax.calls) {
            (Self::Any, _) | (Self::Calls { is_all: false, .. }, None) => return Ok(None),
            (Self::Json(schema), _) => rules.json(schema, &Value::Null)?,
            (Self::Regex(regex), _) => format!("/{}/", between_slashes(regex)),
            (Self::Choice(texts), _) => {
                let texts: Vec<String> = texts.iter().map(|text| literal(text)).collect();
                format!("({})", texts.join(" | "))
            }
            (Self::Calls { is_all: true, .. }, None) => {
                let unknown =
                    "`tool_choice`: the model's chat template does not write calls in a form that is known here";
                return Err(Failure::invalid(unknown));
            }
            (Self::Calls { of, are_several, is_all }, Some(syntax)) => {
                let calls = calls(&mut rules, syntax, of, *are_several)?;
                match is_all {
                    true => format!("{} {calls}", rules.mark(&syntax.open)),
                    false => text_and(&mut rules, &calls, syntax)?,
                }
            }
        };
        let start = match &syntax.reasoning {
            Some((_, close)) if is_thinking => format!("{} {body}", thought(&mut rules, close)?),
            Some((open, close)) if matches!(self, Self::Calls { is_all: false, .. }) => {
                format!("({} {})? {body}", rules.mark(open), thought(&mut rules, close)?)
            }
            _ => body,
        };
        Ok(Some(rules.into_grammar(&start)))
    }
}

/// Reasoning, with its end and spaces behind that.
fn thought(rules: &mut Rules, close: &str) -> Result<String> {
    Ok(format!("{} /[ \\n]{{0,4}}/", rules.until(ANY, close)?))
}

/// Any text, and perhaps calls behind it: from the mark before them on, a text is calls.
fn text_and(rules: &mut Rules, calls: &str, syntax: &CallSyntax) -> Result<String> {
    let open = syntax.open.trim();
    if rules.is_special(open) {
        return Ok(format!("({} {calls} | /{ANY}/)", rules.until(ANY, open)?));
    }
    // The letters before the first space, since models may write other spaces.
    if let Some(first) = open.split_whitespace().next() {
        let (text, until) = (rules.without(first), rules.until(ANY, first)?);
        let rest = syntax.open.trim_start().strip_prefix(first).unwrap_or_default();
        return Ok(format!("({text} | {until} {} {calls})", rules.mark(rest)));
    }
    // A call without a mark is all of an answer: any other does not begin as one.
    match &syntax.form {
        CallForm::Object { .. } => Ok(format!("({calls} | /[ \\n]*[^{{ \\n]{ANY}/ | \"\")")),
        _ => Err(Failure::invalid(
            "`tools`: the model's calls have no mark, so none can be made to fit: leave out `strict`",
        )),
    }
}

#[cfg(test)]
mod tests {
    use opara_models::engine::Guidance;
    use serde_json::json;

    use super::super::grammar::Grammars;
    use super::*;
    use crate::generate::syntaxes::{acted, identified, lone, marked, numbered, quoted, tagged};

    fn of(calls: CallSyntax) -> Syntax {
        Syntax { calls: Some(calls), reasoning: None }
    }

    /// Tokens are bytes, and the byte 0 ends a text.
    struct Bytes(Text, Grammars);

    impl Bytes {
        fn new() -> Self {
            let text = Text::of_bytes().expect("bytes");
            let grammars = Grammars::new(&text, 256, &[0]).expect("a vocabulary");
            Self(text, grammars)
        }

        /// Whether a text of a format may end here; `None` where it is not of it.
        fn may_end(&self, format: &ResponseFormat, syntax: &Syntax, text: &str) -> Result<Option<bool>> {
            let grammar = format.grammar(&self.0, syntax, false)?.expect("not any text will do");
            let mut guide = self.1.guide(grammar)?;
            let has = |guidance: &Guidance, token: u8| match guidance {
                Guidance::Any => true,
                Guidance::Of(words) => (words[usize::from(token) / 32] >> (token % 32)) & 1 == 1,
                Guidance::End => false,
            };
            for token in text.bytes() {
                if !has(&guide.next().expect("a guide"), token) {
                    return Ok(None);
                }
                guide.take(token.into()).expect("it may come");
            }
            let next = guide.next().expect("a guide");
            Ok(Some(next == Guidance::End || has(&next, 0)))
        }
    }

    fn calls(tools: &[(&str, Value)], is_all: bool) -> ResponseFormat {
        let tool =
            |(name, parameters): &(&str, Value)| Tool { name: (*name).into(), parameters: Some(parameters.clone()) };
        ResponseFormat::Calls { of: tools.iter().map(tool).collect(), are_several: true, is_all }
    }

    #[test]
    fn text_goes_on_as_a_call_behind_the_mark() {
        let weather = json!({"type": "object", "required": ["city"], "additionalProperties": false, "properties": {
            "city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}});
        let format = calls(&[("weather", weather), ("stop", json!({"type": "object", "properties": {}}))], false);
        let bytes = Bytes::new();
        let call = |arguments: &str| format!("<tool_call>\n{{\"name\": \"weather\", \"arguments\": {arguments}");
        let parameter = |name: &str, value: &str| format!("<parameter={name}>\n{value}\n</parameter>\n");
        let function = |inner: &str| format!("<tool_call>\n<function=weather>\n{inner}");
        let [city, days, many] =
            [("city", "Oslo"), ("days", "2"), ("days", "12")].map(|(name, of)| parameter(name, of));
        let end = "</function>\n</tool_call>";
        for (syntax, text, expected) in [
            (of(tagged()), "It is warm.".to_owned(), Some(true)),
            (of(tagged()), "a <tool".into(), Some(true)),
            (of(tagged()), "a <tool_call>".into(), Some(false)),
            (of(tagged()), "a <tool_call> b".into(), None),
            (of(tagged()), format!("So:\n{}", call("{\"city\": \"Oslo\", \"days\": 2}}\n</tool_call>")), Some(true)),
            (of(tagged()), format!("{0}\n{0}", call("{\"city\": \"Rome\"}}\n</tool_call>")), Some(true)),
            (of(tagged()), call("{\"city\": \"Paris"), None),
            (of(tagged()), call("{\"city\": \"Oslo\", \"days\": 12"), None),
            (of(tagged()), call("{\"days"), None),
            (of(tagged()), "<tool_call>\n{\"name\": \"other".into(), None),
            (of(lone()), "\nIt".into(), Some(true)),
            (of(lone()), String::new(), Some(true)),
            (of(lone()), "It is {\"name\": 3".into(), Some(true)),
            (of(lone()), "{\"name\": \"stop\", \"parameters\": {}}".into(), Some(true)),
            (of(lone()), "{\"answer".into(), None),
            (of(lone()), "{\"name\": 3".into(), None),
            (of(marked()), format!("So:\n{}", function(&format!("{city}{days}{end}"))), Some(true)),
            (of(marked()), format!("{0}\n{0}", function(&format!("{city}{end}"))), Some(true)),
            (of(marked()), format!("<tool_call>\n<function=stop>\n{end}"), Some(true)),
            (of(marked()), function(&format!("{city}{many}")), None),
            (of(marked()), function(&days), None),
            (of(marked()), function(end), None),
            (
                of(quoted()),
                "So: <call>call:weather{city:<|\"|>Oslo<|\"|>,days:2}</call><call>call:stop{}</call>".into(),
                Some(true),
            ),
            (of(quoted()), "<call>call:weather{city:<|\"|>Paris".into(), None),
            (of(quoted()), "<call>call:weather{days".into(), None),
            (of(quoted()), "<call>call:weather{city:<|\"|>Oslo<|\"|>,days:0".into(), None),
        ] {
            assert_eq!(bytes.may_end(&format, &syntax, &text), Ok(expected), "{text}");
        }
        // Where no call is known, any text will do.
        assert_eq!(format.grammar(&bytes.0, &Syntax::default(), false), Ok(None));
    }

    #[test]
    fn calls_have_the_ids_that_models_give_them() {
        let weather = json!({"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]});
        let none = json!({"type": "object", "properties": {}, "additionalProperties": false});
        let format = calls(&[("weather", weather), ("stop", none)], true);
        let bytes = Bytes::new();
        let named = |id: &str| format!("<call>{id}<args>{{\"days\": 2}}</call>");
        let acted_as = |id: &str, name: &str| {
            format!("<action>[\n    {{{id}\"tool_name\": \"{name}\", \"parameters\": {{}}}}\n]</action>")
        };
        let several =
            "<call>functions.weather:0<args>{\"days\": 2}</call><call>functions.stop:1<args>{}</call></calls>";
        for (syntax, text, expected) in [
            (identified(), format!("<calls>{several}"), Some(true)),
            (identified(), format!("<calls>{}</calls>", named("weather:7")), Some(true)),
            (identified(), format!("<calls>{}", named("weather")), None),
            (identified(), format!("<calls>{}", named("weather:12")), Some(false)),
            (identified(), "<calls><call>functions.other".into(), None),
            (identified(), "<calls><call>functions.weather:a".into(), None),
            (identified(), "<calls><call>functions.stop:0<args>{\"days".into(), None),
            (numbered(), format!("<calls>{several}"), Some(true)),
            (numbered(), "<calls><call>functions.weather<args>".into(), None),
            (numbered(), "<calls><call>functions.weather:x".into(), None),
            (acted(), acted_as("\"id\": \"0\", ", "stop"), Some(true)),
            (acted(), acted_as("\"id\": \"a-b\", ", "stop"), None),
            (acted(), acted_as("", "stop"), None),
            (acted(), acted_as("\"id\": \"0\", ", "weather"), None),
        ] {
            assert_eq!(bytes.may_end(&format, &of(syntax), &text), Ok(expected), "{text}");
        }
        let odd = calls(&[("fs/read", json!({"type": "object"}))], true);
        for (syntax, is_written) in [(identified(), false), (numbered(), true)] {
            assert_eq!(odd.grammar(&bytes.0, &of(syntax), false).is_ok(), is_written);
        }
    }

    #[test]
    fn arguments_between_marks_fit_their_schemas() {
        let bytes = Bytes::new();
        for (schema, fitting, others) in [
            (json!({"type": "string"}), vec!["x\ny \"q\"", "", "</param>"], vec![]),
            (json!({}), vec!["x", "[1]"], vec![]),
            (json!({"type": "string", "minLength": 2, "maxLength": 3}), vec!["ab", "abc"], vec!["a", "abcd"]),
            (json!({"type": "string", "pattern": "^[a-c]+$"}), vec!["abc"], vec!["abd", ""]),
            (json!({"type": "string", "pattern": "b/"}), vec!["ab/c"], vec!["ab"]),
            (json!({"type": "integer"}), vec!["12", "-3"], vec!["1.5", "x"]),
            (json!({"anyOf": [{"type": "integer"}, {"type": "null"}]}), vec!["3", "null"], vec!["x"]),
            (json!({"type": ["boolean", "null"], "description": "d"}), vec!["true", "null"], vec!["1"]),
            (json!({"enum": ["a", 1, null]}), vec!["a", "1", "null"], vec!["b", "\"a\""]),
            (json!({"$ref": "#/$defs/few"}), vec!["1", "9"], vec!["10"]),
            (json!({"type": "array", "items": {"$ref": "#/$defs/few"}}), vec!["[1, 2]", "[]"], vec!["[\"x\"]", "[10]"]),
            (
                json!({"type": "object", "properties": {"x": {"type": "string"}}}),
                vec!["{\"x\": \"y\"}"],
                vec!["{\"x\": 1"],
            ),
        ] {
            let parameters = json!({"type": "object", "properties": {"a": schema}, "required": ["a"],
                "$defs": {"few": {"type": "integer", "minimum": 1, "maximum": 9}}});
            let format = calls(&[("f", parameters)], true);
            for (values, expected) in [(fitting, Some(true)), (others, None)] {
                for value in values {
                    let end = "\n</parameter>\n</function>\n</tool_call>";
                    let text = format!("<tool_call>\n<function=f>\n<parameter=a>\n{value}{end}");
                    assert_eq!(bytes.may_end(&format, &of(marked()), &text), Ok(expected), "{schema}: {value:?}");
                }
            }
        }
    }

    #[test]
    fn arguments_with_quotes_of_their_own_fit_their_schemas() {
        let bytes = Bytes::new();
        let tree = json!({"type": "object", "properties": {"v": {"type": "integer"}, "of": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
            "required": ["v"]});
        // A quote stands for the model's own.
        for (schema, fitting, others) in [
            (json!({"type": "string"}), vec!["`x\ny {,}`", "``"], vec!["x", "1"]),
            (json!({}), vec!["`x`", "[1,{a:`b`,c:{}},null]", "true"], vec!["x"]),
            (json!({"type": "object"}), vec!["{}", "{k:1,l:[`x`]}"], vec!["[]"]),
            (json!({"type": "string", "maxLength": 2}), vec!["`ab`", "``"], vec!["`abc`"]),
            (
                json!({"anyOf": [{"type": "string", "pattern": "^a"}, {"type": "null"}]}),
                vec!["`ab`", "null"],
                vec!["`b`"],
            ),
            (json!({"enum": ["a", 1, [true, {"b": "c"}]]}), vec!["`a`", "1", "[true,{b:`c`}]"], vec!["`b`", "[true]"]),
            (
                json!({"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 2}),
                vec!["[1]", "[1,2.5]"],
                vec!["[]", "[1,2,3]"],
            ),
            (
                json!({"type": "array", "items": {"type": "string"}, "maxItems": 1}),
                vec!["[]", "[`x`]"],
                vec!["[1]", "[`x`,`y`]"],
            ),
            (
                json!({"$ref": "#/$defs/tree"}),
                vec!["{v:1}", "{v:1,of:[{v:2,of:[]},{v:3}]}"],
                vec!["{of:[]}", "{v:`x`}"],
            ),
        ] {
            let parameters =
                json!({"type": "object", "properties": {"a": schema}, "required": ["a"], "$defs": {"tree": tree}});
            let format = calls(&[("f", parameters)], true);
            for (values, expected) in [(fitting, Some(true)), (others, None)] {
                for value in values {
                    let text = format!("<call>call:f{{a:{}}}</call>", value.replace('`', "<|\"|>"));
                    assert_eq!(bytes.may_end(&format, &of(quoted()), &text), Ok(expected), "{schema}: {value:?}");
                }
            }
        }
    }

    #[test]
    fn keywords_that_cannot_be_followed_are_named() {
        let bytes = Bytes::new();
        for (schema, expected) in [
            (json!({"type": "string", "format": "date"}), "`format`"),
            (json!({"type": "string", "pattern": "a", "minLength": 1}), "`pattern` beside `minLength`"),
            (json!({"allOf": [{"type": "string"}, {"minLength": 1}]}), "`allOf`"),
            (json!({"$ref": "#/$defs/none"}), "`#/$defs/none`"),
            (json!({"enum": ["</parameter>"]}), "`</parameter>`"),
            (json!(false), "`false`"),
        ] {
            let format = calls(&[("f", json!({"type": "object", "properties": {"a": schema}}))], true);
            let told = bytes.may_end(&format, &of(marked()), "").expect_err("it cannot be followed").message;
            assert!(told.contains(expected), "{schema}: {told}");
        }
        let fields = json!({"type": "object", "properties": {}, "patternProperties": {}});
        let format = calls(&[("f", json!({"type": "object", "properties": {"a": fields}}))], true);
        let told = bytes.may_end(&format, &of(quoted()), "").expect_err("it cannot be followed").message;
        assert!(told.contains("`patternProperties`"), "{told}");
    }
}
