//! Filters, tests and functions as jinja2 has them, where minijinja's differ, and those that transformers adds.

use chrono::format::{Item, StrftimeItems};
use chrono::NaiveDateTime;
use minijinja::value::{from_args, Kwargs, Rest, ValueKind};
use minijinja::{filters, Error, State, Value};
use minijinja_contrib::{filters as more, globals};

use super::markup::escape;
use super::numbers::{self, quotient};
use super::operations::Operations;
use super::operators;
use super::python::{item, text, Json, Tuple};
use super::refusal::refused;
use super::size::replaced;
use super::{budget, size, slice, weight};

/// Puts them into an environment, whose clock this is.
pub(super) fn add(environment: &mut Operations, now: fn() -> NaiveDateTime) {
    environment.add_filter("tojson", to_json);
    environment.add_filter("string", |value: &Value| text(value));
    environment.add_filter("upper", |value: &Value| text(value).map(|text| text.to_uppercase()));
    environment.add_filter("lower", |value: &Value| text(value).map(|text| text.to_lowercase()));
    environment.add_filter("capitalize", |value: &Value| text(value).map(|text| capitalized(&text)));
    environment.add_filter("title", title);
    environment.add_filter("trim", |value: &Value, letters: Option<&str>| {
        let text = text(value)?;
        Ok::<_, Error>(match letters {
            Some(letters) => text.trim_matches(|c| letters.contains(c)).to_owned(),
            None => text.trim().to_owned(),
        })
    });
    environment.add_filter("replace", |value: &Value, old: &str, new: &str, most: Option<usize>| {
        replaced(&text(value)?, old, new, most.unwrap_or(usize::MAX))
    });
    environment.add_filter("batch", |state: &State, value: Value, count: usize, fill: Option<Value>| {
        size::check_list(count)?;
        filters::batch(state, value, count, fill)
    });
    environment.add_filter("slice", |state: &State, value: Value, count: usize, fill: Option<Value>| {
        size::check_list(count)?;
        filters::slice(state, value, count, fill)
    });
    environment.add_filter("format", |state: &State, value: &Value, args: Rest<Value>| format(state, value, &args));
    environment.add_filter("join", join);
    numbers::add(environment);
    // minijinja's differs from Python's, and Python has none of the others.
    for name in ["pprint", "chain", "zip", "lines", "split", "bool"] {
        environment.remove_filter(name);
    }
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("indent", indent);
    environment.add_filter("items", items);
    environment.add_filter("dictsort", dictsort);
    environment.add_filter("center", |state: &State, value: &str, width: Option<usize>| {
        super::methods::call(state, &Value::from(value), "center", &[Value::from(width.unwrap_or(80))])
    });
    environment.add_filter("forceescape", escape);
    for name in ["escape", "e"] {
        environment.add_filter(name, |value: &Value| if value.is_safe() { Ok(value.clone()) } else { escape(value) });
    }
    environment.add_filter("wordcount", |value: &str| value.split_whitespace().count());
    environment.add_filter("truncate", more::truncate);
    add_operators(environment);
    environment.add_test("iterable", |value: &Value| {
        matches!(value.kind(), ValueKind::Undefined | ValueKind::String)
            || (!value.is_none() && value.try_iter().is_ok())
    });
    environment.add_test("sequence", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Iterable | ValueKind::Map
        )
    });
    environment.add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain || value.is_undefined());
    environment
        .add_function("raise_exception", |reason: &Value| -> Result<Value, Error> { Err(refused(&text(reason)?)) });
    environment.add_function("strftime_now", move |format: &str| strftime(now(), format));
    environment.add_function("dict", dict);
    environment.add_function("cycler", |items: Rest<Value>| globals::cycler(items.0));
    environment.add_function("joiner", globals::joiner);
    environment.add_function("lipsum", |state: &State, n: Option<usize>, kwargs: Kwargs| {
        let named = ["n", "min", "max"].iter().filter_map(|name| kwargs.peek::<Option<usize>>(name).ok().flatten());
        named.chain(n).try_for_each(size::check_words)?;
        globals::lipsum(state, n, kwargs)
    });
}

/// Letters of a format of dates.
const MOST_FORMAT: usize = 1000;

/// What the rewriter writes.
fn add_operators(environment: &mut Operations) {
    environment.add_filter(operators::TEXT, concatenated);
    environment.add_operator(operators::SUM, numbers::added);
    environment.add_operator(operators::PRODUCT, numbers::multiplied);
    environment.add_operator(operators::SLICE, slice::sliced);
    environment.add_filter(operators::REMAINDER, remainder);
    environment
        .add_filter(operators::FORMAT, |state: &State, value: &Value, args: Rest<Value>| format(state, value, &args));
    environment.add_filter(operators::QUOTIENT, |a: &Value, b: &Value| quotient(a, b).map(|(quotient, _)| quotient));
    environment.add_operator(operators::KEPT, weight::kept);
    environment.add_operator(operators::HELD, weight::held);
    environment.add_operator(operators::PLAIN, |bytes: usize| budget::made_text(bytes).map(|()| Value::UNDEFINED));
}

/// The texts of `~`, one behind the other.
fn concatenated(first: &Value, others: Rest<Value>) -> Result<String, Error> {
    let mut told = text(first)?;
    for other in others.iter() {
        let part = text(other)?;
        size::check_text(told.len() + part.len())?;
        told.push_str(&part);
    }
    Ok(told)
}

/// The first letter large, the others small.
fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().collect::<String>());
    first.unwrap_or_default() + &letters.as_str().to_lowercase()
}

/// Every word capitalized, where words are what spaces, hyphens and opening brackets part.
fn title(value: &Value) -> Result<String, Error> {
    let text = text(value)?;
    let words = text.split_inclusive(|c: char| c.is_whitespace() || matches!(c, '-' | '(' | '{' | '[' | '<'));
    Ok(words.map(capitalized).collect())
}

/// A value as `tojson` writes it.
pub fn as_json(value: &Value) -> Result<String, Error> {
    to_json(value, None, Kwargs::from_iter::<[(&str, Value); 0]>([]))
}

/// `json.dumps` with transformers' defaults.
fn to_json(value: &Value, is_ascii: Option<bool>, kwargs: Kwargs) -> Result<String, Error> {
    let is_ascii = is_ascii.or(kwargs.get("ensure_ascii")?).unwrap_or(false);
    let indent = kwargs.get::<Option<Value>>("indent")?.filter(|indent| !indent.is_none());
    let indent = match indent {
        None => None,
        Some(indent) => Some(match indent.as_str() {
            Some(indent) => indent.to_owned(),
            None => " ".repeat(usize::try_from(indent)?.min(100)),
        }),
    };
    let separators = kwargs.get::<Option<Value>>("separators")?.filter(|separators| !separators.is_none());
    let separators = match separators {
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some(pair) => {
            let pair = pair.try_iter()?.map(|part| text(&part)).collect::<Result<Vec<_>, _>>()?;
            <[String; 2]>::try_from(pair).map_err(|_| refused("`separators` are two"))?.into()
        }
    };
    let is_sorted = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    Json { indent, separators, is_ascii, is_sorted }.write(value)
}

fn join(state: &State, value: &Value, by: Option<String>, kwargs: Kwargs) -> Result<String, Error> {
    let attribute = kwargs.get::<Option<Value>>("attribute")?;
    let by = by.or(kwargs.get("d")?).unwrap_or_default();
    kwargs.assert_all_used()?;
    if value.is_undefined() {
        return Ok(String::new());
    }
    let items = match attribute {
        Some(attribute) => {
            state.apply_filter("map", &[value.clone(), Kwargs::from_iter([("attribute", attribute)]).into()])?
        }
        None => value.clone(),
    };
    let (mut told, mut is_first) = (String::new(), true);
    for item in items.try_iter()? {
        let part = text(&item)?;
        size::check_text(told.len() + by.len() + part.len())?;
        told.extend([if is_first { "" } else { by.as_str() }, &part]);
        is_first = false;
    }
    Ok(told)
}

fn length(value: &Value) -> Result<usize, Error> {
    match value.is_undefined() {
        true => Ok(0),
        false => filters::length(value),
    }
}

fn indent(
    value: &str,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let width = width.or(kwargs.get("width")?).unwrap_or_else(|| Value::from(4));
    let first = first.or(kwargs.get("first")?).unwrap_or(false);
    let blank = blank.or(kwargs.get("blank")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    let space = match width.as_str() {
        Some(space) => space.to_owned(),
        None => " ".repeat(usize::try_from(width)?.min(1000)),
    };
    size::check_text(value.len().saturating_add(space.len().saturating_mul(value.matches('\n').count() + 1)))?;
    let line = |(at, line): (usize, &str)| match if at == 0 { first } else { blank || !line.is_empty() } {
        true => format!("{space}{line}"),
        false => line.to_owned(),
    };
    Ok(value.split('\n').enumerate().map(line).collect::<Vec<_>>().join("\n"))
}

/// Lists of pairs, as tuples.
fn pairs(list: &Value) -> Result<Value, Error> {
    list.try_iter()?.map(|pair| Ok(Tuple::value(pair.try_iter()?))).collect()
}

fn items(value: &Value) -> Result<Value, Error> {
    match value.is_undefined() {
        true => Ok(Value::from(Vec::<Value>::new())),
        false => pairs(&filters::items(value)?),
    }
}

fn dictsort(value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    pairs(&filters::dictsort(value, kwargs)?)
}

fn dict(args: Rest<Value>) -> Result<Value, Error> {
    let (given, kwargs) = from_args::<(Option<Value>, Kwargs)>(&args)?;
    let mut pairs = Vec::new();
    match given {
        Some(map) if map.kind() == ValueKind::Map => {
            for key in map.try_iter()? {
                pairs.push((key.clone(), map.get_item(&key)?));
            }
        }
        Some(list) => {
            for pair in list.try_iter()? {
                pairs.push((pair.get_item_by_index(0)?, pair.get_item_by_index(1)?));
            }
        }
        None => {}
    }
    for name in kwargs.args() {
        pairs.push((Value::from(name), kwargs.get(name)?));
    }
    Ok(pairs.into_iter().collect())
}

/// `%`: the texts that a pattern asks for, or what a division leaves.
fn remainder(state: &State, a: &Value, b: &Value) -> Result<Value, Error> {
    match a.as_str() {
        Some(_) => format(state, a, Tuple::items(b).unwrap_or(std::slice::from_ref(b))),
        None => quotient(a, b).map(|(_, rest)| rest),
    }
}

fn format(state: &State, pattern: &Value, args: &[Value]) -> Result<Value, Error> {
    pattern.as_str().map_or(Ok(()), size::check_pattern)?;
    let names = pattern.as_str().is_some_and(|pattern| pattern.contains("%("));
    let fields = pattern.as_str().map_or(0, |pattern| pattern.matches('%').count());
    let written = |value: &Value| {
        Ok(match value.kind() {
            ValueKind::String | ValueKind::Number => value.clone(),
            // Which has the values that the pattern names.
            ValueKind::Map if names => value.clone(),
            _ => Value::from(text(value)?),
        })
    };
    let args = args.iter().map(written).collect::<Result<Vec<_>, Error>>()?;
    let longest = |value: &Value| match value.kind() {
        ValueKind::Map => value.try_iter().into_iter().flatten().map(|key| told_bytes(&item(value, &key))).max(),
        _ => Some(told_bytes(value)),
    };
    size::check_text(fields.saturating_mul(args.iter().filter_map(longest).max().unwrap_or(0)))?;
    filters::format(state, pattern, Rest(args))
}

/// Bytes of a value's text: too many, if they are too many.
fn told_bytes(value: &Value) -> usize {
    text(value).map_or(usize::MAX, |text| text.len())
}

fn strftime(now: NaiveDateTime, format: &str) -> Result<String, Error> {
    if format.len() > MOST_FORMAT {
        return Err(refused("a format of dates has no more than a thousand letters"));
    }
    let items: Vec<Item> = StrftimeItems::new(format).collect();
    let unknown = || refused(&format!("`{format}` is not a format of dates"));
    if items.contains(&Item::Error) {
        return Err(unknown());
    }
    let mut told = String::new();
    use std::fmt::Write as _;
    write!(told, "{}", now.format_with_items(items.iter())).map_err(|_| unknown())?;
    Ok(told)
}
