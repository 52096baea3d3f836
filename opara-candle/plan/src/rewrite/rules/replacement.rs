//! The replacement of a node by a rule.

use crate::rewrite::graph::Node;

/// A node that replaces another one and computes the same value.
#[derive(Debug, Clone, PartialEq)]
pub struct Replacement {
    /// The new node.
    pub node: Node,
    /// Launches that it removes.
    pub saved: usize,
}
