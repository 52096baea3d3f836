//! Filters and operators of numbers as Python has them.

use std::cmp::Ordering;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, State, Value};

use super::markup::joined;
use super::operations::Operations;
use super::python::Tuple;
use super::refusal::refused;
use super::{size, weight};

/// What minijinja makes of an operator.
macro_rules! operation {
    ($told:literal, $($value:expr),+) => {{
        static ENVIRONMENT: std::sync::LazyLock<minijinja::Environment> = std::sync::LazyLock::new(minijinja::Environment::new);
        static OPERATION: std::sync::LazyLock<minijinja::Expression> =
            std::sync::LazyLock::new(|| ENVIRONMENT.compile_expression($told).expect("an expression"));
        let values = [$(Value::from($value.clone())),+];
        OPERATION.eval(["a", "b", "c", "d"].into_iter().zip(values).collect::<Value>())
    }};
}

/// Puts the filters into an environment.
pub(super) fn add(environment: &mut Operations) {
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    environment.add_filter("sum", sum);
    environment.add_filter("round", round);
    environment.add_filter("max", extreme(Ordering::Greater));
    environment.add_filter("min", extreme(Ordering::Less));
}

/// A number as Python reads it in a text.
fn parsed(value: &Value) -> Option<f64> {
    match value.as_str() {
        Some(text) => text.trim().replace('_', "").parse().ok(),
        None if matches!(value.kind(), ValueKind::Number | ValueKind::Bool) => {
            f64::try_from(value.clone()).ok().or(Some(f64::from(value.is_true())))
        }
        None => None,
    }
}

fn int(value: &Value, default: Option<Value>, base: Option<u32>, kwargs: Kwargs) -> Result<Value, Error> {
    let default = default.or(kwargs.get("default")?).unwrap_or_else(|| Value::from(0));
    let base = base.or(kwargs.get("base")?).unwrap_or(10);
    kwargs.assert_all_used()?;
    if !(2..=36).contains(&base) {
        return Err(refused("`base` is from 2 to 36"));
    }
    if let Some(text) = value.as_str() {
        let digits = text.trim().replace('_', "").to_lowercase();
        let prefix =
            [(16, "0x"), (8, "0o"), (2, "0b")].iter().find(|(of, _)| *of == base).map_or("", |(_, prefix)| prefix);
        let digits = digits.strip_prefix(prefix).unwrap_or(&digits);
        if let Ok(number) = i64::from_str_radix(digits, base) {
            return Ok(Value::from(number));
        }
    } else if value.is_integer() {
        return Ok(value.clone());
    }
    let whole = parsed(value).filter(|number| number.abs() < 9.2e18).map(|number| Value::from(number.trunc() as i64));
    Ok(whole.unwrap_or(default))
}

fn float(value: &Value, default: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let default = default.or(kwargs.get("default")?).unwrap_or_else(|| Value::from(0.));
    kwargs.assert_all_used()?;
    Ok(parsed(value).map_or(default, Value::from))
}

fn sum(state: &State, value: &Value, attribute: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let attribute = attribute.or(kwargs.get("attribute")?);
    let start = kwargs.get::<Option<Value>>("start")?.unwrap_or_else(|| Value::from(0));
    kwargs.assert_all_used()?;
    let items = match attribute.filter(|attribute| !attribute.is_none()) {
        Some(attribute) => {
            state.apply_filter("map", &[value.clone(), Kwargs::from_iter([("attribute", attribute)]).into()])?
        }
        None => value.clone(),
    };
    items.try_iter()?.try_fold(start, |a, b| added(&a, &b))
}

/// `+`: two texts or lists one behind the other, or a sum.
pub(super) fn added(a: &Value, b: &Value) -> Result<Value, Error> {
    [a, b].into_iter().try_for_each(weight::read)?;
    if a.as_str().is_some() && b.as_str().is_some() {
        return weight::made(joined(a, b)?);
    }
    if is_list(a) && is_list(b) {
        size::check_list(a.len().unwrap_or(0).saturating_add(b.len().unwrap_or(0)))?;
        let items = a.try_iter()?.chain(b.try_iter()?);
        return weight::made(match Tuple::items(a).and(Tuple::items(b)) {
            Some(_) => Tuple::value(items),
            None => Value::from(items.collect::<Vec<_>>()),
        });
    }
    operation!("a + b", a, b)
}

/// `*`: a text or a list several times, or a product.
pub(super) fn multiplied(a: &Value, b: &Value) -> Result<Value, Error> {
    [a, b].into_iter().try_for_each(weight::read)?;
    let (many, times) = if a.as_str().is_some() || is_list(a) { (a, b) } else { (b, a) };
    if many.as_str().is_none() && !is_list(many) {
        return operation!("a * b", a, b);
    }
    // A negative number of times is none in Python.
    let times = match i64::try_from(times.clone()) {
        Ok(times) => usize::try_from(times).unwrap_or(0),
        Err(error) => return Err(error),
    };
    if let Some(text) = many.as_str() {
        size::check_text(text.len().saturating_mul(times))?;
        return weight::made(Value::from(text.repeat(times)));
    }
    size::check_list(many.len().unwrap_or(0).saturating_mul(times))?;
    let items: Vec<Value> = many.try_iter()?.collect();
    weight::made(Value::from((0..times).flat_map(|_| items.iter().cloned()).collect::<Vec<_>>()))
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

/// The least or the largest item, by an attribute if need be; texts count without regard to case, and of several items the first does.
fn extreme(
    order: Ordering,
) -> impl Fn(&State, &Value, Option<bool>, Option<Value>, Kwargs) -> Result<Value, Error> + Send + Sync + 'static {
    move |state, value, cases, attribute, kwargs| {
        let cases = cases.or(kwargs.get("case_sensitive")?).unwrap_or(false);
        let attribute = attribute.or(kwargs.get("attribute")?).filter(|attribute| !attribute.is_none());
        kwargs.assert_all_used()?;
        let keys = match attribute {
            Some(attribute) => {
                state.apply_filter("map", &[value.clone(), Kwargs::from_iter([("attribute", attribute)]).into()])?
            }
            None => value.clone(),
        };
        let key = |key: Value| match key.as_str() {
            Some(text) if !cases => Value::from(text.to_lowercase()),
            _ => key,
        };
        let mut best: Option<(Value, Value)> = None;
        for (item, of) in value.try_iter()?.zip(keys.try_iter()?.map(key)) {
            if best.as_ref().is_none_or(|(_, most)| of.cmp(most) == order) {
                best = Some((item, of));
            }
        }
        Ok(best.map_or(Value::UNDEFINED, |(item, _)| item))
    }
}

fn round(value: &Value, precision: Option<i32>, method: Option<&str>, kwargs: Kwargs) -> Result<Value, Error> {
    let precision = precision.or(kwargs.get("precision")?).unwrap_or(0);
    let method = method.or(kwargs.get("method")?).unwrap_or("common").to_owned();
    kwargs.assert_all_used()?;
    if method == "common" && value.is_integer() {
        let number = f64::try_from(value.clone())?;
        let scale = 10f64.powi(-precision.max(-18));
        return Ok(match precision {
            0.. => value.clone(),
            _ => Value::from(((number / scale).round_ties_even() * scale) as i64),
        });
    }
    let (number, scale) = (f64::try_from(value.clone())?, 10f64.powi(precision));
    let rounded = match method.as_str() {
        // The nearest of the decimal digits that stand for the number, and the even one of two.
        "common" if (0..=300).contains(&precision) => {
            let told = format!("{number:.*}", precision as usize);
            told.parse().map_err(|_| refused("the number cannot be rounded"))?
        }
        "common" => (number * scale).round_ties_even() / scale,
        "ceil" => (number * scale).ceil() / scale,
        "floor" => (number * scale).floor() / scale,
        _ => return Err(refused("`method` is common, ceil or floor")),
    };
    Ok(Value::from(rounded))
}

/// What a division gives that rounds down, and what it leaves.
pub(super) fn quotient(a: &Value, b: &Value) -> Result<(Value, Value), Error> {
    if a.is_integer() && b.is_integer() || [a, b].iter().any(|value| value.kind() == ValueKind::Bool) {
        let whole = |value: &Value| {
            i64::try_from(value.clone()).or_else(|error| match value.kind() {
                ValueKind::Bool => Ok(i64::from(value.is_true())),
                _ => Err(error),
            })
        };
        let (a, b) = (whole(a)?, whole(b)?);
        let over = || refused("a division by zero, or one that gives too large a number");
        let rest = a.checked_rem(b).ok_or_else(over)?;
        let is_below = rest != 0 && (rest < 0) != (b < 0);
        let (quotient, rest) = (a / b - i64::from(is_below), if is_below { rest + b } else { rest });
        return Ok((Value::from(quotient), Value::from(rest)));
    }
    let (a, b) = (f64::try_from(a.clone())?, f64::try_from(b.clone())?);
    if b == 0. {
        return Err(refused("a division by zero"));
    }
    let quotient = (a / b).floor();
    Ok((Value::from(quotient), Value::from(a - quotient * b)))
}
