//! `a[start:stop:step]` as Python has it.

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::python::Tuple;
use super::refusal::refused;
use super::weight;

/// A part of a text or a list; undefined for values that have no parts.
pub(super) fn sliced(a: &Value, start: Value, stop: Option<Value>, step: Option<Value>) -> Result<Value, Error> {
    weight::read(a)?;
    let number = |value: Option<Value>| match value.filter(|value| !value.is_none() && !value.is_undefined()) {
        None => Ok(None),
        Some(value) => i64::try_from(value).map(Some),
    };
    let (start, stop, step) = (number(Some(start))?, number(stop)?, number(step)?.unwrap_or(1));
    let of = |length: usize| places(length, start, stop, step);
    weight::made(match (a.kind(), a.as_str()) {
        (ValueKind::String, Some(text)) => {
            let letters: Vec<char> = text.chars().collect();
            Value::from(of(letters.len())?.map(|at| letters[at]).collect::<String>())
        }
        (ValueKind::Seq | ValueKind::Iterable, _) => {
            let items: Vec<Value> = a.try_iter()?.collect();
            let part = of(items.len())?.map(|at| items[at].clone());
            match Tuple::items(a) {
                Some(_) => Tuple::value(part),
                None => part.collect(),
            }
        }
        (ValueKind::Undefined, _) => return Err(refused("what is undefined has no parts")),
        _ => Value::UNDEFINED,
    })
}

/// The places that Python's `slice.indices` gives.
fn places(
    length: usize,
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
) -> Result<impl Iterator<Item = usize>, Error> {
    if step == 0 {
        return Err(refused("the step of a slice is not 0"));
    }
    let length = length as i64;
    let (lowest, highest) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let clamped = |place: i64| match place < 0 {
        true => place.saturating_add(length).max(lowest),
        false => place.min(highest),
    };
    let (first, last) = if step > 0 { (lowest, highest) } else { (highest, lowest) };
    let (first, last) = (start.map_or(first, clamped), stop.map_or(last, clamped));
    let next = move |at: &i64| at.checked_add(step);
    let is_within = move |at: &i64| if step > 0 { *at < last } else { *at > last };
    Ok(std::iter::successors(Some(first), next).take_while(is_within).map(|at| at as usize))
}
