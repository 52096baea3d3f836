//! What a rule gives.

use crate::rewrite::graph::Node;

/// A node that takes the place of another one, and gives the same value.
#[derive(Debug, Clone, PartialEq)]
pub struct Better {
    /// The node.
    pub node: Node,
    /// Launches that become part of it.
    pub saved: usize,
}
