//! Dictionaries as Python has them.

use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::methods::of_dict;
use super::python::item;

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
