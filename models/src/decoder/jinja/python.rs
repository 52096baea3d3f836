//! Values as Python writes them.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind};
use minijinja::{Error, Value};

use super::refusal::refused;
use super::size;

/// A tuple of Python, which is written in round brackets.
#[derive(Debug)]
pub(super) struct Tuple(Vec<Value>);

impl Tuple {
    pub fn value(items: impl IntoIterator<Item = Value>) -> Value {
        Value::from_object(Self(items.into_iter().collect()))
    }

    /// The items, if the value is a tuple.
    pub fn items(value: &Value) -> Option<&[Value]> {
        value.downcast_object_ref::<Self>().map(|tuple| tuple.0.as_slice())
    }
}

impl Object for Tuple {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }
}

/// What a map has under a key.
pub(super) fn item(of: &Value, key: &Value) -> Value {
    of.get_item(key).unwrap_or_default()
}

/// What `str` gives.
pub(super) fn text(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let mut told = Bounded(String::new());
    write!(told, "{}", Repr { value, depth: 0 }).map_err(|_| size::too_large())?;
    Ok(told.0)
}

/// A text that ends where it becomes too long.
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        size::check_text(self.0.len() + part.len()).map_err(|_| fmt::Error)?;
        self.0.push_str(part);
        Ok(())
    }
}

/// What `repr` gives; an error for values that are nested too deep.
struct Repr<'a> {
    value: &'a Value,
    depth: usize,
}

impl fmt::Display for Repr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { value, depth } = *self;
        size::check_depth(depth).map_err(|_| fmt::Error)?;
        let depth = depth + 1;
        let listed = |f: &mut fmt::Formatter<'_>, items: &mut dyn Iterator<Item = Value>| -> fmt::Result {
            for (at, item) in items.enumerate() {
                write!(f, "{}{}", if at == 0 { "" } else { ", " }, Repr { value: &item, depth })?;
            }
            Ok(())
        };
        if let Some(items) = Tuple::items(value) {
            f.write_str("(")?;
            listed(f, &mut items.iter().cloned())?;
            return f.write_str(if items.len() == 1 { ",)" } else { ")" });
        }
        match value.kind() {
            ValueKind::String => f.write_str(&quoted(value.as_str().unwrap_or_default())),
            ValueKind::Number if !value.is_integer() => f.write_str(&number(value)),
            ValueKind::Seq | ValueKind::Iterable => {
                f.write_str("[")?;
                listed(f, &mut value.try_iter().into_iter().flatten())?;
                f.write_str("]")
            }
            // Functions and namespaces of templates are maps as well, and have texts of their own.
            ValueKind::Map if has_own_text(value) => write!(f, "{value}"),
            ValueKind::Map => {
                f.write_str("{")?;
                for (at, key) in value.try_iter().into_iter().flatten().enumerate() {
                    let comma = if at == 0 { "" } else { ", " };
                    let (key, value) = (Repr { value: &key, depth }, &item(value, &key));
                    write!(f, "{comma}{key}: {}", Repr { value, depth })?;
                }
                f.write_str("}")
            }
            _ => write!(f, "{value}"),
        }
    }
}

/// Does a value write something else than a dictionary?
fn has_own_text(value: &Value) -> bool {
    /// Takes one letter.
    struct First(Option<char>);
    impl fmt::Write for First {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            self.0 = self.0.or(part.chars().next());
            if self.0.is_some() {
                return Err(fmt::Error);
            }
            Ok(())
        }
    }
    let mut first = First(None);
    // It ends with the first letter.
    let _ = write!(first, "{value}");
    first.0 != Some('{')
}

/// A string in quotes.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut told = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => told.push_str("\\\\"),
            '\n' => told.push_str("\\n"),
            '\r' => told.push_str("\\r"),
            '\t' => told.push_str("\\t"),
            c if c == quote => told.extend(['\\', c]),
            c if is_printable(c) => told.push(c),
            c if (c as u32) < 0x100 => told.push_str(&format!("\\x{:02x}", c as u32)),
            c if (c as u32) < 0x1_0000 => told.push_str(&format!("\\u{:04x}", c as u32)),
            c => told.push_str(&format!("\\U{:08x}", c as u32)),
        }
    }
    told.push(quote);
    told
}

/// Does Python write the letter as it is? Not what is invisible: controls, spaces but the common one, marks of direction.
fn is_printable(c: char) -> bool {
    let is_format = matches!(c as u32, 0xad | 0x200b..=0x200f | 0x202a..=0x202e | 0x2060..=0x206f | 0xe000..=0xf8ff | 0xfeff | 0xfff9..=0xfffb);
    c == ' ' || !(c.is_control() || c.is_whitespace() || is_format)
}

/// A number of floating point: the shortest digits that stand for it.
fn number(value: &Value) -> String {
    let Ok(number) = f64::try_from(value.clone()) else { return value.to_string() };
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0. { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        exponent @ -4..16 => match exponent >= 0 && number.fract() == 0. {
            true => format!("{number:.1}"),
            false => number.to_string(),
        },
        exponent => format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs()),
    }
}

/// How `json.dumps` writes.
pub(super) struct Json {
    /// What lines begin with for each level, if there are lines.
    pub indent: Option<String>,
    /// Between items, and between a key and its value.
    pub separators: (String, String),
    pub is_ascii: bool,
    pub is_sorted: bool,
}

impl Json {
    /// The text of a value.
    pub fn write(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.value(value, 0, &mut out)?;
        Ok(out)
    }

    fn value(&self, value: &Value, level: usize, out: &mut String) -> Result<(), Error> {
        size::check_depth(level)?;
        size::check_text(out.len())?;
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&match value.is_integer() {
                true => value.to_string(),
                false => number(value).replace("inf", "Infinity").replace("nan", "NaN"),
            }),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.between("[]", &items, level, out, |item, out| self.value(item, level + 1, out))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.is_sorted {
                    keys.sort();
                }
                self.between("{}", &keys, level, out, |key, out| {
                    match key.kind() {
                        ValueKind::String => self.string(key.as_str().unwrap_or_default(), out),
                        ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                            out.push('"');
                            self.value(key, 0, out)?;
                            out.push('"');
                        }
                        kind => return Err(refused(&format!("keys of JSON are no {kind}"))),
                    }
                    out.push_str(&self.separators.1);
                    self.value(&item(value, key), level + 1, out)
                })?;
            }
            kind => return Err(refused(&format!("{kind} cannot be written as JSON"))),
        }
        Ok(())
    }

    fn between(
        &self,
        brackets: &str,
        items: &[Value],
        level: usize,
        out: &mut String,
        write: impl Fn(&Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (open, close) = brackets.split_at(1);
        let line = |level: usize, out: &mut String| -> Result<(), Error> {
            if let Some(indent) = self.indent.as_ref().filter(|_| !items.is_empty()) {
                size::check_text(out.len().saturating_add(indent.len().saturating_mul(level)))?;
                out.push('\n');
                out.push_str(&indent.repeat(level));
            }
            Ok(())
        };
        out.push_str(open);
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                out.push_str(&self.separators.0);
            }
            line(level + 1, out)?;
            write(item, out)?;
        }
        line(level, out)?;
        out.push_str(close);
        Ok(())
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if (c as u32) < 0x20 || (self.is_ascii && (c as u32) > 0x7e) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}
