//! What configurations of models say in their fields.

use serde_json::Value;

use crate::fields::Fields;
use crate::harmless::Harmless;
use crate::json::short;
use crate::{Unread, WeightsError};

/// The largest number of things that a configuration may name: sizes up to this do not overflow when a few are multiplied.
const MOST: u64 = u32::MAX as u64;

impl<'a> Fields<&'a Value> {
    /// An error about a field.
    pub fn unsound(&self, name: &str, reason: impl std::fmt::Display) -> WeightsError {
        self.wrong(name, reason).into()
    }

    /// A field, if there is one, as `parse` reads it; `kind` says in errors what it is to be.
    ///
    /// # Errors
    /// A value that `parse` does not take.
    pub fn parsed<T>(
        &self,
        name: &str,
        kind: &str,
        parse: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, WeightsError> {
        let wrong = |value: &Value| self.unsound(name, format!("is {}, not {kind}", short(value)));
        self.get(name).map(|&value| parse(value).ok_or_else(|| wrong(value))).transpose()
    }

    /// A number of things, which is never none.
    ///
    /// # Errors
    /// Another value.
    pub fn count(&self, name: &str) -> Result<Option<usize>, WeightsError> {
        let count = self.parsed(name, "a number above 0", |value| value.as_u64().filter(|&n| n > 0))?;
        match count.filter(|&n| n > MOST) {
            Some(n) => Err(self.unsound(name, format!("is {n}: no model has more than {MOST}"))),
            None => Ok(count.map(|n| n as usize)),
        }
    }

    /// A number of things that must be given.
    ///
    /// # Errors
    /// A field that is missing, or another value.
    pub fn needed(&self, name: &str) -> Result<usize, WeightsError> {
        self.count(name)?.ok_or_else(|| self.unsound(name, "is missing"))
    }

    /// A number.
    ///
    /// # Errors
    /// Another value.
    pub fn number(&self, name: &str) -> Result<Option<f64>, WeightsError> {
        self.parsed(name, "a number", Value::as_f64)
    }

    /// A number between two others.
    ///
    /// # Errors
    /// Another value.
    pub fn number_in(&self, name: &str, range: std::ops::RangeInclusive<f64>) -> Result<Option<f64>, WeightsError> {
        let number = self.number(name)?;
        match number.filter(|number| !range.contains(number)) {
            Some(n) => {
                Err(self.unsound(name, format!("is {n}, not between {:e} and {:e}", range.start(), range.end())))
            }
            None => Ok(number),
        }
    }

    /// The number that norms add to a variance or a mean square.
    ///
    /// # Errors
    /// A number that is not positive, or that would drown what it is added to.
    pub fn epsilon(&self, name: &str) -> Result<Option<f64>, WeightsError> {
        self.number_in(name, 1e-30..=0.1)
    }

    /// True or false.
    ///
    /// # Errors
    /// Another value.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, WeightsError> {
        self.parsed(name, "true or false", Value::as_bool)
    }

    /// A text.
    ///
    /// # Errors
    /// Another value.
    pub fn text(&self, name: &str) -> Result<Option<&'a str>, WeightsError> {
        self.parsed(name, "a text", Value::as_str)
    }

    /// A list of numbers.
    ///
    /// # Errors
    /// Another value.
    pub fn numbers(&self, name: &str) -> Result<Option<Vec<f64>>, WeightsError> {
        self.parsed(name, "a list of numbers", |value| value.as_array()?.iter().map(Value::as_f64).collect())
    }

    /// Tokens: one, or a list.
    ///
    /// # Errors
    /// Another value.
    pub fn tokens(&self, name: &str) -> Result<Vec<u32>, WeightsError> {
        let token = |value: &Value| value.as_u64().and_then(|token| u32::try_from(token).ok());
        let tokens = self.parsed(name, "a token or a list of tokens", |value| match value {
            Value::Array(tokens) => tokens.iter().map(token).collect::<Option<Vec<u32>>>(),
            one => Some(vec![token(one)?]),
        });
        Ok(tokens?.unwrap_or_default())
    }

    /// Refuses what was not read by now and is not harmless.
    ///
    /// # Errors
    /// [`WeightsError::UnreadFields`].
    pub(crate) fn refuse_unread(&self, harmless: &[Harmless], unread: Unread) -> Result<(), WeightsError> {
        let others = self.unread(harmless);
        let fields: Vec<_> = others.iter().map(|(name, value)| format!("`{name}` ({})", short(value))).collect();
        match fields.is_empty() {
            true => Ok(()),
            false => unread.report(WeightsError::UnreadFields { fields }),
        }
    }
}
