//! Environment variables that change the behaviour of executors in a deployed program. `docs/environment.md` has their table.
//!
//! They are read once, when the first executor is built. An empty variable counts as not set. An invalid value is ignored, with a
//! warning.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The cache folder of compiled kernels and tuned plans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cache {
    /// Nowhere.
    Off,
    /// In this folder.
    Folder(PathBuf),
}

impl Cache {
    /// The folder to use in place of the program's `folder`; `None` if the program or the environment wants no cache.
    pub fn instead_of(&self, folder: Option<PathBuf>) -> Option<PathBuf> {
        match self {
            Cache::Off => None,
            Cache::Folder(other) => folder.is_some().then(|| other.clone()),
        }
    }
}

/// The settings of the environment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Environment {
    /// `OPARA_OFF=1`: every executor runs its module eagerly.
    pub is_off: bool,
    /// `OPARA_FUSE=0`: launches are not fused.
    pub no_fuse: bool,
    /// `OPARA_VERIFY=0`: replays are not compared with eager execution.
    pub no_verify: bool,
    /// `OPARA_NUMERICS=exact`: no kernel of candle is replaced.
    pub is_exact: bool,
    /// `OPARA_CACHE`.
    pub cache: Option<Cache>,
    /// `OPARA_NVRTC`: the library to load instead of the toolkit's.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "kernels are compiled for GPUs"))]
    pub nvrtc: Option<OsString>,
}

impl Environment {
    /// The environment of this process.
    pub fn get() -> &'static Environment {
        static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();
        ENVIRONMENT.get_or_init(|| {
            let (environment, warnings) = Environment::read(|name| std::env::var_os(name));
            for warning in warnings {
                tracing::warn!("{warning}");
            }
            environment
        })
    }

    /// Reads the settings. Also returns a warning for each invalid value.
    pub fn read(variable: impl Fn(&str) -> Option<OsString>) -> (Self, Vec<String>) {
        let variable = |name| variable(name).filter(|value| !value.is_empty());
        let mut warnings = Vec::new();
        // `None` if the variable is not set, or is neither 0 nor 1.
        let mut switch = |name| {
            let value = variable(name)?;
            match value.to_str() {
                Some("0") => Some(false),
                Some("1") => Some(true),
                _ => {
                    warnings.push(format!("{name}={} is ignored: set it to 0 or 1", value.display()));
                    None
                }
            }
        };
        let is_off = switch("OPARA_OFF") == Some(true);
        let no_fuse = switch("OPARA_FUSE") == Some(false);
        let no_verify = switch("OPARA_VERIFY") == Some(false);
        let numerics = variable("OPARA_NUMERICS");
        let is_exact = numerics.as_ref().is_some_and(|value| value == "exact");
        if let Some(value) = numerics.filter(|_| !is_exact) {
            warnings.push(format!("OPARA_NUMERICS={} is ignored: set it to exact", value.display()));
        }
        let environment = Self {
            is_off,
            no_fuse,
            no_verify,
            is_exact,
            cache: variable("OPARA_CACHE").map(|value| match value.to_str() {
                Some("off") => Cache::Off,
                _ => Cache::Folder(value.into()),
            }),
            nvrtc: variable("OPARA_NVRTC"),
        };
        (environment, warnings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(set: &[(&str, &str)]) -> (Environment, Vec<String>) {
        Environment::read(|name| set.iter().find(|(set, _)| *set == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn values_are_read_and_invalid_ones_are_warnings() {
        let nothing = (Environment::default(), Vec::new());
        assert_eq!(read(&[]), nothing);
        assert_eq!(read(&[("OPARA_OFF", ""), ("OPARA_CACHE", "")]), nothing, "empty is not set");
        assert_eq!(read(&[("OPARA_OFF", "0"), ("OPARA_FUSE", "1"), ("OPARA_VERIFY", "1")]), nothing, "as it is anyway");
        let (environment, warnings) = read(&[("OPARA_OFF", "1"), ("OPARA_FUSE", "0"), ("OPARA_VERIFY", "0")]);
        assert!(environment.is_off && environment.no_fuse && environment.no_verify && warnings.is_empty());
        let (environment, warnings) = read(&[("OPARA_OFF", "yes"), ("OPARA_FUSE", "off"), ("OPARA_VERIFY", "0")]);
        let expected = Environment { no_verify: true, ..Environment::default() };
        assert_eq!(environment, expected);
        assert_eq!(warnings.len(), 2);
        assert_eq!(warnings[0], "OPARA_OFF=yes is ignored: set it to 0 or 1");
        assert_eq!(read(&[("OPARA_NUMERICS", "exact")]).0, Environment { is_exact: true, ..Environment::default() });
        let (environment, warnings) = read(&[("OPARA_NUMERICS", "accurate")]);
        assert_eq!((environment, warnings.len()), (Environment::default(), 1), "it only switches off");
    }
}
