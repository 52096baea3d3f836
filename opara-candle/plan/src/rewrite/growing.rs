//! The common graph of two passes as it is made.

use hashbrown::HashMap;

use super::affine::affine_at_position;
use super::compute::{ByPosition, Compute};
use super::graph::{Input, Node, Operand, Output, Value};
use super::growth::{Cache, Grown, Growth, Recorded, Source};
use super::heads::Heads;
use super::over_capacity::{can_hide, over_capacity};
use super::pairs::{Appended, Pairs};
use super::scores::{Mask, Scores};
use super::stretch::{stretch, Extent, Stretched};
use crate::trace::{Element, Function};

/// The common graph as it is made.
pub(super) struct Growing<'a> {
    pairs: &'a Pairs<'a>,
    appended: HashMap<usize, Appended>,
    /// How values grow, those that do.
    extents: HashMap<Value, Extent>,
    /// Its nodes have the numbers that they have in both.
    growth: Growth,
}

impl<'a> Growing<'a> {
    pub fn new(pairs: &'a Pairs) -> Result<Self, String> {
        let appended = pairs.appended()?;
        let states = pairs.states();
        let growth = Growth { states: states.iter().map(|(input, _)| *input).collect(), ..Growth::default() };
        Ok(Self { pairs, appended, extents: HashMap::new(), growth })
    }

    pub fn grown(mut self) -> Result<Growth, String> {
        let Pairs { graph, longer, .. } = *self.pairs;
        for (at, (node, other)) in graph.nodes.iter().zip(&longer.nodes).enumerate() {
            let common = match self.appended.contains_key(&at) || !self.pairs.live[at] {
                // Nothing reads it in the common graph, unless its tokens are asked for.
                true => nothing(node.element),
                false => self.common(at, node, other)?,
            };
            self.growth.graph.nodes.push(common);
        }
        if graph.outputs.iter().zip(&longer.outputs).any(|(a, b)| a.value != b.value) {
            return Err("it gives something else behind a longer text".into());
        }
        for output in graph.outputs.iter().take(self.pairs.inputs.outputs) {
            let value = self.output(output.value)?;
            self.growth.graph.outputs.push(Output { value, ..*output });
        }
        for (_, value) in self.pairs.states() {
            let value = self.output(value)?;
            self.growth.graph.outputs.push(Output { value, buffer: self.growth.graph.outputs.len() });
        }
        match (&self.growth.caches[..], &self.growth.grown[..], &self.growth.states[..]) {
            ([], [], []) => {
                Err("it reads nothing that a token was appended to, and leaves nothing to its next step".into())
            }
            _ => Ok(self.growth),
        }
    }

    /// An output of the common graph.
    fn output(&mut self, value: Value) -> Result<Value, String> {
        let common = self.value(value, value)?;
        match self.extents.get(&value) {
            Some(_) => Err("it gives something whose size depends on the length".into()),
            None => Ok(common),
        }
    }

    /// The node that stands for both.
    fn common(&mut self, at: usize, node: &Node, other: &Node) -> Result<Node, String> {
        let [a, b] = self.pairs.lengths;
        let said = |what: &str| {
            let of = (&node.compute, &other.compute);
            format!("step {at} differs in {what} behind {a} and {b} tokens: {:?} and {:?}", of.0, of.1)
        };
        let mut why_not = None;
        if let Compute::Attention(scores) = &node.compute {
            if let Some(appends) = self.appends(node) {
                match self.attention(node, other, scores, appends) {
                    Ok(node) => return Ok(node),
                    Err(why) => why_not = Some(why),
                }
            }
        }
        if node.operands.len() != other.operands.len() || node.element != other.element {
            return Err(said("the number of its operands"));
        }
        self.over_places(at, node, other).map_err(|why| {
            said(&why_not.map_or(why.clone(), |not| format!("{not} (in one launch), and in {why} (in several)")))
        })
    }

    /// The node that stands for both, over all places of what grows.
    fn over_places(&mut self, at: usize, node: &Node, other: &Node) -> Result<Node, String> {
        let pairs = node.operands.iter().zip(&other.operands);
        let mut operands = pairs.map(|(a, b)| self.operand(a, b)).collect::<Result<Vec<_>, _>>()?;
        let grows = operands.iter().any(|operand| operand.grows.is_some());
        if let Compute::Attention(scores) = &node.compute {
            if grows && operands.len() >= 3 && !can_hide(scores, &operands[3..]) {
                operands.push(self.unwritten(node, &operands)?);
            }
        }
        let mut by_position: Vec<(usize, ByPosition)> =
            operands.iter().enumerate().filter_map(|(at, operand)| Some((at, operand.moves?))).collect();
        let (compute, len) = match grows {
            true => {
                let over = over_capacity(node, other, &operands)?;
                by_position.extend(over.ends);
                over.extent.map(|extent| self.extents.insert(Value::Node(at), extent));
                (over.compute, over.len)
            }
            false if node.len != other.len => return Err("what it computes".into()),
            false if node.compute != other.compute => {
                let compute = affine_at_position([node, other], self.pairs.lengths);
                (compute.ok_or("what it computes")?, node.len)
            }
            false => (node.compute.clone(), node.len),
        };
        let mut operands: Vec<Operand> = operands.into_iter().map(|operand| operand.operand).collect();
        let has_numbers = match compute {
            Compute::Opaque(number) => self.pairs.inputs.at_lengths.contains(&number),
            Compute::AffineAtPosition { .. } => true,
            _ => false,
        };
        if has_numbers {
            operands.push(self.position());
        }
        if by_position.is_empty() {
            return Ok(Node { compute, operands, len, ..node.clone() });
        }
        if !node.given_beside().is_empty() {
            return Err("where an operand begins".into());
        }
        operands.push(self.position());
        let compute = Compute::AtPosition { compute: Box::new(compute), operands: by_position };
        Ok(Node { compute, operands, len, ..node.clone() })
    }

    /// A mask of attention to all places.
    fn unwritten(&mut self, node: &Node, operands: &[Stretched]) -> Result<Stretched, String> {
        let [q, k, ..] = operands else { return Err("the number of its operands".into()) };
        let (Some(places), Some(queries)) = (k.grows, q.operand.dims.iter().rev().nth(1)) else {
            return Err("its keys".into());
        };
        let len = k.operand.dims[places].len;
        let element = if matches!(&node.compute, Compute::Attention(scores) if scores.in_f32) {
            Element::F32
        } else {
            node.element
        };
        let like = Input { buffer: 0, element, len, is_constant: false };
        let value = self.growth.input(Source::Unwritten(element), like);
        let heads: u64 = q.operand.dims[..q.operand.dims.len() - 2].iter().map(|dim| dim.len).product();
        let mut mask = Operand::whole(value, len);
        for len in [queries.len, heads] {
            mask.dims.insert(0, crate::trace::Dim { len, stride: 0 });
        }
        let grows = Some(mask.dims.len() - 1);
        Ok(Stretched { operand: mask, grows, repeats: false, tokens: k.tokens, moves: None, ends_as_zeros: false })
    }

    /// The value of the common graph that stands for both.
    fn value(&mut self, a: Value, b: Value) -> Result<Value, String> {
        match a {
            _ if a != b => Err("what it reads".into()),
            Value::Node(at) if self.appended.contains_key(&at) => self.places(at).map(|()| a),
            Value::Node(_) => Ok(a),
            Value::Input(at) => self.common_input(at),
        }
    }

    /// An input of the common graph that stands for one of both.
    fn common_input(&mut self, at: usize) -> Result<Value, String> {
        let mut like = self.pairs.graph.inputs[at].clone();
        if self.appended.values().any(|of| of.input == at) {
            return Err("what it reads: a cache before the new token is appended to it".into());
        }
        if let Some(state) = self.growth.states.iter().position(|input| *input == at) {
            like.is_constant = false;
            return Ok(self.growth.input(Source::State(state), like));
        }
        let Some(counted) = self.pairs.counted(at) else { return Ok(self.growth.input(Source::Recorded(at), like)) };
        like.is_constant = false;
        if let Some([rows, step]) = counted.grows {
            let tokens = self.pairs.lengths.map(|length| length + 1);
            let room = self.pairs.inputs.capacity;
            let extent = Extent { rows, step, places: tokens, tokens, room, ends_as_zeros: false };
            like.len = extent.len();
            self.extents.insert(Value::Input(at), extent);
        }
        let source = if counted.is_given { Source::Given(at) } else { Source::Counted(at) };
        Ok(self.growth.input(source, like))
    }

    /// Has a token appended to earlier ones, since all their places are read.
    fn places(&mut self, at: usize) -> Result<(), String> {
        if self.extents.contains_key(&Value::Node(at)) {
            return Ok(());
        }
        let Appended { input, rows, step, row, window, ref new, .. } = self.appended[&at];
        if window.is_some() {
            return Err(
                "its size: it reads all of a cache that has the latest tokens alone, and is no attention that is known"
                    .into(),
            );
        }
        self.check_left(at)?;
        let (room, new) = (self.pairs.inputs.capacity, new.clone());
        let tokens = self.pairs.lengths.map(|length| length + 1);
        let places = row.map(|row| row / step);
        let extent = Extent { rows, step, places, tokens, room, ends_as_zeros: true };
        let element = self.pairs.graph.nodes[at].element;
        let new = self.operand(&new, &new)?;
        if new.grows.is_some() || self.pairs.graph.inputs[input].element != element {
            return Err("what is appended to a cache".into());
        }
        let like = Input { buffer: 0, element, len: extent.len(), is_constant: false };
        let earlier = self.growth.input(Source::Grown(self.growth.grown.len()), like);
        self.growth.grown.push(Grown { input, rows, step, element, window });
        let operands = vec![new.operand, Operand::whole(earlier, extent.len()), self.position()];
        let compute = Compute::Appended { rows, step };
        self.growth.graph.nodes[at] = Node::new(compute, operands, element, extent.len());
        self.extents.insert(Value::Node(at), extent);
        Ok(())
    }

    /// Fails if it is known that the module does not keep what a token was appended to.
    fn check_left(&self, at: usize) -> Result<(), String> {
        let input = self.appended[&at].input;
        match self.pairs.inputs.next.get(input).copied().flatten() {
            Some(next) if self.copied_from(next) != Value::Node(at) => {
                Err("what its cache has afterwards: a step changes what its cache has of earlier tokens".into())
            }
            _ => Ok(()),
        }
    }

    /// The value that another one is a copy of, in the same order.
    fn copied_from(&self, value: Value) -> Value {
        let Value::Node(at) = value else { return value };
        let node = &self.pairs.graph.nodes[at];
        let is_copy = matches!(node.compute, Compute::Recorded(Function::Copy | Function::Affine(1., 0.)));
        match &node.operands[..] {
            [from] if is_copy && from.is_whole(node.len) && self.pairs.graph.element(from.value) == node.element => {
                self.copied_from(from.value)
            }
            _ => value,
        }
    }

    /// The operand of the common graph that stands for both.
    fn operand(&mut self, a: &Operand, b: &Operand) -> Result<Stretched, String> {
        if let Some(row) = self.row(a, b) {
            let tokens = self.pairs.lengths.map(|length| length + 1);
            return Ok(Stretched {
                operand: row,
                grows: None,
                repeats: false,
                tokens,
                moves: None,
                ends_as_zeros: false,
            });
        }
        let value = self.value(a.value, b.value)?;
        let extent = self.extents.get(&a.value);
        let (tokens, capacity) = (self.pairs.lengths.map(|length| length + 1), self.pairs.inputs.capacity);
        let mut stretched = stretch([a, b], extent, tokens, capacity)?;
        stretched.operand.value = value;
        if extent.is_none() {
            self.keep_inside(a.value, &mut stretched)?;
        }
        Ok(stretched)
    }

    /// Fails if what moves over a table or grows over it leaves it before a text is full. Places that are not written may.
    fn keep_inside(&self, value: Value, of: &mut Stretched) -> Result<(), String> {
        if of.moves.is_none() && of.grows.is_none() {
            return Ok(());
        }
        let (first, step) = match of.moves {
            Some(ByPosition::Moves { first, step }) => (first, step),
            _ => (of.operand.first as i64, 0),
        };
        let dims = of.operand.dims.iter().enumerate().filter(|(at, _)| Some(*at) != of.grows);
        let reach: u64 = dims.map(|(_, dim)| dim.len.saturating_sub(1) * dim.stride).sum();
        let by_token = of.grows.map_or(0, |at| of.operand.dims[at].stride) as i64;
        let len = self.pairs.graph.len(value) as i64;
        let last = self.pairs.inputs.capacity as i64 - 1;
        let begins = [first, first + step * last].into_iter().min().unwrap_or(first);
        let ends = [first, first + (step + by_token) * last].into_iter().max().unwrap_or(first) + reach as i64;
        if begins < 0 && of.grows.is_none() || ends >= len {
            return Err(format!(
                "where an operand begins: a table of {len} elements ends before {} tokens, so choose a smaller capacity",
                last + 1
            ));
        }
        // A view of a whole tensor has to lie in it.
        if of.moves.is_none() && of.operand.first as i64 + reach as i64 + by_token * last >= len {
            of.moves = Some(ByPosition::Moves { first, step: 0 });
            of.operand.first = 0;
        }
        Ok(())
    }

    /// The row of a table, if two operands are the rows of the positions.
    fn row(&mut self, a: &Operand, b: &Operand) -> Option<Operand> {
        let ([length, longer], Value::Input(input)) = (self.pairs.lengths, a.value) else { return None };
        let is_table = self.pairs.counted(input).is_none() && !self.growth.states.contains(&input);
        if a.first == b.first || a.value != b.value || a.dims != b.dims || !is_table {
            return None;
        }
        let between = b.first.checked_sub(a.first).filter(|of| of.is_multiple_of(longer - length))? / (longer - length);
        let first = a.first.checked_sub(between.checked_mul(length)?)?;
        let reach = a.dims.iter().map(|dim| dim.len.saturating_sub(1) * dim.stride).sum::<u64>() + 1;
        // Of elements that do not follow one another, as many as their distance divides.
        let apart = a.dims.iter().map(|dim| dim.stride).filter(|stride| *stride > 0).min().unwrap_or(1);
        let (begin, first) = (first % apart, first - first % apart);
        let reach = (begin + reach).next_multiple_of(apart);
        if first + reach > between || self.appended.values().any(|of| of.input == input) {
            return None;
        }
        let like = Input { len: reach, is_constant: false, ..self.pairs.graph.inputs[input].clone() };
        let value = self.growth.input(Source::Row { table: input, first, between }, like);
        Some(Operand { value, first: begin, dims: a.dims.clone() })
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
        // One number for all scores changes none of their weights.
        let is_one = |mask: &Operand| mask.dims.iter().all(|dim| dim.stride == 0 || dim.len == 1);
        let is_same = node.compute == other.compute
            && others.len() == node.operands.len()
            && others[3..].iter().all(is_one)
            && (others[1].value, others[2].value) == (k.value, v.value);
        let are_added = scores.masks.iter().all(|mask| matches!(mask, Mask::Added(_)));
        if !are_added || !masks.iter().all(is_one) || !scores.are_divisors.is_empty() {
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
        [keys, values].into_iter().try_for_each(|at| self.check_left(at))?;
        let mut operands = vec![self.fixed(q, &others[0])?];
        for new in new {
            operands.push(self.fixed(&new, &new)?);
        }
        let at = self.growth.caches.len();
        let like = Input { buffer: 0, element: node.element, len: 0, is_constant: false };
        let cached = self.growth.input(Source::Cache(at), like);
        let start = self.position();
        self.growth.caches.push(cache);
        operands.extend([Operand::whole(cached, 0), start]);
        let compute = Compute::CachedAttention { heads, size, scale, window };
        Ok(Node { compute, operands, ..node.clone() })
    }

    /// How many tokens there are before the new one.
    fn position(&mut self) -> Operand {
        let like = Input { buffer: 0, element: Element::U32, len: 1, is_constant: false };
        Operand::whole(self.growth.input(Source::Position, like), 1)
    }

    /// An operand that is the same at every position.
    fn fixed(&mut self, a: &Operand, b: &Operand) -> Result<Operand, String> {
        match self.operand(a, b)? {
            Stretched { operand, grows: None, repeats: false, moves: None, .. } => Ok(operand),
            _ => Err("the size of an operand".into()),
        }
    }
}

/// A node that nothing reads.
fn nothing(element: Element) -> Node {
    Node::new(Compute::Concat { rows: 1, widths: Vec::new() }, Vec::new(), element, 0)
}
