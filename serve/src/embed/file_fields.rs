//! The fields of a JSON object: each is read, or refused by name, or a warning names it.

use std::path::{Path, PathBuf};

use opara_weights::Unread;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{EmbedError, Result};

/// The fields of a file's object that nobody has read yet. Null is absent.
pub(super) struct FileFields {
    path: PathBuf,
    map: Map<String, Value>,
    unread: Unread,
}

impl FileFields {
    /// The object in this file; `None` if there is no such file.
    pub fn read(path: &Path, unread: Unread) -> Result<Option<Self>> {
        Ok(read_json(path)?.map(|map| Self::of(path, map, unread)))
    }

    /// An object within this file.
    pub fn of(path: &Path, map: Map<String, Value>, unread: Unread) -> Self {
        Self { path: path.to_path_buf(), map, unread }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads a field.
    pub fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>> {
        match self.map.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let wrong = |error: serde_json::Error| self.wrong(format!("`{name}`: {error}"));
                serde_json::from_value(value).map(Some).map_err(wrong)
            }
        }
    }

    /// Reads a field that has to be there.
    pub fn need<T: DeserializeOwned>(&mut self, name: &str) -> Result<T> {
        self.take(name)?.ok_or_else(|| self.wrong(format!("`{name}` is missing")))
    }

    /// Reads a field whose only supported value is this one.
    pub fn expect(&mut self, name: &str, value: &str) -> Result<()> {
        match self.take::<Value>(name)? {
            Some(other) if other != value => self.report(&format!("`{name}` {other}"), &format!("{value:?} is")),
            _ => Ok(()),
        }
    }

    /// Refuses or warns of the fields that nobody has read, unless they are empty or change no answer.
    pub fn finish(self, harmless: &[&str]) -> Result<()> {
        let is_empty = |value: &Value| match value {
            Value::Null => true,
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        };
        let mut others = self.map.iter().filter(|(name, value)| !harmless.contains(&name.as_str()) && !is_empty(value));
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
