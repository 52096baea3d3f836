//! Draws a graph in layers by depth, with edges downwards.
//!
//! An edge that crosses a layer gets a separate slot in it, beside the ops (Sugiyama, Tagawa and Toda, "Methods for
//! visual understanding of hierarchical system structures", 1981), so that no edge crosses an op. Edges of one op share
//! their slots.

use std::collections::HashMap;

use opara_plan::graph::OpGraph;
use opara_plan::prepared::Prepared;
use opara_plan::profile::Class;
use opara_plan::trace::OpId;
use svg::node::element::path::Data;
use svg::node::element::{Group, Path, Rectangle, Text, Title};
use svg::Document;

/// Sizes in pixels: an op's box, the slot of a passing edge, gaps, and the head with title and legend.
const BOX: (f64, f64) = (104., 18.);
const TRACK: f64 = 10.;
const GAP: (f64, f64) = (8., 26.);
const HEAD: f64 = 56.;
const MARGIN: f64 = 12.;
/// Minimum width, which the head needs.
const WIDTH: f64 = 420.;

/// Characters of an op's name that fit into its box.
const NAME: usize = 18;

/// Classes of ops, their colours, and their names in the legend.
const CLASSES: [(Class, &str, &str); 2] =
    [(Class::Compute, "#c8443c", "compute-intensive"), (Class::Memory, "#3c6ec8", "memory-intensive")];

/// Draws the ops of a trace and their dependencies. Each op's tooltip has its number, name and label.
pub fn svg(prepared: &Prepared, name: &str) -> String {
    let graph = &prepared.graph;
    let layout = Layout::of(graph);
    let (width, height) = (layout.width.max(WIDTH) + 2. * MARGIN, HEAD + layout.height + MARGIN);
    let left = (width - layout.width) / 2.;
    let at = |slot: Slot, layer: usize| (left + layout.x[&(layer, slot)], HEAD + y(layer));

    let mut edges = Group::new().set("fill", "none").set("stroke", "#999");
    let mut ops = Group::new().set("text-anchor", "middle");
    for op in 0..graph.len() {
        for before in graph.predecessors(op) {
            let (first, last) = (layout.depth[before], layout.depth[op]);
            let (x, top) = at(Slot::Op(before), first);
            let mut line = Data::new().move_to((x, top + BOX.1));
            for layer in first + 1..=last {
                let slot = if layer == last { Slot::Op(op) } else { Slot::Track(before) };
                let ((from, _), (to, top)) = (at(layout.slot_of(before, layer - 1), layer - 1), at(slot, layer));
                let bend = GAP.1 / 2.;
                line = line.cubic_curve_to((from, top - bend, to, top - bend, to, top));
                line = if layer == last { line } else { line.vertical_line_to(top + BOX.1) };
            }
            edges = edges.add(Path::new().set("class", "edge").set("d", line));
        }
        let recorded = &prepared.ops.trace.ops[op];
        let class = CLASSES.iter().find(|(class, ..)| *class == prepared.profile[op].class);
        let (x, top) = at(Slot::Op(op), layout.depth[op]);
        let label = if recorded.label.is_empty() { String::new() } else { format!(" ({})", recorded.label) };
        let tooltip = Title::new(format!("{op}: {}{label}", recorded.name));
        let boxed = rectangle(x - BOX.0 / 2., top, BOX, class.map_or("#777", |(_, colour, _)| colour)).set("rx", 3);
        let text = text(x, top + 12.5, &shortened(&recorded.name)).set("fill", "white");
        ops = ops.add(Group::new().set("class", "op").add(tooltip).add(boxed).add(text));
    }

    let counts = (graph.len(), graph.edges(), graph.depth());
    let title = format!("{name}: {} ops, {} dependencies, {} layers", counts.0, counts.1, counts.2);
    let mut head = Group::new().add(text(MARGIN, 20., &title).set("font-size", 13));
    let mut x = MARGIN;
    for (_, colour, told) in CLASSES {
        head = head.add(rectangle(x, 31., (12., 12.), colour)).add(text(x + 17., 41., told));
        x += 120.;
    }
    let head = head.add(text(x, 41., "lines: an op waits for the one above"));
    let paper = rectangle(0., 0., (width, height), "white");
    let font = Group::new().set("font-family", "sans-serif").set("font-size", 10);
    let drawn = font.add(edges).add(ops).add(head);
    Document::new().set("viewBox", (0, 0, width, height)).add(paper).add(drawn).to_string()
}

fn rectangle(x: f64, y: f64, (width, height): (f64, f64), fill: &str) -> Rectangle {
    Rectangle::new().set("x", x).set("y", y).set("width", width).set("height", height).set("fill", fill)
}

fn text(x: f64, y: f64, content: &str) -> Text {
    Text::new(content).set("x", x).set("y", y)
}

/// A name shortened to fit into a box, without the C++ mangling prefix: `_Z` and the name's length.
fn shortened(name: &str) -> String {
    let name = name.strip_prefix("_Z").map_or(name, |name| name.trim_start_matches(|c: char| c.is_ascii_digit()));
    match name.char_indices().nth(NAME) {
        None => name.to_owned(),
        Some(_) => name.chars().take(NAME - 1).chain(['…']).collect(),
    }
}

/// The top of a layer, below the head.
fn y(layer: usize) -> f64 {
    layer as f64 * (BOX.1 + GAP.1)
}

/// An element of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Slot {
    Op(OpId),
    /// The edges of this op, passing this layer.
    Track(OpId),
}

impl Slot {
    fn width(self) -> f64 {
        match self {
            Slot::Op(_) => BOX.0,
            Slot::Track(_) => TRACK,
        }
    }
}

/// The positions of all elements.
struct Layout {
    /// The layer of each op.
    depth: Vec<usize>,
    /// The centre of a slot, by layer.
    x: HashMap<(usize, Slot), f64>,
    width: f64,
    height: f64,
}

impl Layout {
    fn of(graph: &OpGraph) -> Self {
        let mut depth = vec![0; graph.len()];
        for op in 0..graph.len() {
            depth[op] = graph.predecessors(op).map(|before| depth[before] + 1).max().unwrap_or(0);
        }
        let layers = layers(graph, &depth);
        let widths = layers.iter().map(|layer| width_of(layer));
        let width = widths.fold(0., f64::max);
        let mut x = HashMap::new();
        for (at, layer) in layers.iter().enumerate() {
            let mut left = (width - width_of(layer)) / 2.;
            for &slot in layer {
                x.insert((at, slot), left + slot.width() / 2.);
                left += slot.width() + GAP.0;
            }
        }
        Self { depth, x, width, height: y(layers.len()) }
    }

    /// The slot of `op`'s edges in a layer at or below its own.
    fn slot_of(&self, op: OpId, layer: usize) -> Slot {
        if layer == self.depth[op] {
            Slot::Op(op)
        } else {
            Slot::Track(op)
        }
    }
}

fn width_of(layer: &[Slot]) -> f64 {
    let gaps = GAP.0 * layer.len().saturating_sub(1) as f64;
    layer.iter().map(|slot| slot.width()).sum::<f64>() + gaps
}

/// The slots of each layer, from left to right, each at the average position of its predecessors.
fn layers(graph: &OpGraph, depth: &[usize]) -> Vec<Vec<Slot>> {
    let mut layers = vec![Vec::new(); graph.depth()];
    // The lowest layer that the edges of each op reach.
    let mut last = depth.to_vec();
    for op in 0..graph.len() {
        layers[depth[op]].push(Slot::Op(op));
        for before in graph.predecessors(op) {
            last[before] = last[before].max(depth[op] - 1);
        }
    }
    for op in 0..graph.len() {
        layers[depth[op] + 1..].iter_mut().take(last[op] - depth[op]).for_each(|layer| layer.push(Slot::Track(op)));
    }
    // For each op, the position of its slot in the layer above, relative to the middle.
    let mut above = vec![0.; graph.len()];
    for layer in &mut layers {
        let wanted = |slot: &Slot| match slot {
            Slot::Track(op) => above[*op],
            Slot::Op(op) => {
                let places = graph.predecessors(*op).map(|before| above[before]);
                let (sum, count) = places.fold((0., 0), |(sum, count), place| (sum + place, count + 1));
                sum / f64::from(count.max(1))
            }
        };
        let mut sorted: Vec<(f64, Slot)> = layer.iter().map(|slot| (wanted(slot), *slot)).collect();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        *layer = sorted.into_iter().map(|(_, slot)| slot).collect();
        let mut left = -width_of(layer) / 2.;
        for slot in layer {
            let (Slot::Op(op) | Slot::Track(op)) = *slot;
            above[op] = left + slot.width() / 2.;
            left += slot.width() + GAP.0;
        }
    }
    layers
}

#[cfg(test)]
mod tests {
    use super::Slot::{Op, Track};
    use super::*;

    #[test]
    fn branches_stay_on_their_side() {
        let graph = OpGraph::from_predecessors(vec![vec![], vec![0], vec![0], vec![2], vec![1], vec![3, 4]]);
        let layout = Layout::of(&graph);
        assert_eq!(layers(&graph, &layout.depth), [vec![Op(0)], vec![Op(1), Op(2)], vec![Op(4), Op(3)], vec![Op(5)]]);
        assert!(layers(&OpGraph::from_predecessors(vec![]), &[]).is_empty());
    }

    #[test]
    fn edges_go_beside_ops() {
        // Ops 0 to 3 are a chain; the last op waits for it and for op 4, which waits for nothing.
        let graph = OpGraph::from_predecessors(vec![vec![], vec![0], vec![1], vec![2], vec![], vec![3, 4]]);
        let layout = Layout::of(&graph);
        let found = layers(&graph, &layout.depth);
        assert_eq!((&found[0], &found[4]), (&vec![Op(0), Op(4)], &vec![Op(5)]));
        for (layer, op) in found[1..4].iter().zip(1..) {
            assert_eq!(layer, &[Op(op), Track(4)]);
        }
        for (at, layer) in found.iter().enumerate() {
            let ends = |slot: &Slot| {
                let (middle, half) = (layout.x[&(at, *slot)], slot.width() / 2.);
                (middle - half, middle + half)
            };
            for pair in layer.windows(2) {
                assert!(ends(&pair[0]).1 < ends(&pair[1]).0, "{pair:?}");
            }
        }
    }

    #[test]
    fn long_names_are_shortened() {
        assert_eq!(shortened("softmax"), "softmax");
        assert_eq!(shortened("ampere_sgemm_128x64_tn"), "ampere_sgemm_128x…");
        assert_eq!(shortened("_Z33convolve_common_engine_floatPf"), "convolve_common_e…");
        assert_eq!(shortened("ampere_sgemm_128x…").chars().count(), NAME);
    }
}
