//! The fields of a JSON object of a request: each is read by name, and what is left over is harmless or refused.

use std::fmt;

use serde::de::{DeserializeOwned, Deserializer, Error as _, MapAccess, Visitor};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::Value;

use crate::model::{Failure, Result};

/// Fields that are not read. `is_allowed` is the operator's word that they may be ignored.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Unread<'a> {
    /// Fields that change no answer.
    pub harmless: &'a [&'a str],
    /// Fields that are not supported, each with a value, as JSON, that asks for nothing.
    pub neutral: &'a [(&'a str, &'a str)],
    pub is_allowed: bool,
}

/// The fields of an object that were not taken yet. A field that is null is absent.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    fields: Vec<(String, &'a RawValue)>,
    /// Where the object is in the body, as a prefix of its fields' names.
    at: String,
}

impl<'a> Fields<'a> {
    /// The fields of a body. A byte order mark before it is passed over.
    ///
    /// # Errors
    /// A body that is not an object of JSON; a field that is given twice.
    pub fn of_body(body: &'a [u8]) -> Result<Self> {
        let json = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
        let object = serde_json::from_slice::<Object>(json);
        let object = object.map_err(|error| Failure::invalid(format!("the body is not an object of JSON: {error}")))?;
        Ok(Self { fields: object.0, at: String::new() })
    }

    fn of_value(value: &'a RawValue, at: String) -> Result<Self> {
        let object = serde_json::from_str::<Object>(value.get())
            .map_err(|error| Failure::invalid(format!("`{at}` is not an object: {}", plain(&error))))?;
        Ok(Self { fields: object.0, at: at + "." })
    }

    /// The name of a field from the body's top.
    pub fn name(&self, field: &str) -> String {
        format!("{}{field}", self.at)
    }

    /// Whether no field is left that says something.
    pub fn is_empty(&self) -> bool {
        self.fields.iter().all(|(_, value)| value.get() == "null")
    }

    /// A field as it was sent.
    pub fn take_raw(&mut self, field: &str) -> Option<&'a RawValue> {
        let at = self.fields.iter().position(|(name, _)| name == field)?;
        let (_, value) = self.fields.swap_remove(at);
        (value.get() != "null").then_some(value)
    }

    /// A field that may be absent.
    ///
    /// # Errors
    /// A value of another type: with the place in it.
    pub fn take<T: DeserializeOwned>(&mut self, field: &str) -> Result<Option<T>> {
        let Some(value) = self.take_raw(field) else { return Ok(None) };
        let mut json = serde_json::Deserializer::from_str(value.get());
        let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let inner = match error.path().to_string() {
                path if path == "." => String::new(),
                path if path.starts_with('[') => path,
                path => format!(".{path}"),
            };
            Failure::invalid(format!("`{}{inner}`: {}", self.name(field), plain(error.inner())))
        })?;
        Ok(Some(value))
    }

    /// A field that must be there.
    ///
    /// # Errors
    /// As for [`take`](Self::take), and where it is absent.
    pub fn need<T: DeserializeOwned>(&mut self, field: &str) -> Result<T> {
        self.take(field)?.ok_or_else(|| Failure::invalid(format!("`{}` is missing", self.name(field))))
    }

    /// A field that is an object; one without fields where it is absent.
    ///
    /// # Errors
    /// A value that is no object.
    pub fn object(&mut self, field: &str) -> Result<Self> {
        let at = self.name(field);
        match self.take_raw(field) {
            Some(value) => Self::of_value(value, at),
            None => Ok(Self { fields: Vec::new(), at: at + "." }),
        }
    }

    /// A field that is a list of objects.
    ///
    /// # Errors
    /// A value that is no such list.
    pub fn objects(&mut self, field: &str) -> Result<Option<Vec<Self>>> {
        let at = self.name(field);
        let Some(list) = self.take_raw(field) else { return Ok(None) };
        let list: Vec<&RawValue> = serde_json::from_str(list.get())
            .map_err(|error| Failure::invalid(format!("`{at}` is not a list: {}", plain(&error))))?;
        let of = |(index, value): (usize, &'a RawValue)| Self::of_value(value, format!("{at}[{index}]"));
        list.into_iter().enumerate().map(of).collect::<Result<_>>().map(Some)
    }

    /// Refuses what was not taken, unless it is null, harmless or asks for nothing.
    ///
    /// # Errors
    /// A field that would change the answer and is not supported.
    pub fn finish(self, unread: Unread) -> Result<()> {
        for (field, value) in &self.fields {
            let is_neutral = |(name, neutral): &(&str, &str)| name == field && is_same(value.get(), neutral);
            if value.get() == "null"
                || unread.harmless.contains(&field.as_str())
                || unread.neutral.iter().any(is_neutral)
            {
                continue;
            }
            if !unread.is_allowed && matches!(field.as_str(), "n" | "best_of") {
                let message = format!("`{field}` must be 1: send several requests, which are written at once");
                return Err(Failure::invalid(message));
            }
            self::unread(&self.name(field), unread.is_allowed)?;
        }
        Ok(())
    }
}

/// Refuses a field that would change the answer and is not supported, or warns of it.
///
/// # Errors
/// Where the operator did not allow it.
pub(super) fn unread(name: &str, is_allowed: bool) -> Result<()> {
    let name: String = name.chars().take(80).collect();
    if is_allowed {
        tracing::warn!(field = name, "a field of a request is ignored");
        return Ok(());
    }
    let message = format!("`{name}` is not supported: leave it out, or start the server with --allow-unread");
    Err(Failure::invalid(message))
}

/// Do these stand for the same value? Numbers are compared as numbers.
fn is_same(json: &str, other: &str) -> bool {
    let read = |json: &str| serde_json::from_str::<Value>(json).ok();
    match (read(json), read(other)) {
        (Some(Value::Number(a)), Some(Value::Number(b))) => a.as_f64() == b.as_f64(),
        (Some(a), Some(b)) => a == b,
        _ => false,
    }
}

/// An error without its place, which counts from the field's beginning.
fn plain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.as_str(), |(reason, _)| reason).to_owned()
}

struct Object<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<'de>, A::Error> {
                let mut fields: Vec<(String, &'de RawValue)> = Vec::new();
                let mut names = std::collections::HashSet::new();
                while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format_args!("`{name}` is given twice")));
                    }
                    fields.push((name, value));
                }
                Ok(Object(fields))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message<T>(result: Result<T>) -> String {
        result.err().map(|failure| failure.message).unwrap_or_default()
    }

    #[test]
    fn fields_are_read_by_name_and_null_is_absent() -> Result<()> {
        let body = b"\xef\xbb\xbf {\"a\": 1, \"b\": null, \"c\": {\"d\": [1, null]}, \"e\": [{\"f\": 2}, {}]}";
        let mut fields = Fields::of_body(body)?;
        assert_eq!((fields.take::<u8>("a")?, fields.take::<u8>("b")?, fields.take::<u8>("z")?), (Some(1), None, None));
        let mut inner = fields.object("c")?;
        assert_eq!(inner.take::<Vec<Option<u8>>>("d")?, Some(vec![Some(1), None]));
        assert_eq!(message(inner.need::<u8>("g")), "`c.g` is missing");
        let mut list = fields.objects("e")?.unwrap_or_default();
        assert_eq!(list[0].need::<u8>("f")?, 2);
        assert_eq!(message(list[1].need::<u8>("f")), "`e[1].f` is missing");
        assert_eq!(fields.object("none")?.take::<u8>("x")?, None);
        fields.finish(Unread::default())
    }

    #[test]
    fn errors_name_the_place() -> Result<()> {
        let mut fields = Fields::of_body(br#"{"a": {"b": [1, "x"]}, "c": 1, "d": -1, "e": 1e400}"#)?;
        let inner = fields.object("a")?.take::<Vec<u8>>("b");
        assert_eq!(message(inner), "`a.b[1]`: invalid type: string \"x\", expected u8");
        assert!(message(fields.object("c")).starts_with("`c` is not an object"));
        assert!(message(fields.take::<usize>("d")).starts_with("`d`: invalid value: integer `-1`"));
        assert_eq!(message(fields.take::<f32>("e")), "`e`: number out of range");
        for (body, expected) in [
            ("", "not an object of JSON"),
            ("[]", "not an object of JSON"),
            ("{\"a\": 1, \"a\": 2}", "`a` is given twice"),
            ("{\"a\": NaN}", "not an object of JSON"),
            ("{\"a\": 1} x", "not an object of JSON"),
        ] {
            assert!(message(Fields::of_body(body.as_bytes())).contains(expected), "{body}");
        }
        assert!(message(Fields::of_body(b"{\"a\": \"\xff\"}")).contains("not an object of JSON"));
        let deep = format!("{{\"a\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(message(Fields::of_body(deep.as_bytes())?.take::<Value>("a")).contains("recursion limit"));
        Ok(())
    }

    #[test]
    fn what_is_left_over_is_harmless_or_refused() -> Result<()> {
        let unread = Unread { harmless: &["user"], neutral: &[("n", "1"), ("penalty", "0")], is_allowed: false };
        let finish = |body: &str, unread| Fields::of_body(body.as_bytes())?.finish(unread);
        finish(r#"{"user": {"any": "thing"}, "n": 1.0, "penalty": 0, "unknown": null}"#, unread)?;
        assert!(message(finish(r#"{"unknown": false}"#, unread)).starts_with("`unknown` is not supported"));
        assert!(message(finish(r#"{"penalty": false}"#, unread)).starts_with("`penalty` is not supported"));
        assert!(message(finish(r#"{"n": 2}"#, unread)).starts_with("`n` must be 1"));
        finish(r#"{"unknown": 7, "n": 2}"#, Unread { is_allowed: true, ..unread })
    }
}
