//! A record: a value as JSON, in a file that is named by the hash of what the value depends on.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use super::kind::Kind;

/// The place of a value in a folder of the disk cache.
#[derive(Debug, Clone)]
pub struct Record {
    file: PathBuf,
    key: String,
}

/// The content of a file. The key tells a file that was renamed, or whose name collides.
#[derive(Serialize, Deserialize)]
struct Content<K, T> {
    key: K,
    #[serde(flatten)]
    value: T,
}

impl Record {
    /// The place of the value that depends on `key` and this crate's version alone.
    pub fn new(folder: &Path, kind: Kind, key: &str) -> Self {
        let key = format!("{key}, {}", env!("CARGO_PKG_VERSION"));
        let file = folder.join(format!("{:032x}{}", xxh3_128(key.as_bytes()), kind.ending()));
        Self { file, key }
    }

    /// The stored value as `usable` takes it, if there is a file. A file that is damaged, another key's, or not usable is reported by a
    /// warning.
    pub fn load<T: DeserializeOwned, U>(&self, usable: impl FnOnce(T) -> Result<U, String>) -> Option<U> {
        let text = super::read(&self.file)?;
        let parsed = serde_json::from_slice(&text).map_err(|error| error.to_string());
        let found = parsed.and_then(|Content::<String, T> { key, value }| match key == self.key {
            true => usable(value),
            false => Err(format!("it is for `{key}`")),
        });
        found.inspect_err(|reason| self.warn(reason)).ok()
    }

    /// Stores a value. If that fails, logs a warning.
    pub fn store<T: Serialize>(&self, value: &T) {
        match serde_json::to_vec(&Content { key: &self.key, value }) {
            Ok(text) => super::store(&self.file, &text),
            Err(error) => self.warn(&error.to_string()),
        }
    }

    fn warn(&self, reason: &str) {
        let file = self.file.to_string_lossy();
        let kind = Kind::ALL.into_iter().find(|kind| file.ends_with(kind.ending())).map_or("a record", Kind::name);
        tracing::warn!(%file, reason, "{kind} on disk is not used");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Value {
        numbers: Vec<usize>,
    }

    #[test]
    fn a_value_is_found_by_its_key_and_a_damaged_one_is_not() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let of = |key: &str| Record::new(folder.path(), Kind::Rewriting, key);
        let load = |record: &Record| record.load(Ok::<Value, String>);
        let value = || Value { numbers: vec![3, 1] };
        assert_eq!(load(&of("a")), None);
        of("a").store(&value());
        assert_eq!((load(&of("a")), load(&of("b"))), (Some(value()), None));
        assert_eq!(of("a").load(|_: Value| Err::<(), _>("it is of no use".into())), None);
        // Under the other's name it is still the first one's.
        std::fs::rename(&of("a").file, &of("b").file)?;
        assert_eq!((load(&of("a")), load(&of("b"))), (None, None));
        of("a").store(&value());
        let text = std::fs::read(&of("a").file)?;
        for damaged in [&text[..text.len() / 2], b"", b"{}", &[0xff; 64]] {
            std::fs::write(&of("a").file, damaged)?;
            assert_eq!(load(&of("a")), None);
        }
        of("a").store(&value());
        assert_eq!(load(&of("a")), Some(value()));
        Ok(())
    }
}
