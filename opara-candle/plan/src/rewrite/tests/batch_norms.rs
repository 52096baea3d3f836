//! Norms of images by the moments of the batch.

use super::*;

/// A batch norm in training mode of 2 images of 3 channels of 4 pixels as candle runs it, with statistics that are written, and `max(x, 0)`.
fn batch_norm(is_scaled: bool, is_read: bool) -> Graph {
    let mut maker = Maker::default();
    let (x, weight, bias) = (maker.buffer(24, Role::Input(0)), maker.weight(3), maker.weight(3));
    let by_row = |buffer| view(buffer, 0, &[(3, 1), (8, 0)]);
    let rows = maker.made(Function::Copy, vec![view(x, 0, &[(3, 4), (2, 12), (4, 1)])], 24);
    let mean = |maker: &mut Maker, rows| {
        let sum = maker.made(Function::RowSum(8), vec![all(rows, 24)], 3);
        let mean = maker.made(Function::Affine(0.125, 0.), vec![all(sum, 3)], 3);
        let running = maker.made(Function::Affine(0.1, 0.), vec![all(mean, 3)], 3);
        maker.0.buffers[running].role = Role::Output(running as _);
        mean
    };
    let of_rows = mean(&mut maker, rows);
    let centred = maker.made(binary("sub"), vec![all(rows, 24), by_row(of_rows)], 24);
    let squares = maker.made(Function::Unary("sqr".into()), vec![all(centred, 24)], 24);
    let variance = mean(&mut maker, squares);
    let safe = maker.made(Function::Affine(1., 1e-3), vec![all(variance, 3)], 3);
    let deviation = maker.made(Function::Unary("sqrt".into()), vec![all(safe, 3)], 3);
    let mut y = maker.made(binary("div"), vec![all(centred, 24), by_row(deviation)], 24);
    if is_read {
        maker.0.buffers[y].role = Role::Output(y as _);
    }
    if is_scaled {
        y = maker.made(binary("mul"), vec![all(y, 24), by_row(weight)], 24);
        y = maker.made(binary("add"), vec![all(y, 24), by_row(bias)], 24);
    }
    let y = maker.made(Function::Unary("relu".into()), vec![view(y, 0, &[(2, 4), (3, 8), (4, 1)])], 24);
    maker.output(y);
    regions(&maker.0)[0].graph.clone()
}

#[test]
fn a_norm_by_moments_is_one_node_and_both_moments_another() {
    for is_scaled in [false, true] {
        let mut graph = batch_norm(is_scaled, false);
        let applied: Vec<_> = apply(&mut graph, &[]).iter().map(|(name, applied)| (*name, applied.times)).collect();
        assert_eq!(applied, [("batch-norm", 1), ("batch-moments", 2)]);
        let live = graph.live();
        let nodes: Vec<_> = graph.nodes.iter().enumerate().filter(|(at, _)| live[*at]).collect();
        // Mean, variance, both running ones, the norm, and what reads it.
        assert_eq!(nodes.len(), 6);
        let (_, norm) = nodes.iter().find(|(_, node)| matches!(node.compute, Compute::BatchNorm { .. })).unwrap();
        assert_eq!(norm.compute, Compute::BatchNorm { epsilon: 1e-3 });
        assert_eq!(norm.operands.len(), if is_scaled { 5 } else { 3 });
        let images = [(2, 12), (3, 4), (4, 1)].map(|(len, stride)| Dim { len, stride });
        let [mean, variance] = [1, 2].map(|at| match norm.operands[at].value {
            Value::Node(of) => of,
            Value::Input(_) => panic!("a moment is computed"),
        });
        assert_eq!(graph.nodes[mean].compute, Compute::BatchMoments { variance: Some(variance) });
        assert_eq!(graph.nodes[variance].compute, Compute::BatchMoments { variance: None });
        for of in [&norm.operands[0], &graph.nodes[mean].operands[0], &graph.nodes[variance].operands[0]] {
            assert_eq!((of.value, &of.dims[..]), (Value::Input(0), &images[..]));
        }
    }
}

#[test]
fn a_norm_that_others_read_before_its_weight_is_one_by_itself() {
    let mut graph = batch_norm(true, true);
    let applied: Vec<_> = apply(&mut graph, &[]).iter().map(|(name, applied)| (*name, applied.times)).collect();
    assert_eq!(applied, [("batch-norm", 1), ("batch-moments", 2)]);
    let norm = graph.nodes.iter().find(|node| matches!(node.compute, Compute::BatchNorm { .. })).unwrap();
    assert_eq!(norm.operands.len(), 3);
}
