//! Methods of Python's strings, lists and dictionaries, beyond those of `minijinja_contrib`.

use minijinja::value::{from_args, Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::dict::of_dict;
use super::python::{text, Tuple};
use super::refusal::refused;
use super::{size, weight};

/// Calls a method of a value, which pays for what it reads and makes.
pub(super) fn call(state: &State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let is_list = matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    match is_list {
        true => weight::compared(value)?,
        false => weight::worked(value)?,
    }
    args.iter().try_for_each(if is_list { weight::compared } else { weight::read })?;
    let known = match (value.kind(), value.as_str()) {
        (ValueKind::Map, _) => of_dict(value, method, args),
        (ValueKind::String, Some(text)) => of_text(text, method, args),
        (ValueKind::Seq | ValueKind::Iterable, _) => of_list(value, method, args),
        _ => None,
    };
    let made = known.unwrap_or_else(|| match (method, value.as_str()) {
        ("format", Some(pattern)) => unknown_method_callback(state, value, method, &written(pattern, args)?),
        ("split", Some(text)) => {
            size::check_parts(text, args.first().and_then(Value::as_str))?;
            unknown_method_callback(state, value, method, args)
        }
        ("splitlines", Some(text)) => {
            size::check_parts(text, Some("\n"))?;
            unknown_method_callback(state, value, method, args)
        }
        _ => unknown_method_callback(state, value, method, args),
    })?;
    weight::made(made)
}

/// What a pattern is filled with: texts for lists and dictionaries.
fn written(pattern: &str, args: &[Value]) -> Result<Vec<Value>, Error> {
    size::check_pattern(pattern)?;
    let mut longest = 0;
    let mut one = |value: &Value| -> Result<Value, Error> {
        let is_plain = matches!(value.kind(), ValueKind::Number | ValueKind::Bool | ValueKind::None);
        let told = if is_plain || value.as_str().is_some() { value.clone() } else { Value::from(text(value)?) };
        longest = told.as_str().map_or(0, str::len).max(longest);
        Ok(told)
    };
    let mut told = Vec::with_capacity(args.len());
    for arg in args {
        told.push(match arg.is_kwargs() {
            true => {
                let names = Kwargs::try_from(arg.clone())?;
                let pairs = names.args().map(|name| Ok((name, one(&names.get::<Value>(name)?)?)));
                Kwargs::from_iter(pairs.collect::<Result<Vec<_>, Error>>()?).into()
            }
            false => one(arg)?,
        });
    }
    size::check_text(pattern.len().saturating_add(pattern.matches('{').count().saturating_mul(longest)))?;
    Ok(told)
}

fn of_list(list: &Value, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    let items = || list.try_iter().into_iter().flatten();
    Some(match method {
        "count" => {
            from_args::<(&Value,)>(args).map(|(value,)| Value::from(items().filter(|item| item == value).count()))
        }
        "copy" => from_args::<()>(args).map(|()| items().collect()),
        "index" => from_args::<(&Value,)>(args).and_then(|(value,)| {
            let at = items().position(|item| item == *value);
            at.map(Value::from).ok_or_else(|| refused("the value is not in the list"))
        }),
        _ => return None,
    })
}

fn of_text(text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    let none = || from_args::<()>(args);
    let is = |test: fn(char) -> bool| !text.is_empty() && text.chars().all(test);
    Some(match method {
        "replace" if args.len() < 4 => from_args::<(&str, &str, Option<i64>)>(args).and_then(|(old, new, most)| {
            let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
            size::replaced(text, old, new, most).map(Value::from)
        }),
        "join" => from_args::<(&Value,)>(args).and_then(|(list,)| {
            let (mut told, mut is_first) = (String::new(), true);
            for part in list.try_iter()? {
                let part = part.as_str().map(str::to_owned).map_or_else(|| self::text(&part), Ok)?;
                size::check_text(told.len() + text.len() + part.len())?;
                told.extend([if is_first { "" } else { text }, &part]);
                is_first = false;
            }
            Ok(Value::from(told))
        }),
        "partition" => from_args::<(&str,)>(args).map(|(by,)| {
            let (before, by, after) = text.split_once(by).map_or((text, "", ""), |(before, after)| (before, by, after));
            Tuple::value([before, by, after].map(Value::from))
        }),
        "rpartition" => from_args::<(&str,)>(args).map(|(by,)| {
            let (before, by, after) =
                text.rsplit_once(by).map_or(("", "", text), |(before, after)| (before, by, after));
            Tuple::value([before, by, after].map(Value::from))
        }),
        "rsplit" => from_args::<(Option<&str>, Option<i64>)>(args).and_then(|(by, most)| {
            size::check_parts(text, by)?;
            let most =
                most.and_then(|most| usize::try_from(most).ok()).map_or(usize::MAX, |most| most.saturating_add(1));
            let mut parts: Vec<&str> = match by {
                Some(by) => text.rsplitn(most, by).collect(),
                None => return Ok(Value::from_serialize(rsplit_at_spaces(text, most))),
            };
            parts.reverse();
            Ok(Value::from_serialize(parts))
        }),
        "index" | "rindex" => from_args::<(&str,)>(args).and_then(|(part,)| {
            let at = if method == "index" { text.find(part) } else { text.rfind(part) };
            let letters = at.map(|at| Value::from(text[..at].chars().count()));
            letters.ok_or_else(|| refused("the substring is not found"))
        }),
        "startswith" | "endswith" if args.len() > 1 => {
            from_args::<(&str, i64, Option<i64>)>(args).map(|(part, start, end)| {
                let letters: Vec<char> = text.chars().collect();
                let at = |place: i64| match usize::try_from(place) {
                    Ok(place) => place.min(letters.len()),
                    Err(_) => letters.len().saturating_sub(place.unsigned_abs() as usize),
                };
                let (start, end) = (at(start), end.map_or(letters.len(), at));
                let within: String = letters.get(start..end).unwrap_or_default().iter().collect();
                Value::from(if method == "startswith" { within.starts_with(part) } else { within.ends_with(part) })
            })
        }
        "find" | "rfind" if args.len() == 2 => from_args::<(&str, usize)>(args).map(|(part, start)| {
            let from = text.char_indices().nth(start).map_or(text.len(), |(at, _)| at);
            let at = if method == "find" { text[from..].find(part) } else { text[from..].rfind(part) };
            at.map_or(Value::from(-1), |at| Value::from(text[..from + at].chars().count()))
        }),
        "removeprefix" => {
            from_args::<(&str,)>(args).map(|(part,)| Value::from(text.strip_prefix(part).unwrap_or(text)))
        }
        "removesuffix" => {
            from_args::<(&str,)>(args).map(|(part,)| Value::from(text.strip_suffix(part).unwrap_or(text)))
        }
        "swapcase" => none().map(|()| {
            let swapped = |c: char| -> String {
                if c.is_uppercase() {
                    c.to_lowercase().collect()
                } else {
                    c.to_uppercase().collect()
                }
            };
            Value::from(text.chars().map(swapped).collect::<String>())
        }),
        "casefold" => none().map(|()| Value::from(text.to_lowercase().replace('ß', "ss").replace('ς', "σ"))),
        "center" | "ljust" | "rjust" => from_args::<(usize, Option<&str>)>(args).and_then(|(width, by)| {
            let missing = width.saturating_sub(text.chars().count());
            let by = by.unwrap_or(" ");
            if by.chars().count() != 1 || missing > MOST {
                return Err(refused("a text is filled up with one letter, to no more than a million"));
            }
            let before = match method {
                "ljust" => 0,
                "rjust" => missing,
                // As Python rounds: an odd letter stands where both numbers are odd.
                _ => missing / 2 + (missing & width & 1),
            };
            Ok(Value::from(format!("{}{text}{}", by.repeat(before), by.repeat(missing - before))))
        }),
        "zfill" => from_args::<(usize,)>(args).and_then(|(width,)| {
            let missing = width.saturating_sub(text.chars().count());
            let (sign, rest) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            if missing > MOST {
                return Err(refused("a text is filled up to no more than a million letters"));
            }
            Ok(Value::from(format!("{sign}{}{rest}", "0".repeat(missing))))
        }),
        "expandtabs" => from_args::<(Option<usize>,)>(args).and_then(|(width,)| {
            let width = width.unwrap_or(8).min(MOST);
            size::check_text(text.len().saturating_add(text.matches('\t').count().saturating_mul(width)))?;
            let (mut told, mut column) = (String::new(), 0);
            for c in text.chars() {
                match c {
                    '\t' => {
                        let spaces = if width == 0 { 0 } else { width - column % width };
                        told.extend(std::iter::repeat_n(' ', spaces));
                        column += spaces;
                    }
                    c => {
                        told.push(c);
                        column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
                    }
                }
            }
            Ok(Value::from(told))
        }),
        "isdecimal" => none().map(|()| Value::from(is(|c| c.is_ascii_digit()))),
        "isprintable" => {
            none().map(|()| Value::from(text.chars().all(|c| c == ' ' || !(c.is_control() || c.is_whitespace()))))
        }
        "istitle" => none().map(|()| {
            let (mut is_title, mut follows, mut has_case) = (true, false, false);
            for c in text.chars() {
                let has = c.is_uppercase() || c.is_lowercase();
                is_title &= !has || c.is_uppercase() != follows;
                (follows, has_case) = (has, has_case | has);
            }
            Value::from(is_title && has_case)
        }),
        "encode" => Err(Error::new(ErrorKind::UnknownMethod, "bytes are not supported in templates")),
        _ => return None,
    })
}

/// Letters that a text is filled up with at most.
const MOST: usize = 1_000_000;

fn rsplit_at_spaces(text: &str, most: usize) -> Vec<&str> {
    let (mut parts, mut rest) = (Vec::new(), text.trim_end());
    while !rest.is_empty() {
        let at = rest.rfind(char::is_whitespace).filter(|_| parts.len() + 1 < most);
        let (before, part) = at.map_or(("", rest.trim_start()), |at| {
            let width = rest[at..].chars().next().map_or(0, char::len_utf8);
            (rest[..at].trim_end(), &rest[at + width..])
        });
        parts.push(part);
        rest = before;
    }
    parts.reverse();
    parts
}
