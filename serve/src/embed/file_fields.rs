//! The fields of the object in a file: each is read, or refused by name, or a warning names it.

use std::path::{Path, PathBuf};

use opara_weights::{FieldError, Fields, Harmless, Unread};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{EmbedError, Result};

/// The fields of a file's object, or of one inside of it.
pub(super) struct FileFields {
    path: PathBuf,
    fields: Fields<Value>,
    unread: Unread,
}

impl FileFields {
    /// The object in this file; `None` if there is no such file.
    pub fn read(path: &Path, unread: Unread) -> Result<Option<Self>> {
        Ok(read_json(path)?.map(|map| Self::of(path, map, unread)))
    }

    /// An object within this file.
    pub fn of(path: &Path, map: Map<String, Value>, unread: Unread) -> Self {
        Self { path: path.to_path_buf(), fields: map.into_iter().collect::<Vec<_>>().into(), unread }
    }

    /// Reads a field.
    pub fn take<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        self.fields.take(name).map_err(|error| self.unsound(&error))
    }

    /// Reads a field that has to be there.
    pub fn need<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        self.fields.need(name).map_err(|error| self.unsound(&error))
    }

    /// Reads a field that is an object; one without fields where it is absent.
    pub fn object(&self, name: &str) -> Result<Self> {
        let fields = self.fields.object(name).map_err(|error| self.unsound(&error))?;
        Ok(Self { path: self.path.clone(), fields, unread: self.unread })
    }

    /// Reads a field whose only supported value is this one.
    pub fn expect(&self, name: &str, value: &str) -> Result<()> {
        match self.take::<Value>(name)? {
            Some(other) if other != value => {
                self.report(&format!("`{}` {other}", self.fields.name(name)), &format!("{value:?} is"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses or warns of the fields that nobody has read, unless they are empty or change no answer.
    pub fn finish(self, names: &'static [&'static str]) -> Result<()> {
        let is_empty = |value: &Value| match value {
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        };
        let unread = self.fields.unread(&[Harmless { names, neutral: &[] }]);
        let mut others = unread.iter().filter(|(_, value)| !is_empty(value));
        others.try_for_each(|(name, value)| {
            self.report(&format!("`{name}` {value}"), "leave the field out if it changes no answer")
        })
    }

    /// Refuses something that is not supported, or warns of it, and says what to do.
    pub fn report(&self, name: &str, advice: &str) -> Result<()> {
        self.unread.report(self.unsupported(name, advice))
    }

    /// The error of something that is not supported, and what to do.
    pub fn unsupported(&self, name: &str, advice: &str) -> EmbedError {
        EmbedError::Unsupported { path: self.path.clone(), name: name.into(), advice: advice.into() }
    }

    /// The error of a file that is not sound.
    pub fn wrong(&self, reason: String) -> EmbedError {
        EmbedError::File { path: self.path.clone(), reason }
    }

    fn unsound(&self, error: &FieldError) -> EmbedError {
        self.wrong(error.to_string())
    }
}

/// The content of a file that need not be there.
pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let failed = |reason: String| EmbedError::File { path: path.to_path_buf(), reason };
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| failed(error.to_string())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error.to_string())),
    }
}
