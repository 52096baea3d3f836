//! Images between zeros, means of planes, and products of images of one pixel.

use super::*;

fn names(graph: &mut Graph) -> Vec<&'static str> {
    apply(graph, &[]).into_iter().map(|(name, _)| name).collect()
}

/// The node of the first output.
fn last(graph: &Graph) -> &Node {
    let Value::Node(at) = graph.outputs[0].value else { panic!("the output is computed") };
    &graph.nodes[at]
}

fn dims(operand: &Operand) -> Vec<(u64, u64)> {
    operand.dims.iter().map(|dim| (dim.len, dim.stride)).collect()
}

/// Planes of `lines` runs of `width` elements between zeros, as candle copies them.
fn padded(maker: &mut Maker, x: BufferId, lines: u64, width: u64, [before, after]: [u64; 2]) -> BufferId {
    let row = before + width + after;
    let zeros = [before, after].map(|n| {
        if n == 0 {
            return x;
        }
        let zeros = maker.buffer(lines * n, Role::Intermediate);
        maker.op(Function::Zeros, vec![], View::contiguous(zeros, Element::Byte, 0, 2 * lines * n));
        zeros
    });
    let y = maker.buffer(lines * row, Role::Intermediate);
    for (from, first, width) in [(zeros[0], 0, before), (x, before, width), (zeros[1], before + width, after)] {
        if width > 0 {
            maker.op(
                Function::Copy,
                vec![view(from, 0, &[(lines, width), (width, 1)])],
                view(y, first, &[(lines, row), (width, 1)]),
            );
        }
    }
    y
}

/// A convolution of 4 channels of 5 x 6 with a row of zeros above and two below, and two columns of them to the left.
fn padded_convolution(padding: u64) -> Trace {
    let mut maker = Maker::default();
    let (x, weight) = (maker.buffer(120, Role::Input(0)), maker.weight(8 * 4 * 9));
    let tall = padded(&mut maker, x, 4, 30, [6, 12]);
    let wide = padded(&mut maker, tall, 4 * 8, 6, [2, 0]);
    let image = view(wide, 0, &[(1, 256), (4, 64), (8, 8), (8, 1)]);
    let len = 8 * (6 + 2 * padding) * (6 + 2 * padding);
    let y = maker.made(Function::Convolution(window(3, padding)), vec![image, all(weight, 288)], len);
    maker.output(y);
    maker.0
}

#[test]
fn zeros_around_an_image_become_padding() {
    for padding in [0, 1] {
        let mut graph = regions(&padded_convolution(padding))[0].graph.clone();
        let saved: Vec<_> = apply(&mut graph, &[]).iter().map(|(name, applied)| (*name, applied.saved)).collect();
        // Five copies of parts, and the zeros at three edges.
        assert_eq!(saved, [("convolution", 0), ("convolution-padding", 8)]);
        let Compute::FusedConvolution(of) = &last(&graph).compute else { panic!("{graph:?}") };
        let begin = [1 + padding, 2 + padding];
        assert_eq!((of.window.padding, of.end), (begin, [2 + padding, padding]));
        let x = &last(&graph).operands[0];
        assert_eq!((x.value, dims(x)), (Value::Input(0), vec![(1, 120), (4, 30), (6 - 1, 6), (6, 1)]));
        assert_eq!(graph.live().iter().filter(|live| **live).count(), 1);
    }
}

#[test]
fn what_is_around_an_image_and_not_zeros_stays() {
    let mut trace = padded_convolution(0);
    // The zeros are what a call gives.
    let at = trace.ops.iter().position(|op| op.meaning.as_ref().unwrap().function == Function::Zeros).unwrap();
    let zeros = trace.ops[at].meaning.as_ref().unwrap().writes.as_ref().unwrap().buffer;
    trace.buffers[zeros].role = Role::Input(1);
    trace.ops.remove(at);
    let mut graph = regions(&trace)[0].graph.clone();
    let saved: Vec<_> = apply(&mut graph, &[]).iter().map(|(name, applied)| (*name, applied.saved)).collect();
    // Only the columns: two copies, and the zeros.
    assert_eq!(saved, [("convolution", 0), ("convolution-padding", 3)]);
}

/// The mean of 2 x 3 planes of 4 x 5, whose columns or rows are summed first.
fn mean(is_of_columns_first: bool) -> Trace {
    let mut maker = Maker::default();
    let x = maker.buffer(120, Role::Input(0));
    let (first, inner, outer) = match is_of_columns_first {
        true => (view(x, 0, &[(6, 20), (5, 1), (4, 5)]), 4, 5),
        false => (all(x, 120), 5, 4),
    };
    let y = maker.made(Function::RowSum(inner), vec![first], 6 * outer);
    let y = maker.made(Function::Affine(1. / inner as f32, 0.), vec![all(y, 6 * outer)], 6 * outer);
    let y = maker.made(Function::RowSum(outer), vec![all(y, 6 * outer)], 6);
    let y = maker.made(Function::Affine(1. / outer as f32, 0.), vec![all(y, 6)], 6);
    maker.output(y);
    maker.0
}

#[test]
fn a_mean_of_rows_and_columns_is_one_of_planes() {
    for is_of_columns_first in [true, false] {
        let mut graph = regions(&mean(is_of_columns_first))[0].graph.clone();
        assert_eq!(names(&mut graph), ["row-mean"]);
        let Compute::RowMean { columns: 20, factor } = last(&graph).compute else { panic!("{graph:?}") };
        assert!((factor * 20. - 1.).abs() < 1e-6);
        assert_eq!(dims(&last(&graph).operands[0]), [(120, 1)]);
        assert_eq!(graph.live().iter().filter(|live| **live).count(), 1);
    }
}

#[test]
fn a_mean_across_rows_stays() {
    let mut trace = mean(true);
    // Of the whole planes, and not of their columns.
    let mut graph = regions(&trace)[0].graph.clone();
    graph.nodes[0].operands[0].dims = [(2, 60), (20, 1), (3, 20)].map(|(len, stride)| Dim { len, stride }).into();
    graph.nodes[0].compute = Compute::Recorded(Function::RowSum(3));
    graph.nodes[0].len = 40;
    trace.ops.clear();
    assert!(!names(&mut graph).is_empty());
    assert!(matches!(graph.nodes[1].compute, Compute::Recorded(_)), "{graph:?}");
}

/// Two convolutions of images of one pixel, from 6 channels to 4 and back, with a bias, and `x * sigmoid(x)` behind the first.
fn squeeze(images: u64) -> Trace {
    let mut maker = Maker::default();
    let x = maker.buffer(6 * images, Role::Input(0));
    let convolution = |maker: &mut Maker, x: BufferId, inner: u64, out: u64| {
        let (weight, bias) = (maker.weight(inner * out), maker.weight(out));
        let image = view(x, 0, &[(images, inner), (inner, 1), (1, 1), (1, 1)]);
        let len = images * out;
        let y = maker.made(Function::Convolution(window(1, 0)), vec![image, all(weight, inner * out)], len);
        maker.made(binary("add"), vec![all(y, len), view(bias, 0, &[(images, 0), (out, 1)])], len)
    };
    let y = convolution(&mut maker, x, 6, 4);
    let gate = maker.made(Function::Unary("sigmoid".into()), vec![all(y, 4 * images)], 4 * images);
    let y = maker.made(binary("mul"), vec![all(y, 4 * images), all(gate, 4 * images)], 4 * images);
    let y = convolution(&mut maker, y, 4, 6);
    maker.output(y);
    maker.0
}

#[test]
fn convolutions_of_one_pixel_are_products_with_an_activation() {
    for images in [1, 3] {
        let mut graph = regions(&squeeze(images))[0].graph.clone();
        let expected = ["convolution", "convolution-bias", "pixel-product", "product-activation"];
        assert_eq!(names(&mut graph), expected);
        let live: Vec<usize> = (0..graph.nodes.len()).filter(|&at| graph.live()[at]).collect();
        let [first, second] = live[..] else { panic!("{graph:?}") };
        assert_eq!(graph.nodes[first].compute, Compute::Linear { activation: Some("silu".into()) });
        assert_eq!(graph.nodes[second].compute, Compute::Linear { activation: None });
        let [x, weight, bias] = &graph.nodes[first].operands[..] else { panic!("{graph:?}") };
        let lens = (dims(x), dims(weight), dims(bias));
        assert_eq!(lens, (vec![(images, 6), (6, 1)], vec![(4, 6), (6, 1)], vec![(4, 1)]));
    }
}

/// `x * sigmoid(x)` behind a convolution of each of six channels by itself, or of all together.
fn swish(is_depthwise: bool) -> Trace {
    let mut trace = if is_depthwise { depthwise(6, 80) } else { convolution_and_norm() };
    let mut maker = Maker(std::mem::take(&mut trace));
    if !is_depthwise {
        maker.0.ops.pop();
    }
    let y = maker.0.ops.last().unwrap().meaning.as_ref().unwrap().writes.as_ref().unwrap().buffer;
    let len = maker.0.buffers[y].bytes / 2;
    maker.0.buffers[y].role = Role::Intermediate;
    let gate = maker.made(Function::Unary("sigmoid".into()), vec![all(y, len)], len);
    let y = maker.made(binary("mul"), vec![all(gate, len), all(y, len)], len);
    maker.output(y);
    maker.0
}

#[test]
fn silu_becomes_part_of_a_convolution_of_each_channel_by_itself() {
    let mut graph = regions(&swish(true))[0].graph.clone();
    assert_eq!(names(&mut graph), ["grouped-convolution", "convolution-activation"]);
    let Compute::FusedConvolution(of) = &last(&graph).compute else { panic!("{graph:?}") };
    assert_eq!(of.activation.as_deref(), Some("silu"));
    assert_eq!(graph.live().iter().filter(|live| **live).count(), 1);
    let mut graph = regions(&swish(false))[0].graph.clone();
    assert_eq!(names(&mut graph), ["convolution", "convolution-norm"]);
}

/// Convolutions of each of six channels by itself, of `max(x, 0)`, their sum with x, and `max(x, 0)` of that beside x.
fn cell() -> Trace {
    let mut maker = Maker(depthwise(6, 80));
    let x = maker.0.ops[0].meaning.as_ref().unwrap().reads[0].buffer;
    let relu = maker.buffer(96, Role::Intermediate);
    let ops = std::mem::take(&mut maker.0.ops);
    maker.op(Function::Unary("relu".into()), vec![all(x, 96)], all(relu, 96));
    for op in ops {
        let Meaning { function, mut reads, writes } = *op.meaning.unwrap();
        reads.iter_mut().filter(|read| read.buffer == x).for_each(|read| read.buffer = relu);
        maker.op(function, reads, writes.unwrap());
    }
    let y = maker.0.ops.last().unwrap().meaning.as_ref().unwrap().writes.as_ref().unwrap().buffer;
    maker.0.buffers[y].role = Role::Intermediate;
    let both = maker.buffer(192, Role::Intermediate);
    let y = maker.made(binary("add"), vec![all(y, 96), all(x, 96)], 96);
    for (at, part) in [x, y].into_iter().enumerate() {
        maker.op(
            Function::Copy,
            vec![view(part, 0, &[(1, 96), (96, 1)])],
            view(both, at as u64 * 96, &[(1, 192), (96, 1)]),
        );
    }
    let y = maker.made(Function::Unary("relu".into()), vec![all(both, 192)], 192);
    maker.output(y);
    maker.0
}

#[test]
fn sums_and_relu_become_part_of_a_concatenation_and_of_what_reads() {
    let mut graph = regions(&cell())[0].graph.clone();
    assert_eq!(names(&mut graph), ["grouped-convolution", "convolution-of-relu", "concat-relu", "concat-sums"]);
    let compute = Compute::ConcatRelu { rows: 1, widths: vec![96; 2], are_sums: vec![false, true] };
    assert_eq!((last(&graph).compute.clone(), last(&graph).operands.len()), (compute, 3));
    let live: Vec<usize> = (0..graph.nodes.len()).filter(|&at| graph.live()[at]).collect();
    let [convolution, _] = live[..] else { panic!("{graph:?}") };
    let Compute::FusedConvolution(of) = &graph.nodes[convolution].compute else { panic!("{graph:?}") };
    assert!(of.of_relu);
    let x = &graph.nodes[convolution].operands[0];
    assert_eq!((x.value, dims(x)), (Value::Input(0), vec![(1, 96), (6, 16), (4, 4), (4, 1)]));
}

#[test]
fn relu_that_is_read_elsewhere_stays() {
    let mut trace = cell();
    let relu = trace.ops[0].meaning.as_ref().unwrap().writes.as_ref().unwrap().buffer;
    trace.buffers[relu].role = Role::Output(1);
    assert_eq!(names(&mut regions(&trace)[0].graph.clone()), ["grouped-convolution", "concat-relu", "concat-sums"]);
}

#[test]
fn a_sum_that_is_read_elsewhere_stays() {
    let mut trace = cell();
    let is_sum = |op: &&Op| op.meaning.as_ref().is_some_and(|meaning| meaning.function == binary("add"));
    let sum = trace.ops.iter().find(is_sum).unwrap().meaning.as_ref().unwrap().writes.as_ref().unwrap().buffer;
    trace.buffers[sum].role = Role::Output(1);
    let mut graph = regions(&trace)[0].graph.clone();
    assert_eq!(names(&mut graph), ["grouped-convolution", "convolution-of-relu", "concat-relu"]);
}

/// `max(x, 0)` of two convolutions beside each other, one of them added to an input.
#[test]
fn a_sum_that_a_concatenation_takes_is_no_residual() {
    let mut maker = Maker::default();
    let (x, weight) = (maker.buffer(64, Role::Input(0)), maker.weight(4 * 4 * 9));
    let image = view(x, 0, &[(1, 64), (4, 16), (4, 4), (4, 1)]);
    let parts = [0, 1].map(|_| {
        let reads = vec![image.clone(), all(weight, 144)];
        maker.made(Function::Convolution(window(3, 1)), reads, 64)
    });
    let sum = maker.made(binary("add"), vec![all(parts[0], 64), all(x, 64)], 64);
    let both = maker.buffer(128, Role::Intermediate);
    for (at, part) in [sum, parts[1]].into_iter().enumerate() {
        let to = view(both, at as u64 * 64, &[(1, 128), (64, 1)]);
        maker.op(Function::Copy, vec![view(part, 0, &[(1, 64), (64, 1)])], to);
    }
    let y = maker.made(Function::Unary("relu".into()), vec![all(both, 128)], 128);
    maker.output(y);
    let mut graph = regions(&maker.0)[0].graph.clone();
    assert_eq!(names(&mut graph), ["convolution", "concat-relu", "concat-sums"]);
    assert_eq!(last(&graph).operands.len(), 3);
}
