//! Replays that differ from eager execution.

/// The [`mode`](Mismatch::mode) of replays with delayed launches ([`Builder::stress`](crate::Builder::stress)).
pub(crate) const STRESSED: &str = "replay under stress";

/// A replay whose bits differ from the eager result's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}, so {}", self.difference(), self.cause())]
#[non_exhaustive]
pub struct Mismatch {
    /// Which kind of replay.
    pub mode: &'static str,
    /// Which output. The tensors of a step's state are counted on behind its outputs.
    pub output: usize,
    /// Elements whose bits differ.
    pub differing: usize,
    /// Elements of the output.
    pub elements: usize,
}

impl Mismatch {
    /// Describes the difference, without its cause.
    pub(crate) fn difference(&self) -> String {
        let Self { mode, output, differing, elements } = self;
        format!(
            "output {output} of the {mode} differs from the module's own result in {differing} of {elements} elements"
        )
    }

    /// The likely cause if every schedule shows the difference.
    fn cause(&self) -> &'static str {
        match self.mode {
            STRESSED => "the schedule misses a dependency: please report it",
            _ => {
                "the module is not a pure function of its inputs: its own code reads values of tensors, draws random numbers, \
                 or does something else at every call. Compute outputs from inputs and weights by operators alone"
            }
        }
    }
}
