//! How long a schedule would take, without running it.

pub use crate::device::{Device, UnknownDevice};

use crate::prepared::Prepared;
use crate::schedule::Schedule;
use crate::timeline::{Span, Timeline};

/// When each op of a schedule would run on a device, which need not be the one that it was recorded on.
pub fn simulate(prepared: &Prepared, schedule: &Schedule, device: &Device) -> Timeline {
    let mut ends: Vec<f64> = Vec::new();
    let mut spans = Vec::with_capacity(schedule.order.len());
    for step in schedule.steps() {
        let ready = step.after.iter().map(|&before| ends[before]).fold(0., f64::max);
        let start_us = ready + device.launch_us + device.edge_us * step.after.len().saturating_sub(1) as f64;
        let us = step.op.map_or(0., |op| prepared.profile[op].us);
        ends.push(start_us + us);
        spans.extend(step.op.map(|op| Span { op, stream: schedule.stream[op], start_us, end_us: start_us + us }));
    }
    let shares: Vec<f64> = prepared.profile.iter().map(|cost| cost.demand).collect();
    Timeline::new(spans, &shares)
}
