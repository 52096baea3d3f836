//! Values of JSON: in memory, or wherever else a reader has them.

use serde::de::{DeserializeOwned, Deserializer};
use serde_json::Value;

/// Why a value cannot be read, and where in it.
#[derive(Debug)]
pub struct Misread {
    /// The place within the value, such as `.rows[3]`.
    pub place: String,
    /// What is wrong there.
    pub reason: String,
}

/// A value of JSON.
pub trait Json: Clone {
    /// Whether it is null.
    fn is_null(&self) -> bool;

    /// The value as a type.
    ///
    /// # Errors
    /// A value of another type.
    fn parse<T: DeserializeOwned>(&self) -> Result<T, Misread>;

    /// Its fields, if it is an object.
    ///
    /// # Errors
    /// Another value.
    fn fields(self) -> Result<Vec<(String, Self)>, Misread>;

    /// Its elements, if it is a list.
    ///
    /// # Errors
    /// Another value.
    fn elements(self) -> Result<Vec<Self>, Misread>;
}

impl Json for Value {
    fn is_null(&self) -> bool {
        Value::is_null(self)
    }

    fn parse<T: DeserializeOwned>(&self) -> Result<T, Misread> {
        Misread::parse(self)
    }

    fn fields(self) -> Result<Vec<(String, Self)>, Misread> {
        match self {
            Self::Object(object) => Ok(object.into_iter().collect()),
            other => Err(Misread::of(&other)),
        }
    }

    fn elements(self) -> Result<Vec<Self>, Misread> {
        match self {
            Self::Array(list) => Ok(list),
            other => Err(Misread::of(&other)),
        }
    }
}

impl Json for &Value {
    fn is_null(&self) -> bool {
        Value::is_null(self)
    }

    fn parse<T: DeserializeOwned>(&self) -> Result<T, Misread> {
        Misread::parse(*self)
    }

    fn fields(self) -> Result<Vec<(String, Self)>, Misread> {
        let object = self.as_object().ok_or_else(|| Misread::of(self))?;
        Ok(object.iter().map(|(name, value)| (name.clone(), value)).collect())
    }

    fn elements(self) -> Result<Vec<Self>, Misread> {
        self.as_array().map(|list| list.iter().collect()).ok_or_else(|| Misread::of(self))
    }
}

impl Misread {
    /// What `json` reads, or what is wrong with it.
    ///
    /// # Errors
    /// A value of another type.
    pub fn parse<'de, T: DeserializeOwned>(json: impl Deserializer<'de, Error = serde_json::Error>) -> Result<T, Self> {
        serde_path_to_error::deserialize(json).map_err(|error| {
            let place = match error.path().to_string() {
                path if path == "." => String::new(),
                path if path.starts_with('[') => path,
                path => format!(".{path}"),
            };
            Self { place, reason: plain(error.inner()) }
        })
    }

    /// A value of another kind.
    fn of(value: &Value) -> Self {
        Self { place: String::new(), reason: format!("it is {}", short(value)) }
    }
}

impl From<serde_json::Error> for Misread {
    fn from(error: serde_json::Error) -> Self {
        Self { place: String::new(), reason: plain(&error) }
    }
}

/// An error without its place, which counts from the value's beginning.
fn plain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.as_str(), |(reason, _)| reason).to_owned()
}

/// The beginning of a value's JSON.
pub(crate) fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}..", &text[..end]),
        None => text,
    }
}
