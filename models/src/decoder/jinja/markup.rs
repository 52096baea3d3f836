//! Texts for HTML, as jinja2's `Markup`: `+` escapes a text that is joined with one.

use minijinja::{Error, Value};

use super::python::text;
use super::size;

/// A text with HTML's escapes.
pub(super) fn escape(value: &Value) -> Result<Value, Error> {
    let escapes = [("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("'", "&#39;"), ("\"", "&#34;")];
    let text = text(value)?;
    let found = text.matches(['&', '<', '>', '\'', '"']).count();
    size::check_text(text.len().saturating_add(found.saturating_mul(5)))?;
    Ok(Value::from_safe_string(escapes.iter().fold(text, |told, (letter, by)| told.replace(letter, by))))
}

/// `+` of two texts.
pub(super) fn joined(a: &Value, b: &Value) -> Result<Value, Error> {
    let is_safe = a.is_safe() || b.is_safe();
    let part = |value: &Value| text(&if is_safe && !value.is_safe() { escape(value)? } else { value.clone() });
    let (a, b) = (part(a)?, part(b)?);
    size::check_text(a.len() + b.len())?;
    let told = a + &b;
    Ok(if is_safe { Value::from_safe_string(told) } else { Value::from(told) })
}
