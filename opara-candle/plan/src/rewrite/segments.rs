//! Segments of a graph that is differentiated, whose values are computed again on the way back.
//!
//! The way back reads values of the way forward. If all are kept, they may take more memory than there is. Of a graph in segments only
//! the values that a later segment reads are kept; on the way back each segment is computed again (Chen et al., "Training Deep Nets with
//! Sublinear Memory Cost", 2016).

use std::ops::Range;

use super::graph::{Graph, Value};

/// A graph in consecutive segments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segments {
    /// Their nodes, in order.
    ranges: Vec<Range<usize>>,
    /// For each node, whether its value is kept when its segment ends.
    kept: Vec<bool>,
    bytes: u64,
}

/// Counts of segments that are tried. From some count on, the values that are kept outgrow the largest segment's.
const COUNTS: [usize; 12] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64];

impl Segments {
    /// A graph in one segment, which keeps all values.
    pub fn one(graph: &Graph) -> Self {
        Self::of(graph, 1)
    }

    /// A graph in `count` segments, or fewer if it has few nodes. Values of each take about the same bytes. Each ends where few bytes are read
    /// behind it.
    ///
    /// # Complexity
    /// Linear in the nodes' operands.
    pub fn of(graph: &Graph, count: usize) -> Self {
        let (live, last) = (graph.live(), last_readers(graph));
        let nodes = graph.nodes.len();
        let bytes = |at: usize| if live[at] { graph.nodes[at].len * graph.nodes[at].element.bytes() } else { 0 };
        // Of each place between two nodes, the bytes before it, and those among them that are read behind it.
        let (mut before, mut crossing) = (vec![0u64; nodes + 1], vec![0u64; nodes + 1]);
        let mut ends = vec![0u64; nodes + 1];
        for at in 0..nodes {
            before[at + 1] = before[at] + bytes(at);
            let begins = if last[at] > at { bytes(at) } else { 0 };
            ends[last[at]] += begins;
            crossing[at + 1] = crossing[at] + begins - ends[at];
        }
        let (total, count) = (before[nodes], count.max(1) as u64);
        let mut cuts = vec![0];
        for cut in 1..count {
            let (target, room) = (total / count * cut, total / (3 * count));
            let from = before.partition_point(|&bytes| bytes + room < target);
            let to = before.partition_point(|&bytes| bytes <= target + room);
            let places = (from..to).filter(|&at| at > cuts[cuts.len() - 1] && at < nodes);
            cuts.extend(places.min_by_key(|&at| (crossing[at], before[at].abs_diff(target))));
        }
        cuts.push(nodes);
        let ranges: Vec<Range<usize>> = cuts.windows(2).map(|pair| pair[0]..pair[1]).collect();
        let mut kept = vec![false; nodes];
        for range in &ranges {
            range.clone().for_each(|at| kept[at] = live[at] && last[at] >= range.end);
        }
        let of_kept: u64 = (0..nodes).filter(|&at| kept[at]).map(bytes).sum();
        let inside = |range: &Range<usize>| range.clone().filter(|&at| !kept[at]).map(bytes).sum::<u64>();
        let bytes = of_kept + ranges.iter().map(inside).max().unwrap_or(0);
        Self { ranges, kept, bytes }
    }

    /// The lowest count of segments above `before` whose values take at most `bytes`; if none does, the count that takes the fewest bytes.
    pub fn within(graph: &Graph, bytes: u64, before: usize) -> Option<Self> {
        let more = COUNTS.into_iter().map(|count| Self::of(graph, count)).filter(|of| of.count() > before);
        let all: Vec<Self> = more.collect();
        let fits = all.iter().find(|of| of.bytes <= bytes);
        fits.or_else(|| all.iter().min_by_key(|of| of.bytes)).cloned()
    }

    /// The nodes of each segment, in order.
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// How many segments there are.
    pub fn count(&self) -> usize {
        self.ranges.len()
    }

    /// Whether a node's value is kept when its segment ends.
    pub fn is_kept(&self, node: usize) -> bool {
        self.kept[node]
    }

    /// Bytes of the values that are kept, and of all others of the largest segment: as many are there at once, beside gradients.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// For each node the last one that reads it: itself, if none does, and one behind all for what the graph gives.
fn last_readers(graph: &Graph) -> Vec<usize> {
    let mut last: Vec<usize> = (0..graph.nodes.len()).collect();
    for (at, node) in graph.nodes.iter().enumerate() {
        node.read().filter(|&of| of < at).for_each(|of| last[of] = at);
    }
    for output in &graph.outputs {
        if let Value::Node(of) = output.value {
            last[of] = graph.nodes.len();
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rewrite::{Compute, Input, Node, Operand, Output};
    use crate::trace::{Element, Function};

    /// Blocks of three functions, each of which is added to the block's operand.
    fn blocks(count: usize, len: u64) -> Graph {
        let node = |name: &str, of: &[Value]| {
            let function = match of {
                [_] => Function::Unary(name.into()),
                _ => Function::Binary(name.into()),
            };
            let operands = of.iter().map(|&value| Operand::whole(value, len)).collect();
            Node::new(Compute::Recorded(function), operands, Element::F32, len)
        };
        let (mut nodes, mut x): (Vec<Node>, _) = (Vec::new(), Value::Input(0));
        for _ in 0..count {
            let mut y = x;
            for _ in 0..3 {
                nodes.push(node("tanh", &[y]));
                y = Value::Node(nodes.len() - 1);
            }
            nodes.push(node("add", &[x, y]));
            x = Value::Node(nodes.len() - 1);
        }
        let inputs = vec![Input { buffer: 0, element: Element::F32, len, is_constant: false }];
        Graph { inputs, nodes, outputs: vec![Output { value: x, buffer: 1 }] }
    }

    #[test]
    fn segments_end_where_few_values_are_read_behind() {
        let graph = blocks(16, 10);
        let four = Segments::of(&graph, 4);
        assert_eq!(four.ranges(), [0..16, 16..32, 32..48, 48..64]);
        let kept: Vec<usize> = (0..64).filter(|&at| four.is_kept(at)).collect();
        assert_eq!(kept, [15, 31, 47, 63], "one value crosses from block to block");
        assert_eq!((Segments::one(&graph).bytes(), four.bytes()), (64 * 40, (4 + 15) * 40));
    }

    #[test]
    fn fewer_bytes_take_more_segments() {
        let graph = blocks(16, 10);
        let count = |bytes: u64| Segments::within(&graph, bytes * 40, 0).map(|of| of.count());
        assert_eq!([count(64), count(63), count(20), count(1)], [Some(1), Some(2), Some(4), count(11)]);
        assert!(Segments::within(&graph, 64 * 40, 4).is_some_and(|of| of.count() > 4));
        assert_eq!(Segments::within(&graph, 0, 64), None);
    }

    #[test]
    fn every_value_that_is_read_behind_its_segment_is_kept() {
        for (blocks_of, count) in [(1, 3), (5, 4), (16, 64), (40, 7)] {
            let graph = blocks(blocks_of, 3);
            let of = Segments::of(&graph, count);
            let nodes: Vec<usize> = of.ranges().iter().cloned().flatten().collect();
            assert_eq!(nodes, (0..graph.nodes.len()).collect::<Vec<_>>());
            for range in of.ranges() {
                for at in range.clone() {
                    let mut read = graph.nodes[at].read();
                    assert!(read.all(|from| range.contains(&from) || of.is_kept(from)), "{at} of {range:?}");
                }
            }
        }
    }
}
