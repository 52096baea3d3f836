//! The result of the pipeline: a plan for calls of one set of input shapes.

use std::sync::Arc;

use candle::Tensor;

use super::instantiate::Instance;
use crate::backend::{Planned, Replay};
use crate::report::Report;
use crate::trace::Trace;

/// Answers calls of one set of input shapes.
#[derive(Default)]
pub(crate) struct Plan {
    /// `None` calls the module itself.
    pub replay: Option<Box<dyn Replay>>,
    pub report: Report,
    /// The launches as the module made them, if they were recorded.
    pub recorded: Option<Arc<Trace>>,
    /// The recorded trace after fusion, if building came so far.
    pub trace: Option<Arc<Trace>>,
    /// The program and its schedule; `None` in eager mode.
    pub planned: Option<Arc<Planned>>,
    /// Stands for the module's variables, if its outputs depend on any. It holds none of them, so that they can be freed.
    pub variable: Option<Tensor>,
}

impl Plan {
    /// A plan that replays.
    pub(super) fn replayed(instance: Instance, recorded: Arc<Trace>, report: Report) -> Self {
        let Instance { plan, replay, .. } = instance;
        let (recorded, trace) = (Some(recorded), Some(plan.trace.clone()));
        Self { replay: Some(replay), report, recorded, trace, planned: Some(plan), variable: None }
    }

    /// A plan that calls the module.
    pub fn eager(report: Report) -> Self {
        Self { report, ..Self::default() }
    }
}
