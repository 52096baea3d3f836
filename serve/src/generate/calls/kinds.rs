//! What a schema lets a value be.

use serde_json::Value;

/// Schemas within schemas that are looked at.
const DEEPEST: usize = 16;

/// The types that a schema within `root` lets a value have; none where it says none.
pub(super) fn kinds(schema: &Value, root: &Value) -> Vec<String> {
    let mut kinds = Vec::new();
    add(schema, root, DEEPEST, &mut kinds);
    kinds
}

fn add(schema: &Value, root: &Value, depth: usize, kinds: &mut Vec<String>) {
    let Some(depth) = depth.checked_sub(1) else { return };
    match &schema["type"] {
        Value::String(kind) => kinds.push(kind.clone()),
        Value::Array(several) => kinds.extend(several.iter().filter_map(|kind| Some(kind.as_str()?.to_owned()))),
        _ => {
            let one = [&schema["const"]].into_iter().filter(|value| !value.is_null());
            let of_values = one.chain(schema["enum"].as_array().into_iter().flatten());
            kinds.extend(of_values.map(|value| kind(value).to_owned()));
            let named = schema["$ref"].as_str().and_then(|name| root.pointer(name.strip_prefix('#')?));
            let several = ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|name| schema[name].as_array()).flatten();
            several.chain(named).for_each(|schema| add(schema, root, depth, kinds));
        }
    }
}

/// A value's own type.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn types_are_found_wherever_a_schema_says_them() {
        let root = json!({"$defs": {"a": {"enum": ["x", 1]}, "round": {"$ref": "#/$defs/round"}}});
        for (schema, expected) in [
            (json!({"type": "string"}), "string"),
            (json!({"type": ["string", "null"]}), "string null"),
            (json!({"anyOf": [{"type": "integer"}, {"const": "x"}]}), "integer string"),
            (json!({"$ref": "#/$defs/a"}), "string integer"),
            (json!({"$ref": "#/$defs/round"}), ""),
            (json!({"$ref": "#/$defs/none"}), ""),
            (json!({}), ""),
            (json!(true), ""),
        ] {
            assert_eq!(kinds(&schema, &root).join(" "), expected, "{schema}");
        }
    }
}
