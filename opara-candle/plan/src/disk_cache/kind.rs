//! The kinds of records.

/// What a record is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A tuned plan.
    Plan,
    /// Decisions of rewriting a pass.
    Rewriting,
    /// The fastest implementation of an operator.
    Choice,
}

impl Kind {
    /// All kinds.
    pub(super) const ALL: [Kind; 3] = [Kind::Plan, Kind::Rewriting, Kind::Choice];

    /// The ending of its files.
    pub(super) fn ending(self) -> &'static str {
        match self {
            Kind::Plan => ".plan.json",
            Kind::Rewriting => ".rewrite.json",
            Kind::Choice => ".choice.json",
        }
    }

    /// Its name in warnings.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Plan => "a tuned plan",
            Kind::Rewriting => "a plan of rewriting",
            Kind::Choice => "the choice of an implementation",
        }
    }
}
