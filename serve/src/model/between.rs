//! Arguments beside each other as a grammar.

use serde_json::Value;

use super::rules::{literal, Rules};
use super::Result;

/// Between arguments, as parts of rules.
pub(super) struct Between {
    /// Before the first argument.
    pub first: String,
    /// Between its name and its value.
    pub assign: String,
    /// Before each further one.
    pub next: String,
    /// Behind no argument at all.
    pub none: String,
    /// Behind the last one.
    pub end: String,
}

impl Between {
    /// The properties of a schema in their order, of which those that are not required may be left out.
    ///
    /// # Errors
    /// An error of `value`.
    pub fn arguments(
        &self,
        rules: &mut Rules,
        schema: &Value,
        value: &mut dyn FnMut(&mut Rules, &Value) -> Result<String>,
    ) -> Result<String> {
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let properties = schema["properties"].as_object();
        let given = properties.into_iter().flatten().map(|(name, schema)| (name.as_str(), schema));
        let others = required.iter().filter(|name| properties.is_none_or(|of| !of.contains_key(**name)));
        let all: Vec<(&str, &Value)> = given.chain(others.map(|name| (*name, &Value::Bool(true)))).collect();
        // Behind no argument so far, and behind some.
        let [mut none, mut some] =
            [&self.none, &self.end].map(|end| rules.add(if end.is_empty() { "\"\"" } else { end }));
        for (name, schema) in all.into_iter().rev() {
            let value = value(rules, schema)?;
            let is_required = required.contains(&name);
            let [first, next] = [(&self.first, &none), (&self.next, &some)].map(|(before, skipped)| {
                let skipped = if is_required { String::new() } else { format!(" | {skipped}") };
                rules.add(&format!("{before} {} {} {value} {some}{skipped}", literal(name), self.assign))
            });
            (none, some) = (first, next);
        }
        Ok(none)
    }
}
