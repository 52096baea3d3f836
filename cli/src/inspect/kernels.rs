//! The time of a trace by kernel name.

use std::collections::BTreeMap;
use std::fmt;

use opara_plan::prepared::Prepared;
use opara_plan::profile::Class;
use serde::Serialize;

use crate::table::Table;

/// The costliest kernels.
#[derive(Debug, Clone, Serialize)]
pub struct Kernels {
    /// Number of different names.
    names: usize,
    ops: usize,
    /// Ops with a measured time; the other times are modelled.
    measured: usize,
    /// Sum of all ops' times.
    total_us: f64,
    hottest: Vec<Kernel>,
}

/// All ops with the same name.
#[derive(Debug, Clone, Serialize)]
struct Kernel {
    name: String,
    class: Class,
    count: usize,
    us: f64,
    /// Share of the time of all ops.
    share: f64,
}

impl Kernels {
    /// The `top` costliest kernels.
    pub fn of(prepared: &Prepared, top: usize) -> Self {
        let ops = &prepared.ops.trace.ops;
        let mut kernels: BTreeMap<&str, Kernel> = BTreeMap::new();
        for (op, profile) in ops.iter().zip(&prepared.profile) {
            let new = || Kernel { name: op.name.to_string(), class: profile.class, count: 0, us: 0., share: 0. };
            let kernel = kernels.entry(&*op.name).or_insert_with(new);
            kernel.count += 1;
            kernel.us += profile.us;
        }
        let names = kernels.len();
        let total_us = kernels.values().fold(0., |sum, kernel| sum + kernel.us);
        let mut hottest: Vec<Kernel> = kernels.into_values().collect();
        hottest.sort_by(|a, b| b.us.total_cmp(&a.us).then(b.count.cmp(&a.count)));
        hottest.truncate(top);
        if total_us > 0. {
            hottest.iter_mut().for_each(|kernel| kernel.share = kernel.us / total_us);
        }
        let measured = ops.iter().filter(|op| op.nanos.is_some()).count();
        Self { names, ops: ops.len(), measured, total_us, hottest }
    }
}

impl fmt::Display for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&["hottest", "count", "us", "share", "class"]);
        for Kernel { name, class, count, us, share } in &self.hottest {
            let class = match class {
                Class::Compute => "compute",
                Class::Memory => "memory",
            };
            let share = format!("{:.1} %", 100. * share);
            table.row(name, [count.to_string(), format!("{us:.1}"), share, class.into()]);
        }
        table.fmt(f)?;
        let Self { hottest, names, total_us, ops, measured } = self;
        let shown = hottest.len();
        writeln!(f, "{shown} of {names}; {ops} ops take {total_us:.1} us one after the other ({measured} measured)")
    }
}
