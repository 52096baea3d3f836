//! What all stages of one build share: settings, the clock, what is observed.

use std::sync::Arc;

use candle::{Device, Tensor};

use super::dump::{Dump, Value};
use super::stage::Stage;
use crate::options::Options;
use crate::prepared::Settings;
use crate::timing::StageTimes;
use crate::trace::Trace;
use crate::Error;

/// A build that is under way.
pub(super) struct Build<'a> {
    pub options: &'a Options,
    pub device: Device,
    /// Milliseconds by stage.
    pub times: StageTimes,
    /// Whether a call of the module went well.
    pub has_answered: bool,
    /// Launches for which generated kernels stand.
    pub replaced: usize,
    /// Whether other operators stand for recorded launches.
    pub is_rewritten: bool,
    /// How traces are prepared.
    pub settings: Settings,
    /// The trace that was recorded, and the one after fusion, as far as building came.
    pub traces: [Option<Arc<Trace>>; 2],
    dump: Option<Dump>,
}

/// Why the pipeline ended early.
pub(super) enum Halt {
    /// A stage failed.
    Failed(Error),
    /// As `Builder::stop_after` asks.
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

    /// A stage has given this value: writes it down where asked to.
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
            // Nothing comes after the last one.
            Some(last) if last == stage && stage != Stage::Verify => Err(Halt::Stopped(stage)),
            _ => Ok(()),
        }
    }
}
