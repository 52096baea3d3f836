//! Where the files of a checkpoint are.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use hf_hub::api::sync::{ApiBuilder, ApiRepo};
use hf_hub::{Cache, CacheRepo};

use crate::WeightsError;

/// A place that files are asked for by name.
pub(crate) enum Source {
    /// A folder on this machine.
    Folder(PathBuf),
    /// A repository on the hub, behind its local cache.
    Hub(Box<Hub>),
}

impl Source {
    /// An existing folder is meant before a repository of the same name.
    pub(crate) fn of(model: &str) -> Result<Self, WeightsError> {
        let path = Path::new(model);
        if path.is_dir() {
            Ok(Self::Folder(path.to_path_buf()))
        } else if is_repo_id(model) && !path.exists() {
            Ok(Self::Hub(Box::new(Hub::new(model)?)))
        } else {
            Err(WeightsError::NotAModel { model: model.to_owned() })
        }
    }

    /// The first of `names` that there is; what is already on this machine
    /// goes before what would have to be downloaded.
    pub(crate) fn first(&self, names: &[&str]) -> Result<Option<PathBuf>, WeightsError> {
        match self {
            Self::Folder(folder) => Ok(names.iter().map(|name| folder.join(name)).find(|path| path.exists())),
            Self::Hub(hub) => hub.first(names),
        }
    }
}

/// A hub repository: its cached files, and the way to the others.
pub(crate) struct Hub {
    model: String,
    cached: CacheRepo,
    remote: ApiRepo,
    /// Asked for once, and only if the cache does not answer.
    listing: OnceCell<Vec<String>>,
}

impl Hub {
    fn new(model: &str) -> Result<Self, WeightsError> {
        let api =
            ApiBuilder::from_env().build().map_err(|source| WeightsError::Hub { model: model.to_owned(), source })?;
        Ok(Self {
            model: model.to_owned(),
            cached: Cache::from_env().model(model.to_owned()),
            remote: api.model(model.to_owned()),
            listing: OnceCell::new(),
        })
    }

    fn first(&self, names: &[&str]) -> Result<Option<PathBuf>, WeightsError> {
        if let Some(path) = names.iter().find_map(|name| self.cached.get(name)) {
            return Ok(Some(path));
        }
        let listing = self.listing()?;
        names
            .iter()
            .find(|name| listing.iter().any(|file| file == *name))
            .map(|name| {
                self.remote.download(name).map_err(|source| WeightsError::Download {
                    model: self.model.clone(),
                    file: (*name).to_owned(),
                    source,
                })
            })
            .transpose()
    }

    fn listing(&self) -> Result<&[String], WeightsError> {
        if let Some(listing) = self.listing.get() {
            return Ok(listing);
        }
        let info = self.remote.info().map_err(|source| WeightsError::Hub { model: self.model.clone(), source })?;
        let files = info.siblings.into_iter().map(|file| file.rfilename);
        Ok(self.listing.get_or_init(|| files.collect()))
    }
}

/// `name` or `org/name`, of the characters that the hub allows. Anything else
/// is a mistyped path, for which the hub should not be asked.
fn is_repo_id(model: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    model.split('/').count() <= 2
        && model.split('/').all(|part| !part.is_empty() && !part.starts_with('.') && part.chars().all(allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repository_ids_are_told_from_paths() {
        for id in ["bert-base-uncased", "org/name", "a/b_c.d-1"] {
            assert!(is_repo_id(id), "{id}");
        }
        for path in ["", "/", "./x", "../x", "a/", "/a", "a/b/c", "a b", "~/x", "a/.."] {
            assert!(!is_repo_id(path), "{path}");
        }
    }
}
