//! Launches of a step of which it is not known what they compute: the same behind every text, but for numbers that follow from its length.

use opara_plan::rewrite::{Compute, Node, Operand};

use super::known::refused;
use crate::cuda::driver::{is_opaque_at, opaque_at_lengths, opaque_has_blocks_before, HeldLaunch, Length};
use crate::cuda::WholePass;
use crate::Result;

/// The launches of a step whose meaning is not known and whose numbers follow from the length.
#[derive(Default)]
pub(super) struct Opaque {
    /// The length that they are launched for.
    pub length: Length,
    /// For each its node, and its number, by which it is the same behind every text.
    at_lengths: Vec<(usize, u64)>,
    held: Vec<HeldLaunch>,
}

impl Opaque {
    /// Finds them in passes at several lengths, in ascending order, which have the same nodes, and gives them their numbers there.
    ///
    /// # Errors
    /// A launch that differs in another way.
    pub fn of(passes: &mut [(&mut WholePass, usize)]) -> Result<Self> {
        let mut found = Self::default();
        let Some((first, _)) = passes.first() else { return Ok(found) };
        for at in 0..first.graph.nodes.len() {
            let all = passes.iter().map(|(pass, tokens)| Some((launch(pass, at)?, *tokens)));
            // Other steps are refused where graphs are compared.
            let Some(all) = all.collect::<Option<Vec<_>>>() else { continue };
            let ((node, number), _) = all[0];
            if let Some((_, tokens)) = all.iter().find(|((other, _), _)| sizes(node) != sizes(other)) {
                return Err(said(first, at, *tokens, "size of a tensor: give it buffers of one size"));
            }
            let Some((_, tokens)) = all.iter().find(|((_, other), _)| *other != number) else { continue };
            let launches: Vec<_> = all.iter().map(|((_, number), tokens)| (*number, *tokens as u64)).collect();
            let (number, held) = opaque_at_lengths(&launches, &found.length).map_err(|what| {
                let what = format!("{what}: give it what depends on the position as a tensor on the device");
                said(first, at, *tokens, &what)
            })?;
            found.at_lengths.push((at, number));
            found.held.push(held);
        }
        for (pass, length) in passes {
            found.rename(pass, *length)?;
        }
        Ok(found)
    }

    /// Gives the launches of a pass at one length their numbers.
    ///
    /// # Errors
    /// A launch that is another one.
    pub fn rename(&self, pass: &mut WholePass, length: usize) -> Result<()> {
        for &(at, number) in &self.at_lengths {
            if !launch(pass, at).is_some_and(|(_, own)| is_opaque_at(number, length as u64, own)) {
                return Err(said(pass, at, length, "number than follows from the length"));
            }
            pass.graph.nodes[at].compute = Compute::Opaque(number);
        }
        pass.held.extend(self.held.iter().cloned());
        Ok(())
    }

    /// Whether all have blocks at every length below this one, so that steps may read a prompt from its first token on.
    pub fn have_blocks_before(&self, length: usize) -> bool {
        self.at_lengths.iter().all(|&(_, number)| opaque_has_blocks_before(number, length as u64))
    }

    /// Their numbers.
    pub fn numbers(&self) -> Vec<u64> {
        self.at_lengths.iter().map(|(_, number)| *number).collect()
    }
}

/// The node of a pass, and its launch, if that has no meaning.
fn launch(pass: &WholePass, at: usize) -> Option<(&Node, u64)> {
    let node = pass.graph.nodes.get(at)?;
    match node.compute {
        Compute::Opaque(number) => Some((node, number)),
        _ => None,
    }
}

/// Elements of the operands and of the result.
fn sizes(node: &Node) -> Vec<u64> {
    node.operands.iter().map(Operand::len).chain([node.len]).collect()
}

/// That a launch is another one at a length of `tokens`.
fn said(pass: &WholePass, at: usize, tokens: usize, what: &str) -> crate::Error {
    let [name, scope] = pass.launches.get(at).cloned().unwrap_or_default();
    let scope = if scope.is_empty() { String::new() } else { format!(" (at `{scope}`)") };
    let of = format!("`{name}`{scope}, of which it is not known what it computes");
    refused(&format!("{of}, is launched behind {tokens} tokens with another {what}"))
}
