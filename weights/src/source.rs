//! Access to the files of a checkpoint.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hf_hub::api::sync::{Api, ApiBuilder, ApiError};
use hf_hub::{Cache, CacheRepo};
use indicatif::ProgressBar;

use crate::timeout::{self, Download, Heartbeat};
use crate::WeightsError;

/// A place to get files from by name.
pub(crate) enum Source {
    /// A folder on this machine.
    Folder(PathBuf),
    /// A repository on the hub, behind its local cache.
    Hub(Box<Hub>),
}

impl Source {
    /// An existing folder takes precedence over a repository of the same name.
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

    /// Finds the first of `names` that exists. Cached files take precedence over files that would have to be
    /// downloaded.
    pub(crate) fn first(&self, names: &[&str]) -> Result<Option<PathBuf>, WeightsError> {
        match self {
            Self::Folder(folder) => Ok(names.iter().map(|name| folder.join(name)).find(|path| path.exists())),
            Self::Hub(hub) => hub.first(names),
        }
    }

    /// Downloads those of these files that the hub has, if it was asked for something at all: models that are cached need no network.
    pub(crate) fn fetch(&self, names: &[&str]) -> Result<(), WeightsError> {
        match self {
            Self::Hub(hub) if hub.listing.get().is_some() => {
                names.iter().try_for_each(|name| hub.first(&[name]).map(|_| ()))
            }
            _ => Ok(()),
        }
    }
}

/// A hub repository: its cached files and the client for the others.
pub(crate) struct Hub {
    model: String,
    cached: CacheRepo,
    remote: Api,
    /// Requested at most once, and only for files that are not cached.
    listing: OnceCell<Vec<String>>,
}

impl Hub {
    fn new(model: &str) -> Result<Self, WeightsError> {
        let api =
            ApiBuilder::from_env().build().map_err(|source| WeightsError::Hub { model: model.to_owned(), source })?;
        Ok(Self {
            model: model.to_owned(),
            cached: Cache::from_env().model(model.to_owned()),
            remote: api,
            listing: OnceCell::new(),
        })
    }

    fn first(&self, names: &[&str]) -> Result<Option<PathBuf>, WeightsError> {
        if let Some(path) = names.iter().find_map(|name| self.cached.get(name)) {
            return Ok(Some(path));
        }
        let listing = self.listing()?;
        let name = names.iter().find(|name| listing.iter().any(|file| file == *name));
        name.map(|name| self.download(name)).transpose()
    }

    fn download(&self, name: &str) -> Result<PathBuf, WeightsError> {
        let (repo, file) = (self.remote.model(self.model.clone()), name.to_owned());
        let found =
            self.with_timeout(name, move |heartbeat| repo.download_with_progress(&file, Download::new(heartbeat)))?;
        found.map_err(|source| WeightsError::Download { model: self.model.clone(), file: name.to_owned(), source })
    }

    /// Sends a request with a timeout.
    fn with_timeout<T: Send + 'static>(
        &self,
        what: &str,
        request: impl FnOnce(Heartbeat<Result<T, ApiError>>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<Result<T, ApiError>, WeightsError> {
        let seconds = timeout::seconds();
        let silent = || WeightsError::HubSilent { model: self.model.clone(), what: what.to_owned(), seconds };
        timeout::call(seconds, request).ok_or_else(silent)
    }

    fn listing(&self) -> Result<&[String], WeightsError> {
        if let Some(listing) = self.listing.get() {
            return Ok(listing);
        }
        let waiting = ProgressBar::new_spinner().with_message(format!("asking the hub for {}", self.model));
        waiting.enable_steady_tick(Duration::from_millis(100));
        let repo = self.remote.model(self.model.clone());
        let found = self.with_timeout("the list of files", move |_| repo.info());
        waiting.finish_and_clear();
        let info = found?.map_err(|source| WeightsError::Hub { model: self.model.clone(), source })?;
        let files = info.siblings.into_iter().map(|file| file.rfilename);
        Ok(self.listing.get_or_init(|| files.collect()))
    }
}

/// Is this `name` or `org/name`, in the characters that the hub allows? Anything else is a mistyped path, and the hub
/// is not asked for it.
fn is_repo_id(model: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    model.split('/').count() <= 2
        && model.split('/').all(|part| !part.is_empty() && !part.starts_with('.') && part.chars().all(allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repository_ids_are_distinguished_from_paths() {
        for id in ["bert-base-uncased", "org/name", "a/b_c.d-1"] {
            assert!(is_repo_id(id), "{id}");
        }
        for path in ["", "/", "./x", "../x", "a/", "/a", "a/b/c", "a b", "~/x", "a/.."] {
            assert!(!is_repo_id(path), "{path}");
        }
    }
}
