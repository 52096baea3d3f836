//! What was said of changed nodes by themselves.

use std::cell::RefCell;

use hashbrown::HashMap;
use opara_plan::rewrite::{Compared, Node};

/// Its errors, or what is said against it.
pub(super) type Verdict = std::result::Result<Compared, String>;

/// The verdicts on the nodes of a run's changed graphs. What a node gives follows from itself and its operands, which are candle's values:
/// other changes of the graph leave its verdict as it is.
#[derive(Default)]
pub(super) struct Verdicts(RefCell<HashMap<usize, Vec<(Node, Verdict)>>>);

impl Verdicts {
    pub fn find(&self, at: usize, node: &Node) -> Option<Verdict> {
        let verdicts = self.0.borrow();
        let (_, verdict) = verdicts.get(&at)?.iter().find(|(of, _)| of == node)?;
        Some(verdict.clone())
    }

    pub fn keep(&self, at: usize, node: &Node, verdict: &Verdict) {
        self.0.borrow_mut().entry(at).or_default().push((node.clone(), verdict.clone()));
    }
}
