//! State that all stages of one build share: settings, times, observations.

use std::sync::Arc;

use candle::{Device, Tensor};

use super::dump::{Dump, Value};
use crate::options::Options;
use crate::stage::Stage;
use crate::timing::StageTimes;
use crate::trace::Trace;
use crate::Error;
use opara_plan::prepared::Settings;

/// A build in progress.
pub(super) struct Build<'a> {
    pub options: &'a Options,
    pub device: Device,
    /// Milliseconds by stage.
    pub times: StageTimes,
    /// Has a call of the module succeeded?
    pub has_answered: bool,
    /// Has the module variables that its outputs depend on?
    pub is_tracked: bool,
    /// Launches that generated kernels replace.
    pub replaced: usize,
    /// Do other operators replace recorded launches?
    pub is_rewritten: bool,
    /// Is it as an earlier build decided, which is kept on disk?
    pub is_kept: bool,
    /// Microseconds of a replay of the plan beside which this one is built, if it is.
    pub rival_us: Option<f64>,
    /// Settings of prepared traces.
    pub settings: Settings,
    /// The recorded trace and the fused one, if building came so far.
    pub traces: [Option<Arc<Trace>>; 2],
    dump: Option<Dump>,
}

/// Why the pipeline ended early.
pub(super) enum Halt {
    /// A stage failed.
    Failed(Error),
    /// `Builder::stop_after` names this stage.
    Stopped(Stage),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl<'a> Build<'a> {
    /// For inputs like these.
    pub fn new(inputs: &[Tensor], options: &'a Options) -> Self {
        Self {
            options,
            device: inputs.first().map_or(Device::Cpu, |t| t.device().clone()),
            times: StageTimes::default(),
            has_answered: false,
            is_tracked: false,
            replaced: 0,
            is_rewritten: false,
            is_kept: false,
            rival_us: None,
            settings: options.settings,
            traces: [None, None],
            dump: options.dump.as_deref().map(|folder| Dump::new(folder, inputs)),
        }
    }

    /// Runs `f`, which builds the exact plan of the same pass, and restores this build's settings afterwards. Replays of the rewritten plan
    /// take `rival_us`. The times of the stages count as one, under this name, and their results are dumped to a folder of this name.
    pub fn on_own_settings<T>(&mut self, name: &'static str, rival_us: f64, f: impl FnOnce(&mut Self) -> T) -> T {
        let inside = self.dump.as_ref().map(|dump| dump.inside(name));
        let (times, dump) = (std::mem::take(&mut self.times), std::mem::replace(&mut self.dump, inside));
        let before = (self.settings, self.is_rewritten, self.replaced, self.rival_us);
        (self.settings, self.is_rewritten, self.rival_us) = (self.options.settings, false, Some(rival_us));
        let result = f(self);
        (self.settings, self.is_rewritten, self.replaced, self.rival_us) = before;
        self.dump = dump;
        let spent = std::mem::replace(&mut self.times, times);
        self.times.add(name, spent.0.values().sum());
        result
    }

    /// Called with the result of a stage. Dumps it if a folder is set.
    ///
    /// # Errors
    /// [`Halt::Stopped`] if building is to stop here.
    pub fn after(&mut self, stage: Stage, value: Value) -> Result<(), Halt> {
        if let Value::Trace(trace) = value {
            match stage {
                Stage::Record => self.traces = [Some(trace.clone()), None],
                Stage::Fuse => self.traces[1] = Some(trace.clone()),
                _ => {}
            }
        }
        if let Some(dump) = &self.dump {
            dump.write(stage, value);
        }
        match self.options.stop_after {
            // Nothing comes after the last stage.
            Some(last) if last == stage && stage != Stage::Verify => Err(Halt::Stopped(stage)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn what_is_built_aside_counts_as_one_stage_and_is_not_rewritten() {
        let options = Options::default();
        let mut build = Build::new(&[], &options);
        build.times.add("fuse", 1.);
        (build.settings.constant_room, build.is_rewritten, build.replaced) = (9, true, 7);
        let seen = build.on_own_settings("exact plan", 5., |build| {
            build.times.add("fuse", 2.);
            build.times.add("verify", 3.);
            build.replaced = 5;
            (build.settings.constant_room, build.is_rewritten, build.rival_us)
        });
        assert_eq!(seen, (options.settings.constant_room, false, Some(5.)));
        assert_eq!(build.times.0, BTreeMap::from([("exact plan", 5.), ("fuse", 1.)]));
        assert_eq!((build.settings.constant_room, build.is_rewritten, build.replaced), (9, true, 7));
        assert_eq!(build.rival_us, None);
    }
}
