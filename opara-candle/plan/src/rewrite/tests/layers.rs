//! Rules for the parts of a layer: gated units, norms of sums, residuals of convolutions.

use super::*;

/// The names of the rules that fit.
fn names(graph: &mut Graph) -> Vec<&'static str> {
    apply(graph, &[]).into_iter().map(|(name, _)| name).collect()
}

/// The node whose value the first output is.
fn last(graph: &Graph) -> &Node {
    let Value::Node(at) = graph.outputs[0].value else { panic!("the output is computed") };
    &graph.nodes[at]
}

/// A gated unit of x, (5, 8), with two weights of 4 columns, whose biases come before; and the buffer of the activation's result.
fn gated_unit(has_bias: [bool; 2]) -> (Trace, BufferId) {
    let mut maker = Maker::default();
    let x = maker.buffer(40, Role::Input(0));
    let product = |maker: &mut Maker, has_bias: bool| {
        let weight = maker.weight(32);
        let operands = vec![view(x, 0, &[(1, 0), (5, 8), (8, 1)]), view(weight, 0, &[(1, 0), (8, 1), (4, 8)])];
        let y = maker.made(Function::Matmul, operands, 20);
        if !has_bias {
            return y;
        }
        let bias = maker.weight(4);
        maker.made(binary("add"), vec![all(y, 20), view(bias, 0, &[(5, 0), (4, 1)])], 20)
    };
    let gate = product(&mut maker, has_bias[0]);
    let gate = maker.made(Function::Unary("silu".into()), vec![all(gate, 20)], 20);
    let up = product(&mut maker, has_bias[1]);
    let y = maker.made(binary("mul"), vec![all(gate, 20), all(up, 20)], 20);
    maker.output(y);
    (maker.0, gate)
}

#[test]
fn the_products_of_a_gated_unit_become_one() {
    for has_bias in [false, true] {
        let mut graph = regions(&gated_unit([has_bias; 2]).0)[0].graph.clone();
        let biases: &[&str] = if has_bias { &["product-bias"] } else { &[] };
        assert_eq!(names(&mut graph), [biases, &["gated-unit"]].concat());
        let node = last(&graph);
        assert_eq!(node.compute, Compute::Gated { activation: "silu".into(), has_bias });
        let dims = |operand: &Operand| operand.dims.iter().map(|dim| dim.len).collect::<Vec<_>>();
        let lens: Vec<_> = node.operands.iter().map(dims).collect();
        let weights = if has_bias { vec![vec![4, 8], vec![4]] } else { vec![vec![4, 8]] };
        assert_eq!(lens, [vec![vec![5, 8]], weights.clone(), weights].concat());
        assert_eq!(graph.live().iter().filter(|live| **live).count(), 1);
    }
}

#[test]
fn what_is_no_gated_unit_keeps_its_products() {
    let one_bias = gated_unit([true, false]).0;
    assert_eq!(names(&mut regions(&one_bias)[0].graph.clone()), ["product-bias", "product-activation"]);
    let (mut read_elsewhere, gate) = gated_unit([false; 2]);
    read_elsewhere.buffers[gate].role = Role::Output(1);
    assert_eq!(names(&mut regions(&read_elsewhere)[0].graph.clone()), ["product-activation"]);
    let (mut of_another_operand, _) = gated_unit([false; 2]);
    of_another_operand.ops[2].meaning.as_mut().unwrap().reads[0].first = 1;
    assert_eq!(names(&mut regions(&of_another_operand)[0].graph.clone()), ["product-activation"]);
}

/// A sum of two inputs of 3 rows of 8, or of the first and a vector, and its norm; the sum is read elsewhere, too, if asked.
fn norm_of_sum(is_rms: bool, is_vector: bool, is_read_elsewhere: bool) -> Trace {
    let mut maker = Maker::default();
    let (x, residual) = (maker.buffer(24, Role::Input(0)), maker.buffer(24, Role::Input(1)));
    let other = if is_vector { view(residual, 0, &[(3, 0), (8, 1)]) } else { all(residual, 24) };
    let sum = maker.made(binary("add"), vec![all(x, 24), other], 24);
    let (weight, bias) = (maker.weight(8), maker.weight(8));
    let rows = |vector| view(vector, 0, &[(3, 0), (8, 1)]);
    let y = match is_rms {
        true => maker.made(Function::RmsNorm(8, 1e-6), vec![all(sum, 24), rows(weight)], 24),
        false => maker.made(Function::LayerNorm(8, 1e-5), vec![all(sum, 24), rows(weight), rows(bias)], 24),
    };
    let y = match is_read_elsewhere {
        true => maker.made(binary("add"), vec![all(y, 24), all(sum, 24)], 24),
        false => y,
    };
    maker.output(y);
    maker.0
}

#[test]
fn a_norm_of_a_sum_becomes_one_launch() {
    for is_rms in [false, true] {
        let mut graph = regions(&norm_of_sum(is_rms, false, false))[0].graph.clone();
        assert_eq!(names(&mut graph), ["residual-norm"]);
        let (columns, epsilon) = (8, if is_rms { 1e-6 } else { 1e-5 });
        assert_eq!(last(&graph).compute, Compute::NormOfSum { columns, epsilon, is_rms });
        assert_eq!(last(&graph).operands.len(), if is_rms { 3 } else { 4 });
        assert_eq!(graph.live(), [false, true]);
    }
}

#[test]
fn a_sum_that_is_read_elsewhere_comes_beside_its_norm() {
    let mut graph = regions(&norm_of_sum(true, false, true))[0].graph.clone();
    assert_eq!(names(&mut graph), ["residual-norm"]);
    assert_eq!(graph.nodes[0].compute, Compute::SumBesideNorm { norm: 1, columns: 8, epsilon: 1e-6 });
    assert_eq!(graph.nodes[1].compute, Compute::Recorded(Function::RmsNorm(8, 1e-6)));
    assert_eq!((graph.nodes[0].operands.len(), graph.live()), (3, vec![true; 3]));
}

#[test]
fn the_weight_of_a_norm_beside_its_sum_may_be_made_of_another() {
    let mut maker = Maker::default();
    let (x, residual, weight) = (maker.buffer(24, Role::Input(0)), maker.buffer(24, Role::Input(1)), maker.weight(8));
    let sum = maker.made(binary("add"), vec![all(x, 24), all(residual, 24)], 24);
    // Gemma adds one to it, behind the sum.
    let more = maker.made(Function::Affine(1., 1.), vec![all(weight, 8)], 8);
    let norm = maker.made(Function::RmsNorm(8, 1e-6), vec![all(sum, 24), view(more, 0, &[(3, 0), (8, 1)])], 24);
    let y = maker.made(binary("add"), vec![all(norm, 24), all(sum, 24)], 24);
    maker.output(y);
    let mut graph = regions(&maker.0)[0].graph.clone();
    assert_eq!(names(&mut graph), ["residual-norm"]);
    assert_eq!(graph.nodes[1].compute, Compute::SumBesideNorm { norm: 2, columns: 8, epsilon: 1e-6 });
}

#[test]
fn norms_of_other_sums_stay() {
    // No kernel writes a layer norm and the sum; and a vector is a bias.
    for trace in [norm_of_sum(false, false, true), norm_of_sum(false, true, false), norm_of_sum(true, true, true)] {
        assert!(names(&mut regions(&trace)[0].graph.clone()).is_empty());
    }
}

/// A residual block: two convolutions, of which one is beside the other, their sum and `max(x, 0)`; and the buffers of both results.
fn residual_block() -> (Trace, [BufferId; 2]) {
    let mut maker = Maker::default();
    let x = maker.buffer(100, Role::Input(0));
    let convolution = |maker: &mut Maker, kernel: u64| {
        let weight = maker.weight(4 * 4 * kernel * kernel);
        let image = view(x, 0, &[(1, 100), (4, 25), (5, 5), (5, 1)]);
        let function = Function::Convolution(window(kernel, kernel / 2));
        maker.made(function, vec![image, all(weight, 16 * kernel * kernel)], 100)
    };
    let branches = [convolution(&mut maker, 3), convolution(&mut maker, 1)];
    let sum = maker.made(binary("add"), vec![all(branches[0], 100), all(branches[1], 100)], 100);
    let y = maker.made(Function::Unary("relu".into()), vec![all(sum, 100)], 100);
    maker.output(y);
    (maker.0, branches)
}

#[test]
fn a_residual_becomes_part_of_a_convolution() {
    let (trace, [first, second]) = residual_block();
    let rules = ["convolution", "convolution-residual", "convolution-activation"];
    // The second branch takes the first one in where the first one's result is read elsewhere.
    for (read_elsewhere, size) in [(None, 3), (Some(second), 3), (Some(first), 1)] {
        let mut trace = trace.clone();
        read_elsewhere.into_iter().for_each(|buffer| trace.buffers[buffer].role = Role::Output(1));
        let mut graph = regions(&trace)[0].graph.clone();
        graph.outputs.sort_by_key(|output| std::cmp::Reverse(output.buffer));
        assert_eq!(names(&mut graph), rules);
        let expected = window(size, size / 2);
        let of = Convolution { residual: true, activation: Some("relu".into()), ..Convolution::new(expected) };
        let compute = Compute::FusedConvolution(of);
        assert_eq!((last(&graph).compute.clone(), last(&graph).operands.len()), (compute, 3));
        assert_eq!(graph.live().iter().filter(|live| **live).count(), 2);
    }
}

#[test]
fn a_residual_of_two_convolutions_that_are_read_elsewhere_stays() {
    let (mut trace, branches) = residual_block();
    for (at, buffer) in branches.into_iter().enumerate() {
        trace.buffers[buffer].role = Role::Output(1 + at);
    }
    assert_eq!(names(&mut regions(&trace)[0].graph.clone()), ["convolution"]);
}

/// A product of x, (5, 8), with a weight of 4 columns, in one type.
fn product_in(element: Element) -> Graph {
    let mut maker = Maker::default();
    let (x, weight) = (maker.buffer(40, Role::Input(0)), maker.weight(32));
    let operands = vec![view(x, 0, &[(1, 0), (5, 8), (8, 1)]), view(weight, 0, &[(1, 0), (8, 1), (4, 8)])];
    let y = maker.made(Function::Matmul, operands, 20);
    maker.output(y);
    let mut graph = regions(&maker.0)[0].graph.clone();
    graph.nodes.iter_mut().for_each(|node| node.element = element);
    graph.inputs.iter_mut().for_each(|input| input.element = element);
    graph
}

#[test]
fn a_product_alone_is_rewritten_in_f32() {
    let mut graph = product_in(Element::F32);
    assert_eq!(names(&mut graph), ["product-in-f32"]);
    assert_eq!(last(&graph).compute, Compute::Linear { activation: None });
    assert_eq!(last(&graph).operands.len(), 2, "there is no bias");
    assert!(names(&mut product_in(Element::F16)).is_empty(), "candle's is on tensor cores");
}

#[test]
fn products_of_f32_become_more_precise_step_by_step() {
    use ProductPrecision::{Fastest, High, Highest};
    let steps = |mut node: Node| {
        let mut steps = Vec::new();
        while let Some(precision) = node.more_precise() {
            steps.push(precision);
            node.precision = precision;
        }
        steps
    };
    let mut graph = product_in(Element::F32);
    assert!(steps(last(&graph).clone()).is_empty(), "candle's own");
    apply(&mut graph, &[]);
    assert_eq!(last(&graph).precision, Fastest);
    assert_eq!(steps(last(&graph).clone()), [Highest], "the fastest is High");
    let of_groups = |groups| {
        let window = Window { kernel: [1; 2], padding: [0; 2], stride: [1; 2], dilation: [1; 2], groups };
        let compute = Compute::FusedConvolution(Convolution::new(window));
        let dims = [1, 8, 2, 2].map(|len| Dim { len, stride: 1 }).into();
        let operands = vec![Operand { value: Value::Input(0), first: 0, dims }];
        Node::new(compute, operands, Element::F32, 32)
    };
    assert_eq!([1, 2, 8].map(|groups| steps(of_groups(groups))), [vec![High, Highest], vec![High, Highest], vec![]]);
    assert!(steps(Node { element: Element::F16, ..of_groups(1) }).is_empty());
}
