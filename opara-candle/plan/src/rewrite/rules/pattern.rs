//! Formulas that rules look for, as patterns of nodes.

/// What an operand may be.
#[derive(Clone, Copy)]
pub(super) enum Pattern {
    /// Anything of the type of its reader, by a name. Where the name stands again, the same view of the same value.
    Operand(&'static str),
    /// What another pattern says, by a name.
    Named(&'static str, &'static Pattern),
    /// All results of a node of this kind ([`Facts::is_of`](super::Facts)), in their order. Its first operands are like these, in either
    /// order if they are summands or factors.
    Node(&'static str, &'static [Pattern]),
    /// The same, but each result is repeated along a row.
    PerRow(&'static str, &'static [Pattern]),
    /// The first of these that fits.
    Either(&'static [Pattern]),
}

/// A pattern, written as a formula: `kind(..)` is a node, `kind()` one of any operands, `x` an operand, and `x = kind(..)` a node by a
/// name; `{X}` is the constant `X`.
macro_rules! pattern {
    ({ $pattern:expr }) => { $pattern };
    ($name:ident) => { $crate::rewrite::rules::pattern::Pattern::Operand(stringify!($name)) };
    (either($($of:tt)+)) => {
        $crate::rewrite::rules::pattern::Pattern::Either($crate::rewrite::rules::pattern::patterns!($($of)+))
    };
    (per_row($kind:ident($($of:tt)*))) => {
        $crate::rewrite::rules::pattern::Pattern::PerRow(
            stringify!($kind),
            $crate::rewrite::rules::pattern::patterns!($($of)*),
        )
    };
    ($kind:ident($($of:tt)*)) => {
        $crate::rewrite::rules::pattern::Pattern::Node(
            stringify!($kind),
            $crate::rewrite::rules::pattern::patterns!($($of)*),
        )
    };
    ($name:ident = $($of:tt)+) => {
        $crate::rewrite::rules::pattern::Pattern::Named(
            stringify!($name),
            &$crate::rewrite::rules::pattern::pattern!($($of)+),
        )
    };
}

/// Patterns, with commas between.
macro_rules! patterns {
    ($($head:tt $(= $of:tt)? $(($($inner:tt)*))?),*) => {
        &[$($crate::rewrite::rules::pattern::pattern!($head $(= $of)? $(($($inner)*))?)),*]
    };
}

pub(super) use {pattern, patterns};
