//! The format that a text shall have, as a grammar of llguidance.

use opara_models::decoder::{CallForm, CallSyntax, Syntax, Text};
use serde_json::{json, Map, Value};

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
    /// Calls of these tools and nothing else.
    Calls {
        /// One of these each.
        of: Vec<Tool>,
        /// Whether there may be more than one call.
        are_several: bool,
    },
}

/// Spaces between the parts of JSON: as in lines that are indented. Without a bound a text could be spaces for ever.
const SPACES: &str = r"[ \t]{0,2}(\n[ \t]{0,40})?";

impl ResponseFormat {
    /// Its grammar, behind the end of the reasoning where the prompt is within it. `None` where any text will do.
    ///
    /// # Errors
    /// Calls, which the template of the model does not write, or not as JSON.
    pub(super) fn grammar(&self, text: &Text, syntax: &Syntax, is_thinking: bool) -> Result<Option<String>> {
        let body = match self {
            Self::Any => return Ok(None),
            Self::Json(schema) => format!("body: %json {}\n", spaced(schema.clone())?),
            Self::Regex(regex) => format!("body: /{}/\n", between_slashes(regex)),
            Self::Choice(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| literal(text)).collect();
                format!("body: {}\n", texts.join(" | "))
            }
            Self::Calls { of, are_several } => {
                let unknown =
                    "`tool_choice`: the model's chat template does not write calls in a form that is known here";
                let calls = syntax.calls.as_ref().ok_or_else(|| Failure::invalid(unknown))?;
                of_calls(calls, of, *are_several, text)?
            }
        };
        let (start, thought) = match &syntax.reasoning {
            Some((_, close)) if is_thinking => ("thought body", thought(close, text)),
            _ => ("body", String::new()),
        };
        Ok(Some(format!("start: {start}\n{thought}{body}")))
    }
}

/// Reasoning, with what ends it and spaces behind that.
fn thought(close: &str, text: &Text) -> String {
    match &text.at_special(close)[..] {
        [("", Some(_)), ("", None)] => format!("thought: /(.|\\n)*/ {} /[ \\n]{{0,4}}/\n", mark(close, text)),
        _ => format!("thought: until /[ \\n]{{0,4}}/\nuntil[suffix={}]: /(.|\\n)*/\n", literal(close)),
    }
}

fn of_calls(syntax: &CallSyntax, tools: &[Tool], are_several: bool, text: &Text) -> Result<String> {
    let (open, close) = (mark(&syntax.open, text), mark(&syntax.close, text));
    let further = syntax.between.as_ref().filter(|_| are_several);
    let further = further.map_or(String::new(), |between| format!("({} call)*", mark(between, text)));
    let names: Vec<String> = (0..tools.len()).map(|at| format!("call{at}")).collect();
    let mut grammar = format!("body: {open} call {further} {close}\ncall: {}\n", names.join(" | "));
    for (rule, tool) in names.iter().zip(tools) {
        let mut parameters = tool.parameters.clone().unwrap_or_else(|| json!({"type": "object"}));
        grammar += &match &syntax.form {
            CallForm::Object { name, arguments } => {
                // References are from the root on.
                let definitions = parameters
                    .as_object_mut()
                    .map(|fields| ["$defs", "definitions"].map(|field| Some((field, fields.shift_remove(field)?))));
                let mut schema = json!({
                    "type": "object", "properties": {name: {"const": tool.name}, arguments: parameters},
                    "required": [name, arguments], "additionalProperties": false,
                });
                for (field, value) in definitions.into_iter().flatten().flatten() {
                    schema[field] = value;
                }
                format!("{rule}: %json {}\n", spaced(schema)?)
            }
            CallForm::Named { before_id, middle } => {
                let (name, middle) = (literal(&tool.name), mark(middle, text));
                let before = before_id.as_ref().map(|before| format!("{} /[a-zA-Z0-9]{{9}}/", mark(before, text)));
                let before = before.unwrap_or_default();
                format!("{rule}: {name} {before} {middle} {rule}a\n{rule}a: %json {}\n", spaced(parameters)?)
            }
            CallForm::Python => of_python(rule, tool, &parameters)?,
            CallForm::Marked { .. } => {
                let message = "`tool_choice`: the model's calls are not JSON, and nothing makes it write such: only \"auto\" and \
                               \"none\" are supported";
                return Err(Failure::invalid(message));
            }
        };
    }
    Ok(grammar)
}

/// The name, and in parentheses the properties of the schema in their order, those that are not required or not.
fn of_python(rule: &str, tool: &Tool, parameters: &Value) -> Result<String> {
    let required: Vec<&str> =
        parameters["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = parameters["properties"].as_object();
    let given = properties.into_iter().flatten().map(|(name, schema)| (name.as_str(), schema));
    let others = required.iter().filter(|name| properties.is_none_or(|of| !of.contains_key(**name)));
    let all: Vec<(&str, &Value)> = given.chain(others.map(|name| (*name, &Value::Bool(true)))).collect();
    let mut grammar = format!("{rule}: {} {rule}n0 \")\"\n", literal(&format!("{}(", tool.name)));
    for (at, (name, schema)) in all.iter().enumerate() {
        let mut schema = spaced((*schema).clone())?;
        for field in ["$defs", "definitions"] {
            // References are from the root on.
            if let Some(definitions) = parameters.get(field) {
                schema[field] = definitions.clone();
            }
        }
        grammar += &format!("{rule}v{at}: %json {schema}\n");
        // `n`: no argument so far; `s`: some.
        for (state, comma) in [("n", ""), ("s", ", ")] {
            let (next, skipped) =
                (at + 1, if required.contains(name) { String::new() } else { format!(" | {rule}{state}{}", at + 1) });
            let key = literal(&format!("{comma}{name}="));
            grammar += &format!("{rule}{state}{at}: {key} {rule}v{at} {rule}s{next}{skipped}\n");
        }
    }
    let end = all.len();
    Ok(grammar + &format!("{rule}n{end}: \"\"\n{rule}s{end}: \"\"\n"))
}

/// A schema with the spaces that may stand between its parts.
fn spaced(schema: Value) -> Result<Value> {
    let mut fields = match schema {
        Value::Object(fields) => fields,
        Value::Bool(true) => Map::new(),
        other => return Err(Failure::invalid(format!("a schema of JSON is an object, and this is {other}"))),
    };
    fields.insert("x-guidance".into(), json!({"whitespace_pattern": SPACES}));
    Ok(Value::Object(fields))
}

/// A text as the tokens and letters that a model writes it by.
fn mark(mark: &str, text: &Text) -> String {
    let parts = text.at_special(mark).into_iter();
    let parts = parts.map(|(before, token)| {
        let before = if before.is_empty() { String::new() } else { literal(before) };
        token.map_or(before.clone(), |token| format!("{before} <[{token}]>"))
    });
    parts.collect::<Vec<_>>().join(" ")
}

/// A regular expression as it stands between slashes.
fn between_slashes(regex: &str) -> String {
    let (mut told, mut is_escaped) = (String::new(), false);
    for letter in regex.chars() {
        match letter {
            '/' if !is_escaped => told += "\\/",
            '\n' => told += if is_escaped { "n" } else { "\\n" },
            letter => told.push(letter),
        }
        is_escaped = letter == '\\' && !is_escaped;
    }
    told
}

/// A text between quotes.
fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_and_lines_do_not_end_an_expression() {
        for (regex, expected) in [("a/b", r"a\/b"), (r"a\/b", r"a\/b"), (r"a\\/b", r"a\\\/b"), ("a\nb", r"a\nb")] {
            assert_eq!(between_slashes(regex), expected);
        }
    }
}
