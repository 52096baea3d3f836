//! Graphs and rules on traces made by hand.

mod batch_norms;
mod heads;
mod images;
mod laws;
mod layers;
mod norms;
mod outcome;
mod overwritten;
mod pools;
mod quantized;
mod scores;
mod shares;
mod trained;
mod transposed;
mod upsampling;

use super::rules::{self, Applied};
use super::*;
use crate::trace::{
    Access, AccessMode, Buffer, BufferId, Dim, Element, Function, Meaning, Op, Region as Bytes, Role, Trace, View,
    Window, Work,
};

const F16: Element = Element::F16;

/// Applies the rules that are not `without`, and counts where they fitted. What holds for every rule holds for the graph.
fn apply(graph: &mut Graph, without: &[&str]) -> Vec<(&'static str, Applied)> {
    laws::check(graph, <[usize]>::to_vec);
    rules::counted(&rules::apply(graph, without, &Default::default()))
}

/// A trace as it is made.
#[derive(Default)]
struct Maker(Trace);

impl Maker {
    fn buffer(&mut self, elements: u64, role: Role) -> BufferId {
        self.0.buffers.push(Buffer { bytes: 2 * elements, role });
        self.0.buffers.len() - 1
    }

    fn weight(&mut self, elements: u64) -> BufferId {
        self.buffer(elements, Role::External)
    }

    fn op(&mut self, function: Function, reads: Vec<View>, writes: View) {
        let access = |view: &View, mode| Access { buffer: view.buffer, region: Bytes::contiguous(0, 2), mode };
        let accesses = reads.iter().map(|view| access(view, AccessMode::Read));
        let accesses = accesses.chain([access(&writes, AccessMode::Write)]).collect();
        let meaning = Some(Box::new(Meaning { function, reads, writes: Some(writes) }));
        self.0.ops.push(Op {
            name: "op".into(),
            label: String::new(),
            work: Work::Memset(0),
            accesses,
            nanos: None,
            meaning,
        });
    }

    /// An op of a result that fills a buffer of its own.
    fn made(&mut self, function: Function, reads: Vec<View>, elements: u64) -> BufferId {
        let buffer = self.buffer(elements, Role::Intermediate);
        self.op(function, reads, all(buffer, elements));
        buffer
    }

    /// An op of which nothing is known.
    fn unknown(&mut self, reads: BufferId) {
        let access = Access { buffer: reads, region: Bytes::contiguous(0, 2), mode: AccessMode::Read };
        let name = "unknown".into();
        let (label, work, accesses) = (String::new(), Work::Memset(0), vec![access]);
        self.0.ops.push(Op { name, label, work, accesses, nanos: None, meaning: None });
    }

    fn output(&mut self, buffer: BufferId) {
        self.0.buffers[buffer].role = Role::Output(0);
    }
}

fn all(buffer: BufferId, elements: u64) -> View {
    View::contiguous(buffer, F16, 0, elements)
}

fn view(buffer: BufferId, first: u64, dims: &[(u64, u64)]) -> View {
    View { buffer, element: F16, first, dims: dims.iter().map(|&(len, stride)| Dim { len, stride }).collect() }
}

fn binary(name: &str) -> Function {
    Function::Binary(name.into())
}

fn window(kernel: u64, padding: u64) -> Window {
    Window { kernel: [kernel; 2], padding: [padding; 2], stride: [1; 2], dilation: [1; 2], groups: 1 }
}

/// A convolution of 4 channels of 5 x 5 to 8, batch norm and `max(x, 0)` as candle runs them.
fn convolution_and_norm() -> Trace {
    let mut maker = Maker::default();
    let x = maker.buffer(100, Role::Input(0));
    let weight = maker.weight(8 * 4 * 9);
    let vectors: Vec<BufferId> = (0..4).map(|_| maker.weight(8)).collect();
    let image = view(x, 0, &[(1, 100), (4, 25), (5, 5), (5, 1)]);
    let mut y = maker.made(Function::Convolution(window(3, 1)), vec![image, all(weight, 288)], 200);
    for (name, vector) in ["sub", "div", "mul", "add"].into_iter().zip(vectors) {
        y = maker.made(binary(name), vec![all(y, 200), view(vector, 0, &[(8, 1), (25, 0)])], 200);
    }
    let y = maker.made(Function::Unary("relu".into()), vec![all(y, 200)], 200);
    maker.output(y);
    maker.0
}

#[test]
fn a_norm_and_an_activation_become_part_of_the_convolution() {
    let regions = regions(&convolution_and_norm());
    assert_eq!((regions.len(), regions[0].ops.clone()), (1, 0..6));
    let mut graph = regions[0].graph.clone();
    let applied = apply(&mut graph, &[]);
    let names: Vec<_> = applied.iter().map(|(name, applied)| (*name, applied.times, applied.saved)).collect();
    assert_eq!(names, [("convolution", 1, 0), ("convolution-norm", 4, 4), ("convolution-activation", 1, 1)]);
    let node = &graph.nodes[5];
    let steps = vec![Step::Sub, Step::Div, Step::Mul, Step::Add];
    let of = Convolution { steps, activation: Some("relu".into()), ..Convolution::new(window(3, 1)) };
    assert_eq!(node.compute, Compute::FusedConvolution(of));
    assert_eq!(node.operands.len(), 6);
    assert_eq!(graph.live(), [false, false, false, false, false, true]);
}

#[test]
fn rules_can_be_left_out() {
    let mut graph = regions(&convolution_and_norm())[0].graph.clone();
    let applied = apply(&mut graph, &["convolution-norm"]);
    assert_eq!(applied.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["convolution"]);
    assert!(graph.live().iter().all(|live| *live));
}

#[test]
fn a_vector_along_another_dimension_is_no_norm() {
    let mut maker = Maker::default();
    let (x, weight, row) = (maker.buffer(100, Role::Input(0)), maker.weight(8 * 4), maker.weight(25));
    let image = view(x, 0, &[(1, 100), (4, 25), (5, 5), (5, 1)]);
    let y = maker.made(Function::Convolution(window(1, 0)), vec![image, all(weight, 32)], 200);
    let y = maker.made(binary("add"), vec![all(y, 200), view(row, 0, &[(8, 0), (25, 1)])], 200);
    maker.output(y);
    let mut graph = regions(&maker.0)[0].graph.clone();
    assert_eq!(apply(&mut graph, &[]).len(), 1);
    assert!(matches!(graph.nodes[1].compute, Compute::Recorded(_)));
}

#[test]
fn what_is_read_elsewhere_too_stays() {
    let mut trace = convolution_and_norm();
    // The convolution's own result is an output, too.
    trace.buffers[6].role = Role::Output(1);
    let mut graph = regions(&trace)[0].graph.clone();
    assert_eq!(graph.outputs.len(), 2);
    assert_eq!(apply(&mut graph, &[]).iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["convolution"]);
}

/// `groups` convolutions of one channel each, and their concatenation; `last` is where the last one begins to read.
fn depthwise(groups: u64, last: u64) -> Trace {
    let mut maker = Maker::default();
    let (x, weight) = (maker.buffer(groups * 16, Role::Input(0)), maker.weight(groups * 9));
    let parts: Vec<BufferId> = (0..groups)
        .map(|group| {
            let first = if group == groups - 1 { last } else { group * 16 };
            let image = view(x, first, &[(1, groups * 16), (1, 16), (4, 4), (4, 1)]);
            let weight = View::contiguous(weight, F16, group * 9, 9);
            maker.made(Function::Convolution(window(3, 1)), vec![image, weight], 16)
        })
        .collect();
    let y = maker.buffer(groups * 16, Role::Output(0));
    for (group, part) in (0..groups).zip(parts) {
        let rows = |buffer, first, stride| view(buffer, first, &[(1, stride), (16, 1)]);
        maker.op(Function::Copy, vec![rows(part, 0, 16)], rows(y, group * 16, groups * 16));
    }
    maker.0
}

#[test]
fn one_convolution_a_group_becomes_one_of_all() {
    let mut graph = regions(&depthwise(6, 80))[0].graph.clone();
    let applied = apply(&mut graph, &[]);
    assert_eq!(applied, [("grouped-convolution", Applied { times: 1, saved: 11 })]);
    let Value::Node(at) = graph.outputs[0].value else { panic!("the output is computed") };
    let node = &graph.nodes[at];
    let expected = Window { groups: 6, ..window(3, 1) };
    assert_eq!(node.compute, Compute::FusedConvolution(Convolution::new(expected)));
    let dims = |operand: &Operand| operand.dims.iter().map(|dim| (dim.len, dim.stride)).collect::<Vec<_>>();
    assert_eq!(dims(&node.operands[0]), [(1, 96), (6, 16), (4, 4), (4, 1)]);
    assert_eq!(dims(&node.operands[1]), [(54, 1)]);
}

#[test]
fn groups_that_do_not_follow_one_another_stay_apart() {
    let mut graph = regions(&depthwise(6, 64))[0].graph.clone();
    assert_eq!(apply(&mut graph, &[]), [("convolution", Applied { times: 6, saved: 0 })]);
}

/// Attention of 2 heads of 32 for 6 tokens, out of one product, with a mask; softmax as five launches.
fn attention(size: u64) -> Trace {
    let mut maker = Maker::default();
    let (len, row) = (72, 6 * size);
    let qkv = maker.buffer(6 * row, Role::Input(0));
    let mask = maker.weight(36);
    let q = view(qkv, 0, &[(2, size), (6, row), (size, 1)]);
    let k = view(qkv, 2 * size, &[(2, size), (size, 1), (6, row)]);
    let v = view(qkv, 4 * size, &[(2, size), (6, row), (size, 1)]);
    let scores = maker.made(Function::Matmul, vec![q, k], len);
    let scores = maker.made(Function::Affine(0.125, 0.), vec![all(scores, len)], len);
    let x = maker.made(binary("add"), vec![all(scores, len), view(mask, 0, &[(2, 0), (36, 1)])], len);
    let rows = |buffer| view(buffer, 0, &[(12, 1), (6, 0)]);
    let max = maker.made(Function::RowMax(6), vec![all(x, len)], 12);
    let difference = maker.made(binary("sub"), vec![all(x, len), rows(max)], len);
    let e = maker.made(Function::Unary("exp".into()), vec![all(difference, len)], len);
    let sum = maker.made(Function::RowSum(6), vec![all(e, len)], 12);
    let p = maker.made(binary("div"), vec![all(e, len), rows(sum)], len);
    let y = maker.made(Function::Matmul, vec![view(p, 0, &[(2, 36), (6, 6), (6, 1)]), v], 12 * size);
    maker.output(y);
    maker.0
}

#[test]
fn products_around_a_softmax_are_attention() {
    let mut graph = regions(&attention(32))[0].graph.clone();
    let names: Vec<_> = apply(&mut graph, &[]).iter().map(|(name, applied)| (*name, applied.saved)).collect();
    assert_eq!(names, [("softmax", 4), ("attention", 4)]);
    let Value::Node(at) = graph.outputs[0].value else { panic!("the output is computed") };
    let node = &graph.nodes[at];
    let scores = Scores { masks: vec![Mask::Added(1.)], ..Scores::of(0.125) };
    assert_eq!((node.compute.clone(), node.operands.len()), (Compute::Attention(scores), 4));
    let lens = |operand: &Operand| operand.dims.iter().map(|dim| dim.len).collect::<Vec<_>>();
    assert!((0..3).all(|at| lens(&node.operands[at]) == [2, 6, 32]));
    assert_eq!(graph.live().iter().filter(|live| **live).count(), 1);
}

#[test]
fn heads_without_a_kernel_keep_their_products() {
    let mut graph = regions(&attention(36))[0].graph.clone();
    assert_eq!(apply(&mut graph, &[]).iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["softmax"]);
}

#[test]
fn a_sum_that_is_read_twice_is_no_softmax() {
    let mut trace = attention(32);
    let sums = trace
        .ops
        .iter()
        .position(|op| matches!(op.meaning.as_deref(), Some(Meaning { function: Function::RowSum(_), .. })));
    let sums = trace.ops[sums.unwrap()].meaning.as_ref().unwrap().writes.as_ref().unwrap().buffer;
    trace.buffers[sums].role = Role::Output(1);
    let mut graph = regions(&trace)[0].graph.clone();
    assert!(apply(&mut graph, &[]).is_empty());
}

#[test]
fn a_bias_and_an_activation_become_part_of_the_product() {
    let mut maker = Maker::default();
    let (x, weight, bias) = (maker.buffer(40, Role::Input(0)), maker.weight(24), maker.weight(3));
    // x, (5, 8), times the transpose of the weight, (3, 8).
    let operands = vec![view(x, 0, &[(1, 0), (5, 8), (8, 1)]), view(weight, 0, &[(1, 0), (8, 1), (3, 8)])];
    let y = maker.made(Function::Matmul, operands, 15);
    let y = maker.made(binary("add"), vec![all(y, 15), view(bias, 0, &[(5, 0), (3, 1)])], 15);
    let y = maker.made(Function::Unary("gelu".into()), vec![all(y, 15)], 15);
    maker.output(y);
    let mut graph = regions(&maker.0)[0].graph.clone();
    let names: Vec<_> = apply(&mut graph, &[]).iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["product-bias", "product-activation"]);
    let node = &graph.nodes[2];
    assert_eq!(node.compute, Compute::Linear { activation: Some("gelu".into()) });
    assert_eq!(node.operands[1].dims, [Dim { len: 3, stride: 8 }, Dim { len: 8, stride: 1 }]);
}

/// Products of x, (5, 8), with three weights of 4, 4 and 2 columns, the first with a bias, beside each other.
fn products_beside_each_other() -> Trace {
    let mut maker = Maker::default();
    let x = maker.buffer(40, Role::Input(0));
    let mut parts = Vec::new();
    for columns in [4, 4, 2] {
        let weight = maker.weight(columns * 8);
        let operands = vec![view(x, 0, &[(1, 0), (5, 8), (8, 1)]), view(weight, 0, &[(1, 0), (8, 1), (columns, 8)])];
        parts.push((maker.made(Function::Matmul, operands, 5 * columns), columns));
    }
    let bias = maker.weight(4);
    parts[0].0 = maker.made(binary("add"), vec![all(parts[0].0, 20), view(bias, 0, &[(5, 0), (4, 1)])], 20);
    let y = maker.buffer(50, Role::Output(0));
    let mut at = 0;
    for (part, columns) in parts {
        let rows = |buffer, first, stride| view(buffer, first, &[(5, stride), (columns, 1)]);
        maker.op(Function::Copy, vec![rows(part, 0, columns)], rows(y, at, 10));
        at += columns;
    }
    maker.0
}

#[test]
fn products_of_one_operand_beside_each_other_become_one() {
    let mut graph = regions(&products_beside_each_other())[0].graph.clone();
    let applied = apply(&mut graph, &[]);
    assert_eq!(
        applied.iter().map(|(name, applied)| (*name, applied.saved)).collect::<Vec<_>>(),
        [("product-bias", 1), ("product-concat", 5)]
    );
    let Value::Node(at) = graph.outputs[0].value else { panic!("the output is computed") };
    assert_eq!(graph.nodes[at].compute, Compute::ProductConcat { have_bias: vec![true, false, false] });
    let dims = |operand: &Operand| operand.dims.iter().map(|dim| dim.len).collect::<Vec<_>>();
    let lens: Vec<_> = graph.nodes[at].operands.iter().map(dims).collect();
    assert_eq!(lens, [vec![5, 8], vec![4, 8], vec![4], vec![4, 8], vec![2, 8]]);
    assert_eq!(graph.live().iter().filter(|live| **live).count(), 1);
}

#[test]
fn products_of_different_operands_stay_apart() {
    let mut trace = products_beside_each_other();
    // Another part of x for the second one.
    trace.ops[1].meaning.as_mut().unwrap().reads[0].first = 1;
    let mut graph = regions(&trace)[0].graph.clone();
    assert_eq!(apply(&mut graph, &[]).iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["product-bias"]);
}

#[test]
fn a_run_ends_before_what_is_not_known() {
    let mut maker = Maker::default();
    let x = maker.buffer(8, Role::Input(0));
    let relu = || Function::Unary("relu".into());
    let a = maker.made(relu(), vec![all(x, 8)], 8);
    let b = maker.made(relu(), vec![all(a, 8)], 8);
    maker.unknown(b);
    let c = maker.made(relu(), vec![all(b, 8)], 8);
    maker.output(c);
    let regions = regions(&maker.0);
    assert_eq!(regions.iter().map(|region| region.ops.clone()).collect::<Vec<_>>(), [0..2, 3..4]);
    let outputs = |at: usize| regions[at].graph.outputs.iter().map(|output| output.buffer).collect::<Vec<_>>();
    assert_eq!((outputs(0), outputs(1)), (vec![b], vec![c]));
    assert_eq!(regions[1].graph.inputs[0].buffer, b);
    assert!(!regions[1].graph.inputs[0].is_constant);
}

#[test]
fn a_run_ends_before_a_concatenation_that_others_finish() {
    let mut maker = Maker::default();
    let x = maker.buffer(8, Role::Input(0));
    let a = maker.made(Function::Unary("relu".into()), vec![all(x, 8)], 8);
    let y = maker.buffer(16, Role::Output(0));
    maker.op(Function::Copy, vec![all(a, 8)], View::contiguous(y, F16, 0, 8));
    maker.unknown(a);
    maker.op(Function::Copy, vec![all(a, 8)], View::contiguous(y, F16, 8, 8));
    let regions = regions(&maker.0);
    assert!(regions.len() == 1 && regions[0].ops == (0..1), "{regions:?}");
}

#[test]
fn tables_that_others_read_stay() {
    let mut maker = Maker::default();
    let x = maker.buffer(8, Role::Input(0));
    let table = maker.buffer(8, Role::Intermediate);
    let bytes = View::contiguous(table, Element::Byte, 0, 16);
    maker.op(Function::Upload, vec![], bytes);
    let a = maker.made(Function::Unary("relu".into()), vec![all(x, 8)], 8);
    maker.unknown(table);
    maker.output(a);
    let regions = regions(&maker.0);
    assert_eq!((regions[0].kept.clone(), regions[0].graph.outputs.len()), (vec![0], 1));
}

#[test]
fn strides_go_over_dimensions_that_continue_each_other() {
    let over = |dims: &[(u64, u64)], shape: &[u64]| {
        let dims: Vec<Dim> = dims.iter().map(|&(len, stride)| Dim { len, stride }).collect();
        strides_over(&dims, shape)
    };
    assert_eq!(over(&[(8, 1), (25, 0)], &[1, 8, 5, 5]), Some(vec![0, 1, 0, 0]));
    assert_eq!(over(&[(24, 1)], &[2, 3, 4]), Some(vec![12, 4, 1]));
    assert_eq!(over(&[(2, 30), (12, 2)], &[2, 3, 4]), Some(vec![30, 8, 2]));
    assert_eq!(over(&[(6, 10), (4, 1)], &[2, 12]), None, "a row of the shape goes over several of the view");
    assert_eq!(over(&[(24, 1)], &[2, 3]), None, "fewer elements");
    assert_eq!(over(&[], &[1, 1]), Some(vec![0, 0]));
}

#[test]
fn a_run_ends_before_what_no_rule_is_about() {
    let relu = || Function::Unary("relu".into());
    let runs = |trace: &Trace| regions(trace).into_iter().map(|region| region.ops).collect::<Vec<_>>();
    for function in [Function::Unfold(window(1, 0)), Function::Unary("round".into())] {
        let mut maker = Maker::default();
        let x = maker.buffer(8, Role::Input(0));
        let y = maker.made(relu(), vec![all(x, 8)], 8);
        let y = maker.made(function.clone(), vec![all(y, 8)], 8);
        let y = maker.made(relu(), vec![all(y, 8)], 8);
        maker.output(y);
        assert_eq!(runs(&maker.0), [0..1, 2..3], "{function:?}");
        assert_eq!(whole(&maker.0, []).map(|whole| whole.graph.nodes.len()), Ok(3));
    }
    // A part in double precision.
    let mut maker = Maker::default();
    let x = maker.buffer(8, Role::Input(0));
    let y = maker.made(relu(), vec![all(x, 8)], 8);
    let wide = maker.buffer(32, Role::Intermediate);
    let in_f64 = || View::contiguous(wide, Element::F64, 0, 8);
    maker.op(Function::Copy, vec![all(y, 8)], in_f64());
    let back = maker.made(Function::Copy, vec![in_f64()], 8);
    let y = maker.made(relu(), vec![all(back, 8)], 8);
    maker.output(y);
    assert_eq!(runs(&maker.0), [0..1, 3..4]);
    assert_eq!(whole(&maker.0, []).map(|whole| whole.graph.nodes.len()), Ok(4));
}
