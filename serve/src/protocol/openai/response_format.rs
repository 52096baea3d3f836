//! The format that a request wants its texts to have.

use serde_json::{json, Value};

use crate::model::{Failure, ResponseFormat, Result};

use super::super::fields::Fields;

/// The format by `response_format`, or by vLLM's `structured_outputs`.
pub(super) fn response_format(fields: &Fields) -> Result<ResponseFormat> {
    let format = of_format(fields)?;
    match (of_structure(fields)?, &format) {
        (ResponseFormat::Any, _) => Ok(format),
        (structure, ResponseFormat::Any) => Ok(structure),
        _ => Err(Failure::invalid("`response_format` and `structured_outputs` contradict each other")),
    }
}

fn of_format(fields: &Fields) -> Result<ResponseFormat> {
    let Some(format) = fields.take::<Value>("response_format")? else { return Ok(ResponseFormat::Any) };
    match format["type"].as_str() {
        Some("text") => Ok(ResponseFormat::Any),
        Some("json_object") => Ok(ResponseFormat::Json(json!({"type": "object"}))),
        Some("json_schema") => match &format["json_schema"]["schema"] {
            schema @ Value::Object(_) => Ok(ResponseFormat::Json(schema.clone())),
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

fn of_structure(fields: &Fields) -> Result<ResponseFormat> {
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
    let formats = [
        json.map(ResponseFormat::Json),
        of_object.map(ResponseFormat::Json),
        regex.map(ResponseFormat::Regex),
        choice.map(ResponseFormat::Choice),
    ];
    let mut formats = formats.into_iter().flatten();
    let format = formats.next().unwrap_or_default();
    match (formats.next(), asked.unread(&[]).first()) {
        (None, None) => Ok(format),
        (None, Some((name, _))) => {
            Err(Failure::invalid(format!("`{name}` is not supported: `json`, `json_object`, `regex` and `choice` are")))
        }
        (Some(_), _) => Err(Failure::invalid("`structured_outputs` asks for more than one form")),
    }
}
