//! Dictionaries as Python has them.

use std::sync::Arc;

use minijinja::value::{from_args, Enumerator, Object, ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::budget;
use super::python::{item, Tuple};

/// A dictionary of Python. Its methods come before its keys: `d.items()` lists pairs, even where a key is called `items`.
#[derive(Debug)]
struct Dict(Value);

impl Object for Dict {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get_item(key).ok().filter(|value| !value.is_undefined())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.try_iter().map(Iterator::collect).unwrap_or_default())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        self.0.len()
    }

    fn call_method(self: &Arc<Self>, _: &State<'_, '_>, method: &str, args: &[Value]) -> Result<Value, Error> {
        let unknown = || Err(Error::from(ErrorKind::UnknownMethod));
        of_dict(&self.0, method, args).unwrap_or_else(unknown)
    }
}

/// A value from outside, with dictionaries that have Python's methods.
pub(crate) fn of_json(value: &Value) -> Value {
    match value.kind() {
        ValueKind::Map => {
            let pairs = value.try_iter().into_iter().flatten();
            Value::from_object(Dict(pairs.map(|key| (key.clone(), of_json(&item(value, &key)))).collect()))
        }
        ValueKind::Seq => value.try_iter().into_iter().flatten().map(|value| of_json(&value)).collect(),
        _ => value.clone(),
    }
}

/// Is it a dictionary of a request? Templates make others.
pub(super) fn is(value: &Value) -> bool {
    value.downcast_object_ref::<Dict>().is_some()
}

/// A dictionary's method; `None` if it has none of this name.
pub(super) fn of_dict(dict: &Value, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    let keys = || dict.try_iter().into_iter().flatten();
    let value = |key: &Value| dict.get_item(key).unwrap_or_default();
    let none = || from_args::<()>(args).and_then(|()| budget::made_items(dict.len().unwrap_or(0)));
    Some(match method {
        "items" => none().map(|()| keys().map(|key| Tuple::value([key.clone(), value(&key)])).collect()),
        "keys" => none().map(|()| keys().collect()),
        "values" => none().map(|()| keys().map(|key| value(&key)).collect()),
        "copy" => none().map(|()| dict.clone()),
        "get" => from_args::<(&Value, Option<Value>)>(args).map(|(key, default)| {
            // Lists are no keys in Python.
            let is_key = !matches!(key.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable);
            let found = Some(key).filter(|_| is_key).map(value).filter(|value| !value.is_undefined());
            found.or(default).unwrap_or_else(|| Value::from(()))
        }),
        _ => return None,
    })
}
