//! Calls of tools as a grammar.

use opara_models::decoder::{CallForm, CallId, CallSyntax};
use serde_json::{json, Map, Value};

use super::argument_grammar::{quoted, value_between_marks};
use super::between::Between;
use super::rules::{literal, Rules};
use super::{Failure, Result};
use crate::generate::Tool;

/// Calls of these tools, behind the mark before the first one.
///
/// # Errors
/// Arguments that cannot be made to fit their schema, and names that an id cannot have where the model writes an id alone.
pub(super) fn calls(rules: &mut Rules, syntax: &CallSyntax, tools: &[Tool], are_several: bool) -> Result<String> {
    let call = rules.name();
    let further = syntax.between.as_ref().filter(|_| are_several);
    let behind = match (&syntax.form, further) {
        // Values end with the marks behind a call.
        (CallForm::Marked { .. }, _) => String::new(),
        (_, None) => rules.mark(&syntax.close),
        (_, Some(between)) => format!("({} {call})* {}", rules.mark(between), rules.mark(&syntax.close)),
    };
    let all = tools.iter().map(|tool| {
        let any = json!({"type": "object"});
        let parameters = tool.parameters.as_ref().unwrap_or(&any);
        let name = literal(&tool.name);
        Ok(match &syntax.form {
            CallForm::Object { id, name, arguments } => {
                let mut fields = Map::new();
                fields.extend(id.clone().map(|id| (id, json!({"type": "string", "pattern": "^[a-zA-Z0-9]{1,9}$"}))));
                fields.insert(name.clone(), json!({"const": tool.name}));
                fields.insert(arguments.clone(), parameters.clone());
                let required: Vec<&String> = fields.keys().collect();
                let schema = json!({
                    "type": "object", "required": required, "properties": fields, "additionalProperties": false,
                });
                rules.json(&schema, parameters)?
            }
            CallForm::Named { id, middle } => {
                let name = match id {
                    CallId::None => name,
                    CallId::Behind(before) => format!("{name} {} /[a-zA-Z0-9]{{9}}/", rules.mark(before)),
                    CallId::Number(before) => format!("{name} {} /[0-9]{{1,4}}/", rules.mark(before)),
                    // As readers find the name in it. The number tells calls of one tool apart.
                    CallId::Naming if tool.name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c)) => {
                        format!("/([a-zA-Z0-9_-]{{1,32}}\\.)?/ {name} /:[0-9]{{1,4}}/")
                    }
                    CallId::Naming => {
                        let message =
                            format!("`tools`: the model's calls cannot name {:?}: letters, digits, _ and -", tool.name);
                        return Err(Failure::invalid(message));
                    }
                };
                format!("{name} {} {}", rules.mark(middle), rules.json(parameters, parameters)?)
            }
            CallForm::Python => {
                let between = Between {
                    first: String::new(),
                    assign: literal("="),
                    next: literal(", "),
                    none: literal(")"),
                    end: literal(")"),
                };
                let value = &mut |rules: &mut Rules, schema: &Value| rules.json(schema, parameters);
                format!("{name} \"(\" {}", between.arguments(rules, parameters, value)?)
            }
            CallForm::Quoted { open, quote } => {
                format!("{name} {} {}", rules.mark(open), quoted(rules, parameters, quote)?)
            }
            CallForm::Marked { first, assign, next, empty } => {
                let marks = value_between_marks(syntax, next)?;
                let further = further.and_then(|between| marks.rest(between));
                let last = rules.mark(marks.rest(&syntax.close).unwrap_or_default());
                let end = match further {
                    Some(between) => format!("({} {call} | {last})", rules.mark(between)),
                    None => last,
                };
                let between = Between {
                    first: rules.mark(first),
                    assign: rules.mark(assign),
                    next: rules.mark(marks.rest(next).unwrap_or_default()),
                    none: rules.mark(empty),
                    end,
                };
                let value = &mut |rules: &mut Rules, schema: &Value| marks.value(rules, schema, parameters);
                format!("{name} {}", between.arguments(rules, parameters, value)?)
            }
        })
    });
    let all = all.collect::<Result<Vec<String>>>()?;
    rules.define(&call, &all.join(" | "));
    Ok(format!("{call} {behind}"))
}
