//! The fields of an object of JSON, with a record of those that were read.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::harmless::Harmless;
use crate::json::{Json, Misread};

/// What is wrong with a field. The text names it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct FieldError(String);

/// The fields of an object of JSON. A field that is null is absent.
///
/// ```
/// # use opara_weights::{Fields, Harmless, Unread};
/// let json = serde_json::json!({"layers": 3, "dropout": 0.1, "alibi": true});
/// let fields = Fields::of(&json)?;
/// assert_eq!(fields.needed("layers")?, 3);
/// let harmless = Harmless { names: &["dropout"], neutral: &[("alibi", "false")] };
/// let error = fields.check(&[harmless], Unread::Refuse).unwrap_err();
/// assert!(error.to_string().contains("`alibi` (true)"));
/// # Ok::<(), opara_weights::WeightsError>(())
/// ```
#[derive(Debug)]
pub struct Fields<V> {
    fields: Vec<(String, V)>,
    /// Where the object is, as a prefix of its fields' names.
    at: String,
    read: RefCell<BTreeSet<String>>,
}

impl<V> From<Vec<(String, V)>> for Fields<V> {
    fn from(fields: Vec<(String, V)>) -> Self {
        Self { fields, at: String::new(), read: RefCell::default() }
    }
}

impl<V: Json> Fields<V> {
    /// The fields of an object; none of null.
    ///
    /// # Errors
    /// A value that is no object.
    pub fn of(json: V) -> Result<Self, FieldError> {
        if json.is_null() {
            return Ok(Self::from(Vec::new()));
        }
        let wrong = |Misread { reason, .. }| FieldError(format!("not an object of JSON: {reason}"));
        json.fields().map(Self::from).map_err(wrong)
    }

    /// Of an object of this name.
    fn within(json: V, name: &str) -> Result<Self, FieldError> {
        let wrong = |Misread { reason, .. }| FieldError(format!("`{name}` is not an object: {reason}"));
        Ok(Self { at: format!("{name}."), ..json.fields().map_err(wrong)?.into() })
    }

    /// The whole name of a field.
    pub fn name(&self, field: &str) -> String {
        format!("{}{field}", self.at)
    }

    /// A field that is there and not null.
    pub fn get(&self, field: &str) -> Option<&V> {
        self.read.borrow_mut().insert(field.to_owned());
        self.fields.iter().find(|(name, _)| name == field).map(|(_, value)| value).filter(|value| !value.is_null())
    }

    /// Whether a field is there, be it null.
    pub fn has(&self, field: &str) -> bool {
        self.fields.iter().any(|(name, _)| name == field)
    }

    /// Whether no field says something.
    pub fn is_empty(&self) -> bool {
        self.fields.iter().all(|(_, value)| value.is_null())
    }

    /// All fields with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        self.fields.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// A field that may be absent.
    ///
    /// # Errors
    /// A value of another type: the error names the place in it.
    pub fn take<T: DeserializeOwned>(&self, field: &str) -> Result<Option<T>, FieldError> {
        let wrong = |Misread { place, reason }| FieldError(format!("`{}{place}`: {reason}", self.name(field)));
        self.get(field).map(|value| value.parse().map_err(wrong)).transpose()
    }

    /// A field that must be there.
    ///
    /// # Errors
    /// As for [`take`](Self::take), and where it is absent.
    pub fn need<T: DeserializeOwned>(&self, field: &str) -> Result<T, FieldError> {
        self.take(field)?.ok_or_else(|| self.wrong(field, "is missing"))
    }

    /// A field that is an object; `None` if there is no such field.
    ///
    /// # Errors
    /// A value that is no object.
    pub fn inside(&self, field: &str) -> Result<Option<Self>, FieldError> {
        self.get(field).map(|value| Self::within(value.clone(), &self.name(field))).transpose()
    }

    /// A field that is an object; one without fields where it is absent.
    ///
    /// # Errors
    /// A value that is no object.
    pub fn object(&self, field: &str) -> Result<Self, FieldError> {
        let empty = || Self { at: self.name(field) + ".", ..Vec::new().into() };
        Ok(self.inside(field)?.unwrap_or_else(empty))
    }

    /// A field that is a list of objects.
    ///
    /// # Errors
    /// A value that is no such list.
    pub fn objects(&self, field: &str) -> Result<Option<Vec<Self>>, FieldError> {
        let Some(list) = self.get(field) else { return Ok(None) };
        let name = self.name(field);
        let list = list.clone().elements();
        let list = list.map_err(|Misread { reason, .. }| FieldError(format!("`{name}` is not a list: {reason}")))?;
        let of = |(index, value)| Self::within(value, &format!("{name}[{index}]"));
        list.into_iter().enumerate().map(of).collect::<Result<_, _>>().map(Some)
    }

    /// The error of a field that is not sound.
    pub fn wrong(&self, field: &str, reason: impl std::fmt::Display) -> FieldError {
        FieldError(format!("`{}` {reason}", self.name(field)))
    }

    /// The fields that nobody has read by now, unless they are null or harmless: whole names, and values.
    pub fn unread(&self, harmless: &[Harmless]) -> Vec<(String, Value)> {
        let read = self.read.borrow();
        let is_known = |name: &str| harmless.iter().any(|known| known.names.contains(&name));
        let is_left = |(name, value): &&(String, V)| !read.contains(name) && !value.is_null() && !is_known(name);
        let rest = self.fields.iter().filter(is_left).map(|(name, value)| (name, value.parse().unwrap_or_default()));
        let rest = rest.filter(|(name, value)| !harmless.iter().any(|known| known.is_neutral(name, value)));
        rest.map(|(name, value)| (self.name(name), value)).collect()
    }
}
