//! A rule: formulas, and what takes their place.

use super::facts::Facts;
use super::found::Found;
use super::pattern::Pattern;
use crate::rewrite::graph::Node;

/// Makes the node that takes the place of a formula; `None` if a condition does not hold.
type Make = fn(&Found) -> Option<Node>;

/// A rule.
#[derive(Clone, Copy)]
pub struct Rule {
    /// Its name in reports.
    pub name: &'static str,
    /// Its formulas, of which the first that fits is applied.
    pub(super) formulas: &'static [(Pattern, Make)],
}

impl Rule {
    /// The node that takes the place of another one, if the rule matches there.
    pub(super) fn at(&self, facts: &Facts, at: usize) -> Option<Node> {
        self.formulas.iter().find_map(|(pattern, make)| Found::find_all(facts, pattern, at).iter().find_map(make))
    }
}

/// A rule of this name, of formulas that [`pattern!`](super::pattern) reads, each with the function that makes the node in its place.
macro_rules! rule {
    ($name:literal: $($head:tt $(($($of:tt)*))? => $make:expr);+) => {
        $crate::rewrite::rules::rule::Rule {
            name: $name,
            formulas: &[$(($crate::rewrite::rules::pattern::pattern!($head $(($($of)*))?), $make)),+],
        }
    };
}

pub(super) use rule;
