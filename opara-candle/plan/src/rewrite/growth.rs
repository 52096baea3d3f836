//! A pass that adds a token to a text, for every length of text: what passes behind two texts have in common.
//!
//! A decoder whose cache grows by concatenation makes tensors of other sizes at every token, and one that writes to a buffer in place
//! writes elsewhere and reads more of it. Where two of its passes differ in what is known to depend on the length, and in nothing else,
//! one graph stands for all: keys and values are appended to a cache of a fixed size, attention reads as much of it as is written, and
//! tables give the row of the position. Other steps go over all places of such a cache, and mask those behind the text. What a pass
//! leaves for the next one, in the same size, is a state.

use super::append::Append;
use super::compute::Compute;
use super::graph::{Graph, Input, Node, Value};
use crate::trace::Element;

/// The step that adds a token to a text of any length.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Growth {
    /// The graph. Its inputs are the `sources`.
    pub graph: Graph,
    /// The source of each input.
    pub sources: Vec<Source>,
    /// Keys and values of each attention, in the order of [`Source::Cache`].
    pub caches: Vec<Cache>,
    /// What else tokens are appended to, in the order of [`Source::Grown`].
    pub grown: Vec<Grown>,
    /// The inputs that a step rewrites, in the order of [`Source::State`]. Behind the outputs of the module are their new values.
    pub states: Vec<usize>,
}

/// The source of an input of [`Growth::graph`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// An input of the recorded graph: a weight, or an argument.
    Recorded(usize),
    /// How many tokens there are before the new one, as one u32.
    Position,
    /// A cache of this index: `(1, 2, heads, capacity, size)`, keys before values.
    Cache(usize),
    /// Earlier tokens of this index: `(rows, room, step)`, zeros behind the last one.
    Grown(usize),
    /// A state of this index.
    State(usize),
    /// An upload, an input of the recorded graph, whose numbers depend on the position; of one that grows, as many as there is capacity.
    Counted(usize),
    /// What the caller says of each place, an input of the recorded graph: as many places as there is capacity, the same for all tokens.
    Given(usize),
    /// The index of the last token, of a step of several, as one u32.
    Last,
    /// The position of each token, of a step of several, as u32.
    Places,
    /// For each place of the capacity, 0 if it is written, and minus infinity behind the new token, in this type.
    Unwritten(Element),
    /// A row of a table, that of the position.
    Row {
        /// The input of the recorded graph.
        table: usize,
        /// The first element of the row at position 0.
        first: u64,
        /// Elements from one row to the next.
        between: u64,
    },
}

/// Keys and values of earlier tokens, of one attention.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// The keys that the recorded pass read.
    pub keys: Recorded,
    /// The values.
    pub values: Recorded,
    /// Heads of keys, and of values.
    pub heads: u64,
    /// Elements of a head.
    pub size: u64,
    /// Type of the elements.
    pub element: Element,
    /// How many of the latest tokens it has, the new one included, if not all.
    pub window: Option<u64>,
}

/// Earlier tokens, of which each has some elements in each of some rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grown {
    /// The input of the recorded graph.
    pub input: usize,
    /// How many rows there are.
    pub rows: u64,
    /// Elements of a token in each row.
    pub step: u64,
    /// Type of the elements.
    pub element: Element,
    /// How many of the latest tokens it has, the new one included, if not all; a new token takes the place of the oldest.
    pub window: Option<u64>,
}

/// What is known of the inputs of passes beside their graphs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Inputs {
    /// How many tokens a text may have.
    pub capacity: u64,
    /// How many outputs are the module's. Those behind them are values that it leaves for its next step.
    pub outputs: usize,
    /// For each input what a pass leaves as the next one's, if it does not stay as it is.
    pub next: Vec<Option<Value>>,
    /// Uploads whose numbers depend on the position, and what the caller says of each place.
    pub counted: Vec<Counted>,
    /// Launches without a meaning, by their numbers, of which something follows from the position.
    pub at_lengths: Vec<u64>,
}

/// An upload whose numbers depend on the position, or what the caller says of each place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// The input.
    pub input: usize,
    /// If it grows, how many rows it has, and how many elements of each place in a row.
    pub grows: Option<[u64; 2]>,
    /// Does the caller give it?
    pub is_given: bool,
}

/// Keys or values of earlier tokens, as a recorded pass read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// The input of the recorded graph.
    pub input: usize,
    /// Do the heads of a token follow one another? Otherwise the tokens of a head do.
    pub by_token: bool,
}

impl Growth {
    /// The difference to `known`, as far as its texts tell, the longer one of which has `length` tokens: while a cache has room for all of
    /// them, it is not seen how many of the latest tokens it holds. Numbers that follow from the position are rounded.
    pub fn difference(&self, known: &Self, length: u64) -> Option<String> {
        let mut own = self.clone();
        let or_known = |own: Option<u64>, known: Option<u64>| own.or(known.filter(|window| length < *window));
        for (cache, known) in own.caches.iter_mut().zip(&known.caches) {
            cache.window = or_known(cache.window, known.window);
        }
        for (node, known) in own.graph.nodes.iter_mut().zip(&known.graph.nodes) {
            match (&mut node.compute, &known.compute) {
                (Compute::CachedAttention { window, .. }, Compute::CachedAttention { window: known, .. }) => {
                    *window = or_known(*window, *known);
                }
                (
                    Compute::AffineAtPosition { factor, summand },
                    &Compute::AffineAtPosition { factor: known, summand: other },
                ) => {
                    let element = node.element;
                    if factor.is_near(known, length, element) && summand.is_near(other, length, element) {
                        (*factor, *summand) = (known, other);
                    }
                }
                _ => {}
            }
        }
        let differs = own.graph.nodes.iter().zip(&known.graph.nodes).position(|(own, known)| own != known);
        match differs {
            Some(at) if matches!(own.graph.nodes[at].compute, Compute::AffineAtPosition { .. }) => {
                Some(format!("step {at} has numbers that do not grow by as much with each token"))
            }
            Some(at) => {
                let [own, known] = [&own, known].map(|of| &of.graph.nodes[at].compute);
                Some(format!("step {at} is {own:?} by one pair of texts, and {known:?} by another"))
            }
            None => (own != *known).then(|| "it reads something else".into()),
        }
    }

    /// Has it numbers that follow from the position, in functions or in launches without a meaning?
    pub fn has_numbers(&self, inputs: &Inputs) -> bool {
        let has = |node: &Node| matches!(node.compute, Compute::AffineAtPosition { .. });
        !inputs.at_lengths.is_empty() || self.graph.nodes.iter().any(has)
    }

    /// How many tokens lie before the new one in what a graph appends to; `None` if it appends nothing to that.
    pub fn place(graph: &Graph, input: usize) -> Option<u64> {
        let appends = graph.nodes.iter().filter_map(|node| Append::of(node, graph));
        appends.filter(|append| append.input == input).map(|append| append.place).next()
    }

    /// Fails if a pass overwrites memory that is no cache.
    ///
    /// # Errors
    /// Which input of the recorded graph that is.
    pub fn explains(&self, overwritten: &[usize]) -> Result<(), String> {
        let is_cache = |input: &usize| self.caches.iter().any(|of| [of.keys.input, of.values.input].contains(input));
        let is_grown = |input: &usize| self.grown.iter().any(|of| of.input == *input);
        match overwritten.iter().find(|input| !is_cache(input) && !is_grown(input)) {
            Some(input) => Err(format!(
                "it overwrites memory that is no cache of attention (input {input}): a state is to be a new tensor at each step"
            )),
            None => Ok(()),
        }
    }

    /// The index of the input that comes from there, which is added if there is none.
    pub(super) fn input(&mut self, source: Source, like: Input) -> Value {
        let at = self.sources.iter().position(|known| *known == source).unwrap_or_else(|| {
            self.sources.push(source);
            self.graph.inputs.push(like);
            self.sources.len() - 1
        });
        Value::Input(at)
    }
}
