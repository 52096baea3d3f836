//! The fields of a request's body, as it was sent: what nobody reads is harmless or refused.

use std::collections::HashSet;
use std::fmt;

use opara_weights::{Harmless, Json, Misread};
use serde::de::{DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::model::{Failure, Result};

/// A value as it was sent: a tensor's elements are read once, into their type.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent<'a>(&'a RawValue);

/// The fields of an object of a body.
pub(super) type Fields<'a> = opara_weights::Fields<Sent<'a>>;

impl Json for Sent<'_> {
    fn is_null(&self) -> bool {
        self.0.get() == "null"
    }

    fn parse<T: DeserializeOwned>(&self) -> Result<T, Misread> {
        let json = || serde_json::Deserializer::from_str(self.0.get());
        // Lists of numbers, which may be long, are read once.
        if self.0.get().contains('{') {
            Misread::parse::<GivenOnce>(&mut json())?;
        }
        Misread::parse(&mut json())
    }

    fn fields(self) -> Result<Vec<(String, Self)>, Misread> {
        Ok(serde_json::from_str::<Object>(self.0.get())?.0)
    }

    fn elements(self) -> Result<Vec<Self>, Misread> {
        let list: Vec<&RawValue> = serde_json::from_str(self.0.get())?;
        Ok(list.into_iter().map(Sent).collect())
    }
}

/// The fields of a body. A byte order mark before it is passed over.
///
/// # Errors
/// A body that is not an object of JSON; a field that is given twice.
pub(super) fn of_body(body: &[u8]) -> Result<Fields<'_>> {
    let json = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let object = serde_json::from_slice::<Object>(json);
    let object = object.map_err(|error| Failure::invalid(format!("the body is not an object of JSON: {error}")))?;
    Ok(object.0.into())
}

/// What becomes of fields that are not read. `is_allowed` is the operator's word that they may be ignored.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Unread {
    /// Fields that change no answer, or none with these values.
    pub harmless: Harmless,
    pub is_allowed: bool,
}

impl Unread {
    /// Refuses the fields that were not read, unless they are null, harmless or ask for nothing.
    ///
    /// # Errors
    /// A field that would change the answer and is not supported.
    pub fn check(self, fields: &Fields) -> Result<()> {
        for (name, _) in fields.unread(&[self.harmless]) {
            unread(&name, self.is_allowed)?;
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

/// No field of it is given twice.
struct Object<'a>(Vec<(String, Sent<'a>)>);

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<'de>, A::Error> {
                let mut fields = Vec::new();
                let mut names = Names::default();
                while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
                    names.add::<A::Error>(&name)?;
                    fields.push((name, Sent(value)));
                }
                Ok(Object(fields))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

/// A value in which no object has a field twice, however deep it is.
struct GivenOnce;

impl<'de> Deserialize<'de> for GivenOnce {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for GivenOnce {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        while let Some(Self) = list.next_element()? {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        let mut names = Names::default();
        while let Some(name) = map.next_key::<String>()? {
            names.add::<A::Error>(&name)?;
            let Self = map.next_value()?;
        }
        Ok(self)
    }
}

/// The names of an object's fields so far.
#[derive(Default)]
struct Names(HashSet<String>);

impl Names {
    fn add<E: serde::de::Error>(&mut self, name: &str) -> Result<(), E> {
        match self.0.insert(name.to_owned()) {
            true => Ok(()),
            false => Err(E::custom(format_args!("`{name}` is given twice"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn message<T, E: Into<Failure>>(result: Result<T, E>) -> String {
        result.err().map(|error| error.into().message).unwrap_or_default()
    }

    #[test]
    fn fields_are_read_by_name_and_null_is_absent() -> Result<()> {
        let body = b"\xef\xbb\xbf {\"a\": 1, \"b\": null, \"c\": {\"d\": [1, null]}, \"e\": [{\"f\": 2}, {}]}";
        let fields = of_body(body)?;
        assert_eq!((fields.take::<u8>("a")?, fields.take::<u8>("b")?, fields.take::<u8>("z")?), (Some(1), None, None));
        let inner = fields.object("c")?;
        assert_eq!(inner.take::<Vec<Option<u8>>>("d")?, Some(vec![Some(1), None]));
        assert_eq!(message(inner.need::<u8>("g")), "`c.g` is missing");
        let list = fields.objects("e")?.unwrap_or_default();
        assert_eq!(list[0].need::<u8>("f")?, 2);
        assert_eq!(message(list[1].need::<u8>("f")), "`e[1].f` is missing");
        assert_eq!(fields.object("none")?.take::<u8>("x")?, None);
        Unread::default().check(&fields)
    }

    #[test]
    fn errors_name_the_place() -> Result<()> {
        let fields = of_body(br#"{"a": {"b": [1, "x"]}, "c": 1, "d": -1, "e": 1e400}"#)?;
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
            assert!(message(of_body(body.as_bytes())).contains(expected), "{body}");
        }
        assert!(message(of_body(b"{\"a\": \"\xff\"}")).contains("not an object of JSON"));
        let deep = format!("{{\"a\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(message(of_body(deep.as_bytes())?.take::<Value>("a")).contains("recursion limit"));
        Ok(())
    }

    #[test]
    fn nothing_is_given_twice_however_deep_it_is() -> Result<()> {
        for (json, expected) in [
            (r#"[{"role": "a", "b": 1, "role": "c"}]"#, "`a[0]`: `role` is given twice"),
            (r#"[{"b": [{"c": 1, "\u0063": 1}]}]"#, "`a[0].b[0]`: `c` is given twice"),
            (r#"{"b": {"c": {"d": null, "d": null}}}"#, "`a.b.c`: `d` is given twice"),
        ] {
            assert_eq!(message(of_body(format!("{{\"a\": {json}}}").as_bytes())?.take::<Value>("a")), expected);
        }
        let json = r#"{"b": {"b": [1, -1, 1.5, "b", null, true, {"b": {}}]}, "c": "{\"d\": 1, \"d\": 2}"}"#;
        assert!(of_body(format!("{{\"a\": {json}}}").as_bytes())?.take::<Value>("a")?.is_some());
        Ok(())
    }

    #[test]
    fn what_is_left_over_is_harmless_or_refused() -> Result<()> {
        let unread = Unread {
            harmless: Harmless { names: &["user"], neutral: &[("n", "1"), ("penalty", "0")] },
            is_allowed: false,
        };
        let finish = |body: &str, unread: Unread| unread.check(&of_body(body.as_bytes())?);
        finish(r#"{"user": {"any": "thing"}, "n": 1.0, "penalty": 0, "unknown": null}"#, unread)?;
        assert!(message(finish(r#"{"unknown": false}"#, unread)).starts_with("`unknown` is not supported"));
        assert!(message(finish(r#"{"penalty": false}"#, unread)).starts_with("`penalty` is not supported"));
        assert!(message(finish(r#"{"n": 2}"#, unread)).starts_with("`n` is not supported"));
        finish(r#"{"unknown": 7, "n": 2}"#, Unread { is_allowed: true, ..unread })
    }
}
