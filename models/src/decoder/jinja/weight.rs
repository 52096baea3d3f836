//! What values weigh. A value that an operation makes is small and complete: nothing is computed later, where no one pays for it. One that a
//! name is set to is shallow, too.

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::budget;
use super::dict;
use super::python::item;
use super::refusal::refused;
use super::size;

/// Values inside of each other in what requests and templates make together.
const MOST_COMPARED_DEPTH: usize = 512;

/// How much more doing something with a letter or an item costs than reading it.
const EACH: usize = 8;

/// Is it a namespace, or a loop? They change, or hold what no one can look at, so that circles and chains of them have no depth.
fn is_changing(value: &Value) -> bool {
    let name = value.as_object().map_or("", |object| object.type_name());
    name.ends_with("::Namespace") || name.ends_with("::Loop")
}

/// Pays for a value that an operation reads, but not for what is inside of its items.
pub(super) fn read(value: &Value) -> Result<(), Error> {
    items_read(value, 1)
}

/// Pays for a value that a filter or a method works on. It does something with each letter and item.
pub(super) fn worked(value: &Value) -> Result<(), Error> {
    items_read(value, EACH)
}

fn items_read(value: &Value, times: usize) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => budget::read_text(text.len().saturating_mul(times)),
        None if matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) => {
            budget::read_items(value.len().unwrap_or(1).max(1).saturating_mul(times))
        }
        None => Ok(()),
    }
}

/// Pays for a value that is read with all that is inside of it, as comparing does.
pub(super) fn compared(value: &Value) -> Result<(), Error> {
    deep(value, 1, 0)
}

/// [`compared`], as often as sorting compares each item: a list is sorted in as many turns as the number of its items has bits.
pub(super) fn sorted(value: &Value) -> Result<(), Error> {
    let items = value.as_str().map_or_else(|| value.len().unwrap_or(0), str::len);
    match (usize::BITS - items.leading_zeros()) as usize {
        0 => Ok(()),
        turns => deep(value, turns, 0),
    }
}

fn deep(value: &Value, times: usize, depth: usize) -> Result<(), Error> {
    if let Some(text) = value.as_str() {
        return budget::read_text((text.len() + 1).saturating_mul(times));
    }
    budget::visit(times)?;
    if depth > MOST_COMPARED_DEPTH {
        return Err(size::too_large());
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => value.try_iter()?.try_for_each(|item| deep(&item, times, depth + 1)),
        ValueKind::Map if is_changing(value) => Ok(()),
        ValueKind::Map => value.try_iter()?.try_for_each(|key| {
            deep(&key, times, depth + 1)?;
            deep(&item(value, &key), times, depth + 1)
        }),
        _ => Ok(()),
    }
}

/// A value that an operation made, complete, if it is small enough. Pays for it.
pub(super) fn made(value: Value) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        size::check_text(text.len())?;
        budget::made_text(text.len())?;
        return Ok(value);
    }
    let value = complete(value)?;
    if matches!(value.kind(), ValueKind::Seq | ValueKind::Map) && !dict::is(&value) {
        let items = value.len().unwrap_or(0);
        size::check_list(items)?;
        budget::made_items(items)?;
    }
    Ok(value)
}

/// A list instead of what computes its items later: those of a chain would be as deep as the chain is long.
fn complete(value: Value) -> Result<Value, Error> {
    if value.kind() != ValueKind::Iterable {
        return Ok(value);
    }
    size::check_list(value.len().unwrap_or(0))?;
    let mut items = Vec::new();
    for item in value.try_iter()? {
        size::check_list(items.len() + 1)?;
        budget::read_items(1)?;
        items.push(item);
    }
    Ok(Value::from(items))
}

/// What a name is set to, complete. Refuses what is too large or too deep.
pub(super) fn kept(value: Value) -> Result<Value, Error> {
    let value = complete(value)?;
    inside(&value, 0, &mut 0, &|_| Ok(()))?;
    Ok(value)
}

/// What a namespace is given: nothing that could hold the namespace, since circles are never freed.
pub(super) fn held(value: Value) -> Result<Value, Error> {
    let value = complete(value)?;
    check_held(&value)?;
    Ok(value)
}

/// Refuses what no namespace can have.
pub(super) fn check_held(value: &Value) -> Result<(), Error> {
    let refuse = |value: &Value| match value.kind() == ValueKind::Plain || is_changing(value) {
        true => Err(refused("a namespace holds no namespaces, loops, macros and functions")),
        false => Ok(()),
    };
    inside(value, 0, &mut 0, &refuse)
}

/// Looks at all that is inside of a value, but not into namespaces and dictionaries of requests, which are as deep as JSON may be.
fn inside(
    value: &Value,
    depth: usize,
    count: &mut usize,
    look: &dyn Fn(&Value) -> Result<(), Error>,
) -> Result<(), Error> {
    look(value)?;
    let kind = value.kind();
    let has_items = matches!(kind, ValueKind::Seq | ValueKind::Map | ValueKind::Iterable);
    if !has_items || is_changing(value) || dict::is(value) {
        return Ok(());
    }
    size::check_depth(depth)?;
    budget::visit(1)?;
    for item in value.try_iter()? {
        *count += 1;
        budget::read_items(1)?;
        size::check_list(*count)?;
        if kind == ValueKind::Map {
            inside(&self::item(value, &item), depth + 1, count, look)?;
        }
        inside(&item, depth + 1, count, look)?;
    }
    Ok(())
}
