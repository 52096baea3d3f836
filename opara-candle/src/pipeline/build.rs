//! State that all stages of one build share: settings, times, observations.

use std::sync::Arc;

use candle::{Device, Tensor};

use super::dump::{Dump, Value};
use super::stage::Stage;
use crate::options::Options;
use crate::prepared::Settings;
use crate::timing::StageTimes;
use crate::trace::Trace;
use crate::Error;

/// A build in progress.
pub(super) struct Build<'a> {
    pub options: &'a Options,
    pub device: Device,
    /// Milliseconds by stage.
    pub times: StageTimes,
    /// Has a call of the module succeeded?
    pub has_answered: bool,
    /// Launches that generated kernels replace.
    pub replaced: usize,
    /// Do other operators replace recorded launches?
    pub is_rewritten: bool,
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
            replaced: 0,
            is_rewritten: false,
            settings: options.settings,
            traces: [None, None],
            dump: options.dump.as_deref().map(|folder| Dump::new(folder, inputs)),
        }
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
