//! A graph as a picture: one layer a depth.

use opara_plan::graph::OpGraph;
use opara_plan::prepared::Prepared;
use opara_plan::profile::Class;
use opara_plan::trace::OpId;
use svg::node::element::{Circle, Group, Line, Rectangle, Title};
use svg::Document;

/// Distances of ops and of layers, and the size of an op, in pixels.
const STEP: f64 = 18.;
const LAYER: f64 = 26.;
const RADIUS: f64 = 6.;

/// Draws the ops of a trace as dots and their dependencies as lines. Compute-intensive ops are red and memory-intensive
/// ones blue; the title of each tells its number, name and label.
pub fn svg(prepared: &Prepared) -> String {
    let layers = layers(&prepared.graph);
    let widest = layers.iter().map(Vec::len).max().unwrap_or(0) as f64;
    let mut place = vec![(0., 0.); prepared.graph.len()];
    for (depth, layer) in layers.iter().enumerate() {
        let left = STEP * (widest - layer.len() as f64) / 2.;
        for (at, &op) in layer.iter().enumerate() {
            place[op] = (left + STEP * (at as f64 + 0.5), LAYER * (depth as f64 + 0.5));
        }
    }
    let (width, height) = (STEP * widest.max(1.), LAYER * layers.len().max(1) as f64);
    let mut lines = Group::new().set("stroke", "#999");
    let mut dots = Group::new();
    for (op, &(x, y)) in place.iter().enumerate() {
        for before in prepared.graph.predecessors(op) {
            let (from_x, from_y) = place[before];
            lines = lines.add(Line::new().set("x1", from_x).set("y1", from_y).set("x2", x).set("y2", y));
        }
        let fill = if prepared.profile[op].class == Class::Compute { "#c8443c" } else { "#3c6ec8" };
        let recorded = &prepared.ops.trace.ops[op];
        let title = Title::new(format!("{op}: {} ({})", recorded.name, recorded.label));
        dots = dots.add(Circle::new().set("cx", x).set("cy", y).set("r", RADIUS).set("fill", fill).add(title));
    }
    let paper = Rectangle::new().set("width", width).set("height", height).set("fill", "white");
    Document::new().set("viewBox", (0, 0, width, height)).add(paper).add(lines).add(dots).to_string()
}

/// The ops of each depth, from left to right: each stands where its predecessors do on average, as far as there is room.
fn layers(graph: &OpGraph) -> Vec<Vec<OpId>> {
    let mut depth = vec![0; graph.len()];
    let mut layers = vec![Vec::new(); graph.depth()];
    for op in 0..graph.len() {
        depth[op] = graph.predecessors(op).map(|before| depth[before] + 1).max().unwrap_or(0);
        layers[depth[op]].push(op);
    }
    // Of each op, from the middle of its layer.
    let mut place = vec![0.; graph.len()];
    for layer in &mut layers {
        let wanted = |op: &OpId| {
            let (sum, count) = graph.predecessors(*op).fold((0., 0), |(sum, count), p| (sum + place[p], count + 1));
            sum / f64::from(count.max(1))
        };
        let mut sorted: Vec<(f64, OpId)> = layer.iter().map(|op| (wanted(op), *op)).collect();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        let middle = (sorted.len() as f64 - 1.) / 2.;
        for (at, (slot, (_, op))) in layer.iter_mut().zip(sorted).enumerate() {
            *slot = op;
            place[op] = at as f64 - middle;
        }
    }
    layers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_stay_on_their_side() {
        let graph = OpGraph::from_predecessors(vec![vec![], vec![0], vec![0], vec![2], vec![1], vec![3, 4]]);
        assert_eq!(layers(&graph), [vec![0], vec![1, 2], vec![4, 3], vec![5]]);
        assert!(layers(&OpGraph::from_predecessors(vec![])).is_empty());
    }
}
