//! Launches of a step of which it is not known what they compute: the same behind every text.

use opara_plan::rewrite::{Compute, Node, Operand};

use super::known::refused;
use crate::cuda::driver::opaque_difference;
use crate::cuda::WholePass;
use crate::Result;

/// Fails if kernels whose meaning is not known are launched otherwise behind so many tokens.
pub(super) fn check_opaque([pass, other]: [&WholePass; 2], tokens: usize) -> Result<()> {
    let nodes = pass.graph.nodes.iter().zip(&other.graph.nodes).zip(&pass.launches);
    for ((node, other), [name, scope]) in nodes {
        let (&Compute::Opaque(a), &Compute::Opaque(b)) = (&node.compute, &other.compute) else { continue };
        let scope = if scope.is_empty() { String::new() } else { format!(" (at `{scope}`)") };
        let said = |what: &str| {
            let of = format!("`{name}`{scope}, of which it is not known what it computes");
            refused(&format!("{of}, is launched behind {tokens} tokens with another {what}"))
        };
        if a != b {
            let what = opaque_difference(a, b);
            return Err(said(&format!("{what}: give it what depends on the position as a tensor on the device")));
        }
        let sizes = |node: &Node| node.operands.iter().map(Operand::len).chain([node.len]).collect::<Vec<_>>();
        if sizes(node) != sizes(other) {
            return Err(said("size of a tensor: give it buffers of one size"));
        }
    }
    Ok(())
}
