//! Rules of rewriting that fit, and the ops that no rule can reach since nobody knows what they compute.

use std::collections::BTreeMap;
use std::fmt;

use opara_plan::prepared::Prepared;
use opara_plan::profile::profile;
use opara_plan::rewrite::{regions, rules};
use opara_plan::trace::Trace;
use serde::Serialize;

use crate::table::Table;

/// What `Numerics::Accurate` finds in a trace, before anything is measured.
#[derive(Debug, Clone, Serialize)]
pub struct Meanings {
    rules: Vec<Rule>,
    /// Ops of every call that are in no run, the costliest names first.
    unknown: Vec<Unknown>,
    /// Share of the time of all ops of every call.
    unknown_share: f64,
}

/// A rule, where it fits.
#[derive(Debug, Clone, Serialize)]
struct Rule {
    name: &'static str,
    times: usize,
    /// Launches that become part of others.
    saved: usize,
}

/// Ops of one name.
#[derive(Debug, Clone, Serialize)]
struct Unknown {
    name: String,
    count: usize,
    us: f64,
    share: f64,
}

impl Meanings {
    /// Of a trace as recorded, with the `top` costliest names; `None` if no meaning is recorded.
    pub fn of(trace: &Trace, prepared: &Prepared, top: usize) -> Option<Self> {
        trace.ops.iter().find(|op| op.meaning.is_some())?;
        let mut is_known = vec![false; trace.ops.len()];
        let mut fits = Vec::new();
        for region in regions(trace) {
            region.ops.clone().for_each(|op| is_known[op] = true);
            fits.extend(rules::apply(&mut region.graph.clone(), &[], &Default::default()));
        }
        let rules = rules::counted(&fits).into_iter().map(|(name, rules::Applied { times, saved })| Rule {
            name,
            times,
            saved,
        });
        let costs = profile(trace);
        let total: f64 = prepared.ops.per_call.iter().map(|&op| costs[op].us).sum();
        let mut by_name: BTreeMap<&str, Unknown> = BTreeMap::new();
        for &op in prepared.ops.per_call.iter().filter(|&&op| !is_known[op]) {
            let name = &*trace.ops[op].name;
            let new = || Unknown { name: name.to_owned(), count: 0, us: 0., share: 0. };
            let unknown = by_name.entry(name).or_insert_with(new);
            unknown.count += 1;
            unknown.us += costs[op].us;
        }
        let mut unknown: Vec<Unknown> = by_name.into_values().collect();
        unknown.iter_mut().filter(|_| total > 0.).for_each(|unknown| unknown.share = unknown.us / total);
        let unknown_share = unknown.iter().map(|unknown| unknown.share).sum();
        unknown.sort_by(|a, b| b.us.total_cmp(&a.us));
        unknown.truncate(top);
        Some(Self { rules: rules.collect(), unknown, unknown_share })
    }
}

impl fmt::Display for Meanings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&["rules that fit", "times", "launches fewer"]);
        for Rule { name, times, saved } in &self.rules {
            table.row(name, [times.to_string(), saved.to_string()]);
        }
        table.fmt(f)?;
        let mut table = Table::new(&["not recognised", "count", "us", "share"]);
        for Unknown { name, count, us, share } in &self.unknown {
            table.row(name, [count.to_string(), format!("{us:.1}"), format!("{:.1} %", 100. * share)]);
        }
        table.fmt(f)?;
        writeln!(f, "{:.1} % of the time is in ops that are not recognised", 100. * self.unknown_share)
    }
}
