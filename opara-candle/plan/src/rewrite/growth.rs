//! A pass that adds a token to a text, for every length of text: what passes behind two texts have in common.
//!
//! A decoder whose cache grows by concatenation makes tensors of other sizes at every token, and one that writes to a buffer in place
//! writes elsewhere and reads more of it. Where two of its passes differ in what is known to depend on the length, and in nothing else,
//! one graph stands for all: keys and values are appended to a cache of a fixed size, attention reads as much of it as is written, and
//! tables give the row of the position.

use hashbrown::HashMap;

use super::append::Append;
use super::graph::{strides_over, Compute, Graph, Input, Node, Operand, Value};
use super::scores::Scores;
use crate::trace::Element;

/// The step that adds a token to a text of any length.
#[derive(Debug, Clone, PartialEq)]
pub struct Growth {
    /// The graph. Its inputs are the `sources`.
    pub graph: Graph,
    /// The source of each input.
    pub sources: Vec<Source>,
    /// Keys and values of each attention, in the order of [`Source::Cache`].
    pub caches: Vec<Cache>,
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

/// Keys or values of earlier tokens, as a recorded pass read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// The input of the recorded graph.
    pub input: usize,
    /// Do the heads of a token follow one another? Otherwise the tokens of a head do.
    pub by_token: bool,
}

impl Growth {
    /// The common step of passes behind texts of these lengths. The same rules rewrite the graphs.
    ///
    /// # Errors
    /// A difference that does not come from the length alone in a way that is known.
    pub fn of(graphs: [&Graph; 2], lengths: [u64; 2]) -> Result<Self, String> {
        let [graph, longer] = graphs;
        if lengths[0] >= lengths[1] || lengths[0] < 2 {
            return Err(format!("passes behind {} and {} tokens tell nothing", lengths[0], lengths[1]));
        }
        let counts = [graph, longer].map(|graph| (graph.inputs.len(), graph.nodes.len(), graph.outputs.len()));
        if counts[0] != counts[1] {
            let of = |(_, nodes, _)| nodes;
            let [a, b] = counts.map(of);
            return Err(format!("it makes {a} steps behind {} tokens, and {b} behind {}", lengths[0], lengths[1]));
        }
        let pairs = Pairs { graph, longer, lengths, live: graph.live() };
        let appended = pairs.appended()?;
        let growth = Self { graph: Graph::default(), sources: Vec::new(), caches: Vec::new() };
        Growing { pairs: &pairs, appended, growth }.grown()
    }

    /// Whether this is `known`, as far as its texts tell, the longer one of which has `length` tokens: while a cache has room for all of
    /// them, it is not seen how many of the latest tokens it holds.
    pub fn agrees(&self, known: &Self, length: u64) -> bool {
        let mut own = self.clone();
        let or_known = |own: Option<u64>, known: Option<u64>| own.or(known.filter(|window| length < *window));
        for (cache, known) in own.caches.iter_mut().zip(&known.caches) {
            cache.window = or_known(cache.window, known.window);
        }
        for (node, known) in own.graph.nodes.iter_mut().zip(&known.graph.nodes) {
            if let (Compute::CachedAttention { window, .. }, Compute::CachedAttention { window: known, .. }) =
                (&mut node.compute, &known.compute)
            {
                *window = or_known(*window, *known);
            }
        }
        own == *known
    }

    /// How many tokens lie before the new one in what a graph appends to; `None` if it appends nothing to that.
    pub fn place(graph: &Graph, of: Recorded) -> Option<u64> {
        let appends = graph.nodes.iter().filter_map(|node| Append::of(node, graph));
        appends.filter(|append| append.input == of.input).map(|append| append.place).next()
    }

    /// Fails if a pass overwrites memory that is no cache.
    ///
    /// # Errors
    /// Which input of the recorded graph that is.
    pub fn explains(&self, overwritten: &[usize]) -> Result<(), String> {
        let is_cache = |input: &usize| self.caches.iter().any(|of| [of.keys.input, of.values.input].contains(input));
        match overwritten.iter().find(|input| !is_cache(input)) {
            Some(input) => Err(format!("it overwrites memory that is no cache of attention (input {input})")),
            None => Ok(()),
        }
    }

    /// The index of the input that comes from there, which is added if there is none.
    fn input(&mut self, source: Source, like: Input) -> Value {
        let at = self.sources.iter().position(|known| *known == source).unwrap_or_else(|| {
            self.sources.push(source);
            self.graph.inputs.push(like);
            self.sources.len() - 1
        });
        Value::Input(at)
    }
}

/// The node that appends the new token to earlier ones, in both graphs.
struct Appended {
    /// The input of earlier tokens.
    input: usize,
    /// Runs that it is appended to, and elements of a token.
    rows: u64,
    token: u64,
    /// Elements of a run behind each of the texts.
    row: [u64; 2],
    /// How many of the latest tokens these are, if not all.
    window: Option<u64>,
    /// How many tokens lie before the new one behind each of the texts.
    place: [u64; 2],
    /// Of the new token.
    new: Operand,
}

/// Two graphs, node by node.
struct Pairs<'a> {
    graph: &'a Graph,
    longer: &'a Graph,
    lengths: [u64; 2],
    live: Vec<bool>,
}

impl Pairs<'_> {
    /// The nodes that append to what was there, by index.
    ///
    /// # Errors
    /// An input whose size depends on the length, and that nothing appends to.
    fn appended(&self) -> Result<HashMap<usize, Appended>, String> {
        let mut appended = HashMap::new();
        for (at, node) in self.graph.nodes.iter().enumerate().filter(|(at, _)| self.live[*at]) {
            let other = &self.longer.nodes[at];
            if let Some(found) = self.append(node, other) {
                appended.insert(at, found);
            }
        }
        for (at, (input, other)) in self.graph.inputs.iter().zip(&self.longer.inputs).enumerate() {
            if (input.element, input.is_constant) != (other.element, other.is_constant) {
                return Err(format!("input {at} has another type behind a longer text"));
            }
            if input.len != other.len && !appended.values().any(|of| of.input == at) {
                let [a, b] = self.lengths;
                return Err(format!(
                    "what it reads has {} elements behind {a} tokens and {} behind {b}, and is nothing that the new token is \
                     appended to",
                    input.len, other.len
                ));
            }
        }
        Ok(appended)
    }

    /// The cache that a node appends to, if it appends in both graphs.
    fn append(&self, node: &Node, other: &Node) -> Option<Appended> {
        let [of, longer] = [Append::of(node, self.graph)?, Append::of(other, self.longer)?];
        let window = match [of.window(self.lengths[0])?, longer.window(self.lengths[1])?] {
            [own, of_longer] if own == of_longer => own,
            // Behind the shorter text there is room left in the same buffer.
            [None, window] if of.row == longer.row => window,
            _ => return None,
        };
        let is_same = (of.input, of.rows, of.step, of.new) == (longer.input, longer.rows, longer.step, longer.new);
        is_same.then(|| Appended {
            input: of.input,
            rows: of.rows,
            token: of.rows * of.step,
            row: [of.row, longer.row],
            window,
            place: [of.place, longer.place],
            new: of.new.clone(),
        })
    }
}

/// The common graph as it is made.
struct Growing<'a> {
    pairs: &'a Pairs<'a>,
    appended: HashMap<usize, Appended>,
    /// Its nodes have the numbers that they have in both.
    growth: Growth,
}

impl Growing<'_> {
    fn grown(mut self) -> Result<Growth, String> {
        let Pairs { graph, longer, .. } = *self.pairs;
        for (at, (node, other)) in graph.nodes.iter().zip(&longer.nodes).enumerate() {
            let common = match self.appended.contains_key(&at) || !self.pairs.live[at] {
                // Nothing reads it in the common graph.
                true => Node::new(Compute::Concat { rows: 1, widths: Vec::new() }, Vec::new(), node.element, 0),
                false => self.common(at, node, other)?,
            };
            self.growth.graph.nodes.push(common);
        }
        if graph.outputs.iter().zip(&longer.outputs).any(|(a, b)| a.value != b.value) {
            return Err("it gives something else behind a longer text".into());
        }
        for output in &graph.outputs {
            let value = self.value(output.value, output.value)?;
            self.growth.graph.outputs.push(super::Output { value, ..*output });
        }
        match self.growth.caches.is_empty() {
            true => Err("no attention reads what the new token is appended to".into()),
            false => Ok(self.growth),
        }
    }

    /// The node that stands for both.
    fn common(&mut self, at: usize, node: &Node, other: &Node) -> Result<Node, String> {
        let [a, b] = self.pairs.lengths;
        let said = |what: &str| {
            let of = (&node.compute, &other.compute);
            format!("step {at} differs in {what} behind {a} and {b} tokens: {:?} and {:?}", of.0, of.1)
        };
        if let Compute::Attention(scores) = &node.compute {
            if let Some(appends) = self.appends(node) {
                return self.attention(node, other, scores, appends).map_err(|why| said(&why));
            }
        }
        if node.compute != other.compute || (node.element, node.len) != (other.element, other.len) {
            return Err(said("what it computes"));
        }
        if node.operands.len() != other.operands.len() {
            return Err(said("the number of its operands"));
        }
        let pairs = node.operands.iter().zip(&other.operands);
        let operands = pairs.map(|(a, b)| self.operand(a, b)).collect::<Result<_, _>>().map_err(|why| said(&why))?;
        Ok(Node { operands, ..node.clone() })
    }

    /// The value of the common graph that stands for both.
    fn value(&mut self, a: Value, b: Value) -> Result<Value, String> {
        match a {
            _ if a != b => Err("what it reads".into()),
            Value::Node(at) if self.appended.contains_key(&at) => {
                Err("its size: it reads all of a cache, and is no attention that is known".into())
            }
            Value::Node(_) => Ok(a),
            Value::Input(at) => {
                let like = self.pairs.graph.inputs[at].clone();
                Ok(self.growth.input(Source::Recorded(at), like))
            }
        }
    }

    /// The operand of the common graph that stands for both.
    fn operand(&mut self, a: &Operand, b: &Operand) -> Result<Operand, String> {
        if a.dims != b.dims {
            return Err("the size of an operand".into());
        }
        if a.first == b.first {
            return Ok(Operand { value: self.value(a.value, b.value)?, ..a.clone() });
        }
        // The row of a table.
        let ([length, longer], Value::Input(input)) = (self.pairs.lengths, a.value) else {
            return Err("where an operand begins".into());
        };
        if a.value != b.value {
            return Err("what it reads".into());
        }
        let between = b.first.checked_sub(a.first).filter(|of| of.is_multiple_of(longer - length));
        let between = between.map(|of| of / (longer - length));
        let first = between.and_then(|between| a.first.checked_sub(between.checked_mul(length)?));
        let reach = a.dims.iter().map(|dim| dim.len.saturating_sub(1) * dim.stride).sum::<u64>() + 1;
        let (Some(between), Some(first)) = (between, first) else { return Err("where an operand begins".into()) };
        if first + reach > between {
            return Err("where an operand begins: what it reads is more than a row of a table".into());
        }
        let like = Input { len: reach, is_constant: false, ..self.pairs.graph.inputs[input].clone() };
        let value = self.growth.input(Source::Row { table: input, first, between }, like);
        Ok(Operand { value, first: 0, dims: a.dims.clone() })
    }

    /// The nodes by which the new token is appended to the keys and to the values of attention, if it is.
    fn appends(&self, attention: &Node) -> Option<[usize; 2]> {
        let append = |operand: &Operand| match operand.value {
            Value::Node(at) if self.appended.contains_key(&at) => Some(at),
            _ => None,
        };
        let [_, k, v, ..] = &attention.operands[..] else { return None };
        Some([append(k)?, append(v)?])
    }

    /// Attention over a cache, in the place of attention whose keys and values these nodes append to.
    fn attention(
        &mut self,
        node: &Node,
        other: &Node,
        scores: &Scores,
        [keys, values]: [usize; 2],
    ) -> Result<Node, String> {
        let [q, k, v, masks @ ..] = &node.operands[..] else { return Err("the number of its operands".into()) };
        let others = &other.operands;
        let is_same = node.compute == other.compute
            && others.len() == node.operands.len()
            && (others[1].value, others[2].value) == (k.value, v.value);
        if !masks.is_empty() {
            return Err("its mask: a step of one token has none".into());
        }
        let &Scores { scale, cap: None, .. } = scores else {
            return Err("a cap of its scores: no kernel over a cache has one".into());
        };
        if !is_same || (node.element, node.len) != (other.element, other.len) {
            return Err("what it computes".into());
        }
        let (of_keys, of_values) = (&self.appended[&keys], &self.appended[&values]);
        let heads = |[k, v]: [&Operand; 2], text: usize| {
            let tokens = of_keys.window.unwrap_or(u64::MAX).min(self.pairs.lengths[text] + 1);
            let of = |operand, of: &Appended| Heads::of(operand, tokens, of, of.row[text]);
            Some([of(k, of_keys)?, of(v, of_values)?])
        };
        let [k, v] = heads([k, v], 0)
            .filter(|of| heads([&others[1], &others[2]], 1).as_ref() == Some(of))
            .filter(|[k, v]| (k.heads, k.size) == (v.heads, v.size))
            .filter(|_| (of_keys.window, of_keys.place) == (of_values.window, of_values.place))
            .ok_or("how keys and values lie")?;
        let Heads { heads, size, .. } = k;
        if !node.len.is_multiple_of(heads * size) || q.len() != node.len {
            return Err("its queries: there is more than one new token".into());
        }
        let recorded = |of: &Appended, by_token| Recorded { input: of.input, by_token };
        let window = of_keys.window;
        let cache = Cache {
            keys: recorded(of_keys, k.by_token),
            values: recorded(of_values, v.by_token),
            heads,
            size,
            element: node.element,
            window,
        };
        let new = [of_keys.new.clone(), of_values.new.clone()];
        let is_typed = |input: usize| self.pairs.graph.inputs[input].element == node.element;
        if !is_typed(cache.keys.input) || !is_typed(cache.values.input) {
            return Err("types: the cache has another one than the result".into());
        }
        let at = self.growth.caches.len();
        let like = Input { buffer: 0, element: node.element, len: 0, is_constant: false };
        let cached = self.growth.input(Source::Cache(at), like);
        let start = self.growth.input(Source::Position, position());
        self.growth.caches.push(cache);
        let mut operands = vec![self.operand(q, &others[0])?];
        for new in new {
            operands.push(self.operand(&new, &new)?);
        }
        operands.extend([Operand::whole(cached, 0), Operand::whole(start, 1)]);
        let compute = Compute::CachedAttention { heads, size, scale, window };
        Ok(Node { compute, operands, ..node.clone() })
    }
}

/// How the heads of an operand of attention lie in what they were appended to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Heads {
    heads: u64,
    size: u64,
    by_token: bool,
}

impl Heads {
    /// Of one text, if all of it is read, by heads. `row` are the elements of a run.
    fn of(operand: &Operand, tokens: u64, of: &Appended, row: u64) -> Option<Self> {
        let [.., heads, of_tokens, size] = operand.dims[..] else { return None };
        let is_one_text = operand.dims.len() == 3 || operand.dims.len() == 4 && operand.dims[0].len == 1;
        if !is_one_text || operand.first != 0 || of_tokens.len != tokens || heads.len * size.len != of.token {
            return None;
        }
        let strides = strides_over(&operand.dims, &[heads.len, tokens, size.len])?;
        // The tokens of a run follow one another.
        let by_token = of.rows == 1;
        let lies = strides[2] == 1
            && match by_token {
                true => strides[1] == of.token && (strides[0] == size.len || heads.len == 1),
                false => of.rows == heads.len && strides[1] == size.len && strides[0] == row,
            };
        lies.then_some(Self { heads: heads.len, size: size.len, by_token })
    }
}

/// The input that says how many tokens there are.
fn position() -> Input {
    Input { buffer: 0, element: Element::U32, len: 1, is_constant: false }
}
