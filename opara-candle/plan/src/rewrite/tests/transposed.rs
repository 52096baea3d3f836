//! Transposed convolutions become ordinary ones.

use super::*;

/// A transposed convolution of 2 images of 4 channels of 5 x 5 to 3 channels, its bias, and `max(x, 0)`.
fn upsampling(window: Window, output_padding: [u64; 2], weight_role: Role) -> Trace {
    let mut maker = Maker::default();
    let x = maker.buffer(200, Role::Input(0));
    let [rows, columns] = window.kernel;
    let weight = maker.buffer(12 * rows * columns, weight_role);
    let [h, w] = window.transposed([5, 5], output_padding).unwrap();
    let image = view(x, 0, &[(2, 100), (4, 25), (5, 5), (5, 1)]);
    let of = view(weight, 0, &[(4, 3 * rows * columns), (3, rows * columns), (rows, columns), (columns, 1)]);
    let function = Function::TransposedConvolution { window, output_padding };
    let (bias, len) = (maker.weight(3), 6 * h * w);
    let y = maker.made(function, vec![image, of], len);
    let y = maker.made(binary("add"), vec![all(y, len), view(bias, 0, &[(2, 0), (3, 1), (h * w, 0)])], len);
    let y = maker.made(Function::Unary("relu".into()), vec![all(y, len)], len);
    maker.output(y);
    maker.0
}

fn times_two(kernel: u64, padding: u64) -> Window {
    Window { stride: [2; 2], ..window(kernel, padding) }
}

#[test]
fn a_bias_becomes_part_of_the_ordinary_convolution() {
    for (window, output_padding) in [(times_two(4, 1), [0; 2]), (times_two(3, 1), [1; 2]), (times_two(1, 0), [0; 2])] {
        let mut graph = regions(&upsampling(window, output_padding, Role::External))[0].graph.clone();
        let applied = apply(&mut graph, &[]);
        assert_eq!(applied, [("transposed-convolution", Applied { times: 2, saved: 1 })]);
        let node = &graph.nodes[1];
        assert_eq!(node.compute, Compute::TransposedConvolution { window, output_padding });
        assert_eq!(node.operands.len(), 3);
        assert_eq!(node.operands[2].dims, [Dim { len: 3, stride: 1 }]);
        assert_eq!(graph.live(), [false, true, true]);
    }
}

#[test]
fn other_transposed_convolutions_stay() {
    let window = times_two(4, 1);
    let stays = |trace: &Trace| assert!(apply(&mut regions(trace)[0].graph.clone(), &[]).is_empty());
    stays(&upsampling(Window { dilation: [2; 2], ..window }, [0; 2], Role::External));
    stays(&upsampling(Window { padding: [4; 2], ..window }, [0; 2], Role::External));
    // The weight is another one in every call.
    stays(&upsampling(window, [0; 2], Role::Input(1)));
    let mut grouped = upsampling(window, [0; 2], Role::External);
    let meaning = grouped.ops[0].meaning.as_mut().unwrap();
    meaning.function =
        Function::TransposedConvolution { window: Window { groups: 2, ..window }, output_padding: [0; 2] };
    stays(&grouped);
}

#[test]
fn a_sum_that_is_no_bias_stays() {
    let mut trace = upsampling(times_two(4, 1), [0; 2], Role::External);
    // One number a column.
    trace.ops[1].meaning.as_mut().unwrap().reads[1].dims = vec![Dim { len: 60, stride: 0 }, Dim { len: 10, stride: 1 }];
    let mut graph = regions(&trace)[0].graph.clone();
    assert_eq!(apply(&mut graph, &[]), [("transposed-convolution", Applied { times: 1, saved: 0 })]);
    assert_eq!(graph.live(), [true; 3]);
}

/// Two transposed convolutions of 3 channels of 5 that lie beside each other: of two halves of a tensor, or one beside that tensor.
fn beside(are_groups: bool) -> Trace {
    let mut maker = Maker::default();
    let x = maker.buffer(30, Role::Input(0));
    let window = Window { kernel: [2, 1], stride: [2, 1], ..window(1, 0) };
    let y = maker.buffer(60, Role::Output(0));
    for group in 0..2 {
        let part = view(x, group * 15, &[(1, 30), (3, 5), (5, 1), (1, 1)]);
        let made = if group == 0 || are_groups {
            let weight = maker.weight(18);
            let of = view(weight, 0, &[(3, 6), (3, 2), (2, 1), (1, 1)]);
            maker.made(Function::TransposedConvolution { window, output_padding: [0; 2] }, vec![part, of], 30)
        } else {
            maker.made(Function::Unary("relu".into()), vec![all(x, 30)], 30)
        };
        maker.op(Function::Copy, vec![all(made, 30)], View::contiguous(y, F16, group * 30, 30));
    }
    maker.0
}

#[test]
fn one_transposed_convolution_a_group_stays() {
    assert!(apply(&mut regions(&beside(true))[0].graph.clone(), &[]).is_empty());
    let applied = apply(&mut regions(&beside(false))[0].graph.clone(), &[]);
    assert_eq!(applied, [("transposed-convolution", Applied { times: 1, saved: 0 })]);
}
