//! The settings of an executor, as plain data.

use std::path::PathBuf;
use std::sync::Arc;

use candle::Tensor;

use crate::arguments::StateArguments;
use crate::backend::{Fusing, Rewriting};
use crate::environment::Environment;
use crate::examples::Examples;
use crate::scheduling::Scheduling;
use crate::stage::Stage;
use opara_plan::disk_cache;
use opara_plan::prepared::Settings;
use opara_plan::schedule::{BuiltIn, Scheduler};
use opara_plan::tune::Search;

/// The handling of a module that cannot be captured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnUncapturable {
    /// Run it eagerly, with the reason in a `tracing` warning and in the report.
    #[default]
    Eager,
    /// Return the reason as an error.
    Error,
}

/// The handling of a module that keeps state on the host between calls, such as a counter, or a cache in a `RefCell` or a
/// `Mutex`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnStateful {
    /// Return [`Error::Stateful`](crate::Error::Stateful) if building detects state. The module has been called by then.
    #[default]
    Error,
    /// The module is known to keep state, or to draw random numbers: building does not call it, and every call runs it eagerly. So
    /// results are the module's own from the first call on.
    Eager,
}

/// The agreement of replays with the module's own results.
///
/// Users of `torch.compile` and TensorRT expect results of the same accuracy, not the same bits. An executor replaces a module
/// that already runs, so by default it changes nothing: [`Exact`](Numerics::Exact).
/// [`Builder::numerics`](crate::Builder::numerics) chooses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Numerics {
    /// The same bits: replays launch candle's kernels, or generated kernels with the same results.
    #[default]
    Exact,
    /// The same accuracy: on a GPU, other operators replace candle's kernels where they are faster and no less accurate.
    ///
    /// While the executor is built, each replacement is compared with double precision on the inputs of all examples. Errors are
    /// multiples of `u · max(|r|, rms r)`: `r` is the result in double precision, `rms r` its root mean square, and `u` the
    /// type's unit roundoff (2^-11 in f16, 2^-8 in bf16, 2^-24 in f32). The root mean square error may be 1.05 times candle's
    /// plus 0.05, the largest error 1.5 times candle's plus 1. Infinities and NaN must be where candle's are. A replacement that
    /// fails this is dropped, with a note in the report.
    Accurate,
}

#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub scheduler: Arc<dyn Scheduler>,
    /// Are schedules proven before use?
    pub check: bool,
    /// Settings of the search for a schedule, if there is a search.
    pub tuning: Option<Search>,
    pub settings: Settings,
    /// Bytes that a training step may take beside what it reads and writes.
    pub train_memory: Option<u64>,
    pub verify: bool,
    /// Does the user promise that host code of the module does not depend on values?
    pub is_pure: bool,
    /// Examples in addition to the first one.
    pub further: Vec<Vec<Tensor>>,
    /// The state among the function's arguments.
    pub state: StateArguments,
    pub stress: u64,
    pub on_uncapturable: OnUncapturable,
    pub on_stateful: OnStateful,
    pub max_shapes: usize,
    pub recheck: u64,
    pub benchmark_challengers: bool,
    pub fuse: bool,
    pub numerics: Numerics,
    /// Names of rules that are switched off.
    pub without: Vec<String>,
    /// Cache folder of compiled kernels, of what came of rewriting, and of choices among implementations.
    pub kernels: Option<PathBuf>,
    /// Folder for the results of the stages.
    pub dump: Option<PathBuf>,
    /// The last stage that is built.
    pub stop_after: Option<Stage>,
}

impl Options {
    /// Chooses the scheduler, whether it searches, and whether its schedules are proven.
    pub fn set_scheduling(&mut self, scheduling: Scheduling) {
        (self.scheduler, self.tuning, self.check) = match scheduling {
            Scheduling::BuiltIn(scheduler) => (Arc::new(scheduler) as _, None, false),
            Scheduling::Search(search) => (Arc::new(BuiltIn::Tuned) as _, Some(search), false),
            Scheduling::Own(scheduler) => (scheduler, None, true),
        };
    }

    /// Applies the environment, which only switches things off.
    pub fn under(mut self, environment: &Environment) -> Self {
        self.fuse &= !environment.no_fuse;
        self.verify &= !environment.no_verify;
        if environment.is_exact {
            self.numerics = Numerics::Exact;
        }
        if let Some(cache) = &environment.cache {
            self.kernels = cache.instead_of(self.kernels);
            self.tuning = self.tuning.map(|tuning| {
                let folder = cache.instead_of(tuning.cache.clone());
                tuning.cache(folder)
            });
        }
        self
    }

    /// Settings of fusion, if it is on.
    pub fn fusing(&self) -> Option<Fusing> {
        self.fuse.then(|| Fusing { folder: self.kernels.clone() })
    }

    /// Settings of rewriting, if it is on. Re-checks compare bits, so they exclude rewriting.
    pub fn rewriting(&self) -> Option<Rewriting> {
        let is_asked = self.numerics == Numerics::Accurate && self.recheck == 0;
        let (settings, without, folder) = (self.settings, self.without.clone(), self.kernels.clone());
        is_asked.then_some(Rewriting { settings, without, folder, is_anew: false, fusing: None })
    }

    /// The inputs that building calls the module with.
    pub fn examples(&self) -> Examples {
        Examples {
            further: self.further.clone(),
            altered: self.verify,
            is_pure: self.is_pure,
            state: self.state.clone(),
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            scheduler: Arc::new(BuiltIn::default()),
            check: false,
            tuning: None,
            settings: Settings::default(),
            train_memory: None,
            verify: true,
            is_pure: false,
            further: Vec::new(),
            state: StateArguments::default(),
            stress: 0,
            on_uncapturable: OnUncapturable::default(),
            on_stateful: OnStateful::default(),
            max_shapes: 8,
            recheck: 0,
            benchmark_challengers: true,
            fuse: true,
            numerics: Numerics::default(),
            without: Vec::new(),
            kernels: disk_cache::folder(),
            dump: None,
            stop_after: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_only_switches_off() {
        let folder = || Some(PathBuf::from("of the program"));
        let tuned =
            || Options { kernels: folder(), tuning: Some(Search::default().cache(folder())), ..Options::default() };
        let folders =
            |options: &Options| (options.kernels.clone(), options.tuning.as_ref().and_then(|t| t.cache.clone()));
        let under = |set: &[(&str, &str)], options: Options| {
            let read = |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| value.into());
            options.under(&Environment::read(read).0)
        };
        assert_eq!(folders(&under(&[], tuned())), (folder(), folder()));
        assert_eq!(folders(&under(&[("OPARA_CACHE", "off")], tuned())), (None, None));
        let other = || Some(PathBuf::from("elsewhere"));
        assert_eq!(folders(&under(&[("OPARA_CACHE", "elsewhere")], tuned())), (other(), other()));
        let nothing_kept = Options { kernels: None, ..Options::default() };
        assert_eq!(folders(&under(&[("OPARA_CACHE", "elsewhere")], nothing_kept)), (None, None));
        let plain = Options { fuse: false, verify: false, ..Options::default() };
        let options = under(&[("OPARA_FUSE", "1"), ("OPARA_VERIFY", "1")], plain);
        assert!(!options.fuse && !options.verify);
        let options = under(&[("OPARA_FUSE", "0"), ("OPARA_VERIFY", "0")], Options::default());
        assert!(!options.fuse && !options.verify);
        let accurate = || Options { numerics: Numerics::Accurate, ..Options::default() };
        assert!(under(&[], accurate()).rewriting().is_some() && under(&[], Options::default()).rewriting().is_none());
        assert!(under(&[("OPARA_NUMERICS", "exact")], accurate()).rewriting().is_none());
        assert!(Options { recheck: 9, ..accurate() }.rewriting().is_none(), "bits are compared");
    }
}
