//! The form that a request wants its texts to have.

use serde_json::{json, Value};

use crate::model::{Failure, Result, Shape};

use super::super::fields::Fields;

/// The form of `response_format`, and of vLLM's `structured_outputs`.
pub(super) fn shape(fields: &Fields) -> Result<Shape> {
    let format = of_format(fields)?;
    match (of_structure(fields)?, &format) {
        (Shape::Any, _) => Ok(format),
        (shape, Shape::Any) => Ok(shape),
        _ => Err(Failure::invalid("`response_format` and `structured_outputs` contradict each other")),
    }
}

fn of_format(fields: &Fields) -> Result<Shape> {
    let Some(format) = fields.take::<Value>("response_format")? else { return Ok(Shape::Any) };
    match format["type"].as_str() {
        Some("text") => Ok(Shape::Any),
        Some("json_object") => Ok(Shape::Json(json!({"type": "object"}))),
        Some("json_schema") => match &format["json_schema"]["schema"] {
            schema @ Value::Object(_) => Ok(Shape::Json(schema.clone())),
            _ => Err(Failure::invalid("`response_format.json_schema.schema` is missing, or no object")),
        },
        Some(kind) => {
            let kind: String = kind.chars().take(80).collect();
            let message = format!("`response_format` of type {kind:?} is not supported: \"text\", \"json_object\" and \"json_schema\" are");
            Err(Failure::invalid(message))
        }
        None => Err(Failure::invalid("`response_format.type` is missing")),
    }
}

fn of_structure(fields: &Fields) -> Result<Shape> {
    let asked = fields.object("structured_outputs")?;
    let json = asked.take::<Value>("json")?.map(|schema| match schema {
        Value::String(text) => serde_json::from_str(&text).unwrap_or(Value::String(text)),
        schema => schema,
    });
    let of_object = asked.take::<bool>("json_object")?.filter(|is| *is).map(|_| json!({"type": "object"}));
    let regex = asked.take::<String>("regex")?;
    let choice = asked.take::<Vec<String>>("choice")?;
    if choice.as_ref().is_some_and(|choice| choice.is_empty() || choice.iter().any(String::is_empty)) {
        return Err(Failure::invalid("`structured_outputs.choice` has texts, and none is empty"));
    }
    let shapes =
        [json.map(Shape::Json), of_object.map(Shape::Json), regex.map(Shape::Regex), choice.map(Shape::Choice)];
    let mut shapes = shapes.into_iter().flatten();
    let shape = shapes.next().unwrap_or_default();
    match (shapes.next(), asked.unread(&[]).first()) {
        (None, None) => Ok(shape),
        (None, Some((name, _))) => {
            Err(Failure::invalid(format!("`{name}` is not supported: `json`, `json_object`, `regex` and `choice` are")))
        }
        (Some(_), _) => Err(Failure::invalid("`structured_outputs` asks for more than one form")),
    }
}
