//! Which rules fit a recorded pass, before anything is computed.

use hashbrown::HashSet;

use super::region::regions;
use super::rules::{self, Applied};
use crate::trace::Trace;

/// The rules that fit the runs of a trace, and how often. Fewer may stand: those that are no less accurate, and faster.
pub fn matched(trace: &Trace) -> Vec<(&'static str, Applied)> {
    let fits = regions(trace).into_iter().flat_map(|mut region| rules::apply(&mut region.graph, &[], &HashSet::new()));
    rules::counted(&fits.collect::<Vec<_>>())
}
