//! Nearest upsampling keeps the layout of images.

use super::*;

/// A part of 2 images of 4 channels of 5 x 3, upsampled, and `max(x, 0)` of it.
fn upsampled(size: [u64; 2], len: u64) -> Trace {
    let mut maker = Maker::default();
    let x = maker.buffer(120, Role::Input(0));
    let part = view(x, 15, &[(2, 60), (3, 15), (5, 3), (3, 1)]);
    let y = maker.made(Function::UpsampleNearest(size), vec![part], len);
    let y = maker.made(Function::Unary("relu".into()), vec![all(y, len)], len);
    maker.output(y);
    maker.0
}

#[test]
fn upsampling_becomes_an_operator_of_any_layout() {
    for size in [[10, 6], [10, 3], [7, 8], [2, 1]] {
        let mut graph = regions(&upsampled(size, 6 * size[0] * size[1]))[0].graph.clone();
        let before = graph.nodes[0].clone();
        assert_eq!(apply(&mut graph, &["upsampling"]), []);
        assert_eq!(apply(&mut graph, &[]), [("upsampling", Applied { times: 1, saved: 0 })]);
        assert_eq!(graph.nodes[0], Node { compute: Compute::UpsampleNearest(size), ..before });
        assert_eq!(graph.live(), [true; 2]);
    }
}

#[test]
fn upsampling_of_other_sizes_stays() {
    assert!(apply(&mut regions(&upsampled([10, 6], 6 * 61))[0].graph.clone(), &[]).is_empty());
    let mut trace = upsampled([10, 6], 6 * 60);
    let meaning = trace.ops[0].meaning.as_mut().unwrap();
    meaning.reads[0].dims = vec![Dim { len: 90, stride: 1 }];
    assert!(apply(&mut regions(&trace)[0].graph.clone(), &[]).is_empty(), "no image");
}
