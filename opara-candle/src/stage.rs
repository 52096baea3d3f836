//! The stages of the pipeline, by name.

use std::fmt;

/// A stage of building. Each takes the result of the stage before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// Calls the module and records its launches.
    Record,
    /// Puts other operators in the place of launches ([`Builder::numerics`](crate::Builder::numerics)).
    Rewrite,
    /// Replaces groups of launches by one launch each ([`Builder::fuse`](crate::Builder::fuse)).
    Fuse,
    /// Runs launches that depend on no input once, and removes them from the calls ([`Builder::fold_constants`](crate::Builder::fold_constants)).
    Fold,
    /// Finds the dependencies and the cost of each launch.
    Analyse,
    /// Places the buffers in the arena.
    Place,
    /// Assigns launches to streams and orders them ([`Builder::scheduler`](crate::Builder::scheduler)).
    Schedule,
    /// Builds the replay of the schedule, and benchmarks it against other schedules if that is enabled
    /// ([`Builder::benchmark_challengers`](crate::Builder::benchmark_challengers), and a [`Search`](crate::Search)).
    Instantiate,
    /// Compares replays with eager execution ([`Builder::verify`](crate::Builder::verify)).
    Verify,
}

impl Stage {
    /// All stages, in their order.
    pub const ALL: [Stage; 9] = [
        Stage::Record,
        Stage::Rewrite,
        Stage::Fuse,
        Stage::Fold,
        Stage::Analyse,
        Stage::Place,
        Stage::Schedule,
        Stage::Instantiate,
        Stage::Verify,
    ];

    /// Its name in the files of [`Builder::dump`](crate::Builder::dump) and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Record => "record",
            Stage::Rewrite => "rewrite",
            Stage::Fuse => "fuse",
            Stage::Fold => "fold",
            Stage::Analyse => "analyse",
            Stage::Place => "place",
            Stage::Schedule => "schedule",
            Stage::Instantiate => "instantiate",
            Stage::Verify => "verify",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
