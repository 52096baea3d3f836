//! Graphs are computed on the CPU, and changed ones beside the original.

use candle::{DType, Device, Result, Tensor};
use opara_plan::rewrite::rules;
use opara_plan::rewrite::{Compute, Graph, Input, Node, Operand, Output, Scores, Value};
use opara_plan::trace::{Dim, Element, Function, Rotary, Window};

use super::evaluate::{self, Arithmetic, Numbers};

mod adversarial;
mod altered;
mod choice;
mod gradients;
mod heads;
mod images;
mod indexed;
mod loops;
mod norms;
mod oracles;
mod places;
mod pools;
mod quantized;
mod several;

/// Applies the rules that are not `without`, and counts those that fitted.
fn apply(graph: &mut Graph, without: &[&str]) -> usize {
    rules::counted(&rules::apply(graph, without, &Default::default())).len()
}

fn evaluate(graph: &Graph, inputs: &[Tensor], arithmetic: Arithmetic) -> Result<Vec<Tensor>> {
    evaluate::evaluate(graph, inputs, arithmetic, Numbers::All)
}

fn input(len: u64, is_constant: bool) -> Input {
    Input { buffer: 0, element: Element::F32, len, is_constant }
}

fn operand(value: Value, first: u64, dims: &[(u64, u64)]) -> Operand {
    Operand { value, first, dims: dims.iter().map(|&(len, stride)| Dim { len, stride }).collect() }
}

fn node(function: Function, operands: Vec<Operand>, len: u64) -> Node {
    Node::new(Compute::Recorded(function), operands, Element::F32, len)
}

fn numbers(len: u64, seed: f32) -> Result<Tensor> {
    let x = (Tensor::arange(0f32, len as f32, &Device::Cpu)? * f64::from(seed))?;
    x.sin()? + 0.1
}

fn window(padding: u64, groups: u64) -> Window {
    Window { kernel: [3; 2], padding: [padding; 2], stride: [1; 2], dilation: [1; 2], groups }
}

/// Relative to the largest element of `b`.
fn largest_difference(a: &Tensor, b: &Tensor) -> Result<f32> {
    let flat = |t: &Tensor| t.flatten_all()?.to_dtype(DType::F32);
    let largest = |t: Tensor| t.abs()?.max(0)?.to_scalar::<f32>();
    Ok(largest((flat(a)? - flat(b)?)?)? / largest(flat(b)?)?.max(1.))
}

/// The graph with so many rules applied, which leave one node.
fn as_one_node(graph: &Graph, rules: usize) -> Graph {
    let mut changed = graph.clone();
    assert_eq!(apply(&mut changed, &[]), rules);
    assert_eq!(changed.live().iter().filter(|live| **live).count(), 1);
    changed
}

/// Both graphs give the same finite numbers, in f32 and in double precision.
fn assert_same_results(graph: &Graph, changed: &Graph, inputs: &[Tensor], of: &str) -> Result<()> {
    let expected = &evaluate(graph, inputs, Arithmetic::In(DType::F64))?[0];
    for arithmetic in [Arithmetic::Typed, Arithmetic::In(DType::F64)] {
        for graph in [graph, changed] {
            let got = &evaluate(graph, inputs, arithmetic)?[0];
            // The largest difference leaves NaN out, and the sum does not.
            let sum = got.to_dtype(DType::F64)?.sum_all()?.to_scalar::<f64>()?;
            let difference = largest_difference(got, expected)?;
            assert!(sum.is_finite() && difference < 1e-5, "{of}: {difference}, sum {sum}");
        }
    }
    Ok(())
}

/// Batch norm and `max(x, 0)` behind a convolution of two images of three channels, then a pool of two of its channels.
fn convolution_and_norm() -> Graph {
    let whole = |node: usize| operand(Value::Node(node), 0, &[(2 * 4 * 25, 1)]);
    let vector = |input: usize| operand(Value::Input(input), 0, &[(2, 0), (4, 1), (25, 0)]);
    let image = operand(Value::Input(0), 0, &[(2, 75), (3, 25), (5, 5), (5, 1)]);
    let mut nodes =
        vec![node(Function::Convolution(window(1, 1)), vec![image, operand(Value::Input(1), 0, &[(108, 1)])], 200)];
    for (at, name) in ["sub", "div", "mul", "add"].into_iter().enumerate() {
        nodes.push(node(Function::Binary(name.into()), vec![whole(at), vector(2 + at)], 200));
    }
    nodes.push(node(Function::Unary("relu".into()), vec![whole(4)], 200));
    let pool = Window { kernel: [2; 2], padding: [0; 2], stride: [2; 2], dilation: [1; 2], groups: 1 };
    let channels = operand(Value::Node(5), 50, &[(2, 100), (2, 25), (5, 5), (5, 1)]);
    nodes.push(node(Function::MaxPool(pool), vec![channels], 2 * 2 * 4));
    let weights = [108, 4, 4, 4, 4].map(|len| input(len, true));
    let inputs = [input(150, false)].into_iter().chain(weights).collect();
    Graph { inputs, nodes, outputs: vec![Output { value: Value::Node(6), buffer: 9 }] }
}

#[test]
fn a_changed_graph_computes_the_same() -> Result<()> {
    let graph = convolution_and_norm();
    let lens = [150, 108, 4, 4, 4, 4];
    let inputs = lens.iter().zip([0.3, 0.7, 0.9, 1.1, 1.3, 1.7]).map(|(&len, seed)| numbers(len, seed));
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    let recorded = &evaluate(&graph, &inputs, Arithmetic::Typed)?[0];
    let reference = &evaluate(&graph, &inputs, Arithmetic::In(DType::F64))?[0];
    assert_eq!((recorded.dtype(), reference.dtype()), (DType::F32, DType::F64));
    assert!(largest_difference(recorded, reference)? < 1e-5);

    // The same by candle's operators, written down by hand.
    let x = inputs[0].reshape((2, 3, 5, 5))?;
    let vectors: Vec<Tensor> = inputs[2..].iter().map(|v| v.reshape((1, 4, 1, 1))).collect::<Result<_>>()?;
    let y = x.conv2d(&inputs[1].reshape((4, 3, 3, 3))?, 1, 1, 1, 1)?.broadcast_sub(&vectors[0])?;
    let y = y.broadcast_div(&vectors[1])?.broadcast_mul(&vectors[2])?.broadcast_add(&vectors[3])?.relu()?;
    let expected = y.narrow(1, 2, 2)?.contiguous()?.max_pool2d(2)?;
    assert!(largest_difference(recorded, &expected)? < 1e-5);

    for without in [&[][..], &["convolution-norm"], &["convolution"]] {
        let mut changed = graph.clone();
        apply(&mut changed, without);
        let got = &evaluate(&changed, &inputs, Arithmetic::Typed)?[0];
        assert!(largest_difference(got, &expected)? < 1e-4, "without {without:?}");
    }
    Ok(())
}

#[test]
fn one_convolution_a_group_computes_the_same_as_one_of_all() -> Result<()> {
    const GROUPS: u64 = 4;
    let whole = |node: u64| operand(Value::Node(node as usize), 0, &[(2, 25), (25, 1)]);
    let mut nodes = Vec::new();
    for group in 0..GROUPS {
        let image = operand(Value::Input(0), group * 25, &[(2, 100), (1, 25), (5, 5), (5, 1)]);
        let weight = operand(Value::Input(1), group * 9, &[(9, 1)]);
        nodes.push(node(Function::Convolution(window(1, 1)), vec![image, weight], 50));
    }
    let concat = Compute::Concat { rows: 2, widths: vec![25; GROUPS as usize] };
    let operands = (0..GROUPS).map(whole).collect();
    nodes.push(Node::new(concat, operands, Element::F32, 200));
    let graph = Graph {
        inputs: vec![input(200, false), input(36, true)],
        nodes,
        outputs: vec![Output { value: Value::Node(4), buffer: 9 }],
    };
    let inputs = [numbers(200, 0.7)?, numbers(36, 1.3)?];
    let x = inputs[0].reshape((2, 4, 5, 5))?;
    let expected = x.conv2d(&inputs[1].reshape((4, 1, 3, 3))?, 1, 1, 1, 4)?;
    let mut changed = graph.clone();
    assert_eq!(apply(&mut changed, &[]), 1);
    for graph in [graph, changed] {
        for arithmetic in [Arithmetic::Typed, Arithmetic::In(DType::F64)] {
            assert!(largest_difference(&evaluate(&graph, &inputs, arithmetic)?[0], &expected)? < 1e-5);
        }
    }
    Ok(())
}

#[test]
fn rows_and_products_are_computed_on_views() -> Result<()> {
    // Attention of two heads, as candle reads them from one product of 6 tokens.
    let q = operand(Value::Input(0), 0, &[(2, 4), (6, 24), (4, 1)]);
    let k = operand(Value::Input(0), 8, &[(2, 4), (4, 1), (6, 24)]);
    let v = operand(Value::Input(0), 16, &[(2, 4), (6, 24), (4, 1)]);
    let scores = |node| operand(Value::Node(node), 0, &[(72, 1)]);
    let nodes = vec![
        node(Function::Matmul, vec![q, k], 72),
        node(Function::Affine(0.5, 0.), vec![scores(0)], 72),
        node(Function::Softmax(6), vec![scores(1)], 72),
        node(Function::Matmul, vec![operand(Value::Node(2), 0, &[(2, 36), (6, 6), (6, 1)]), v], 48),
        // Heads side by side again.
        node(Function::Copy, vec![operand(Value::Node(3), 0, &[(6, 4), (2, 24), (4, 1)])], 48),
        node(Function::RowSum(8), vec![operand(Value::Node(4), 0, &[(48, 1)])], 6),
    ];
    let graph =
        Graph { inputs: vec![input(144, false)], nodes, outputs: vec![Output { value: Value::Node(5), buffer: 9 }] };
    let x = numbers(144, 0.7)?;
    let heads = x.reshape((6, 3, 2, 4))?.permute((1, 2, 0, 3))?.contiguous()?;
    let scores = (heads.get(0)?.matmul(&heads.get(1)?.t()?)? * 0.5)?;
    let y = candle_nn::ops::softmax_last_dim(&scores)?.matmul(&heads.get(2)?)?;
    let expected = y.permute((1, 0, 2))?.contiguous()?.reshape((6, 8))?.sum(1)?;
    let x = [x];
    for arithmetic in [Arithmetic::Typed, Arithmetic::In(DType::F64)] {
        let got = &evaluate(&graph, &x, arithmetic)?[0];
        assert!(largest_difference(got, &expected)? < 1e-5);
    }
    // The same as one operator, with its keys as rows.
    let heads = |first: u64| operand(Value::Input(0), first, &[(2, 4), (6, 24), (4, 1)]);
    let mut changed = graph.clone();
    changed.nodes[3].compute = Compute::Attention(Scores::of(0.5));
    changed.nodes[3].operands = vec![heads(0), heads(8), heads(16)];
    assert!(largest_difference(&evaluate(&changed, &x, Arithmetic::Typed)?[0], &expected)? < 1e-5);
    Ok(())
}

#[test]
fn attention_of_shared_heads_computes_the_same() -> Result<()> {
    // Four heads of queries, and two of keys and values, for 6 tokens of 32.
    let repeated = |input: usize| operand(Value::Input(input), 0, &[(2, 192), (2, 0), (192, 1)]);
    let heads = |value: Value| operand(value, 0, &[(4, 192), (6, 32), (32, 1)]);
    let keys = operand(Value::Node(0), 0, &[(4, 192), (32, 1), (6, 32)]);
    let nodes = vec![
        node(Function::Copy, vec![repeated(1)], 768),
        node(Function::Copy, vec![repeated(2)], 768),
        node(Function::Matmul, vec![heads(Value::Input(0)), keys], 144),
        node(Function::Softmax(6), vec![operand(Value::Node(2), 0, &[(144, 1)])], 144),
        node(
            Function::Matmul,
            vec![operand(Value::Node(3), 0, &[(4, 36), (6, 6), (6, 1)]), heads(Value::Node(1))],
            768,
        ),
    ];
    let inputs = [768, 384, 384].map(|len| input(len, false)).into();
    let graph = Graph { inputs, nodes, outputs: vec![Output { value: Value::Node(4), buffer: 9 }] };
    let inputs = [numbers(768, 0.7)?, numbers(384, 1.3)?, numbers(384, 0.6)?];
    assert_same_results(&graph, &as_one_node(&graph, 2), &inputs, "")
}

#[test]
fn attention_of_shared_heads_of_a_batch_computes_the_same() -> Result<()> {
    // Two items of four heads of queries, and of two of keys and values, for 6 tokens of 32. Heads of values lie beside each other in a
    // token, so that the heads of an item do not continue those of the one before.
    let keys = operand(Value::Input(1), 0, &[(4, 192), (2, 0), (192, 1)]);
    let values = operand(Value::Input(2), 0, &[(2, 384), (2, 32), (2, 0), (6, 64), (32, 1)]);
    let heads = |value: Value| operand(value, 0, &[(8, 192), (6, 32), (32, 1)]);
    let nodes = vec![
        node(Function::Copy, vec![keys], 1536),
        node(Function::Copy, vec![values], 1536),
        node(
            Function::Matmul,
            vec![heads(Value::Input(0)), operand(Value::Node(0), 0, &[(8, 192), (32, 1), (6, 32)])],
            288,
        ),
        node(
            Function::MaskedFill(f32::NEG_INFINITY.to_bits().into()),
            vec![operand(Value::Input(3), 0, &[(8, 0), (36, 1)]), operand(Value::Node(2), 0, &[(288, 1)])],
            288,
        ),
        node(Function::Softmax(6), vec![operand(Value::Node(3), 0, &[(288, 1)])], 288),
        node(
            Function::Matmul,
            vec![operand(Value::Node(4), 0, &[(8, 36), (6, 6), (6, 1)]), heads(Value::Node(1))],
            1536,
        ),
    ];
    let mut inputs = [1536, 768, 768, 36].map(|len| input(len, false)).to_vec();
    inputs[3].element = Element::U8;
    let graph = Graph { inputs, nodes, outputs: vec![Output { value: Value::Node(5), buffer: 9 }] };
    let mask = Tensor::from_iter((0..36u8).map(|at| u8::from(at % 6 > at / 6)), &Device::Cpu)?;
    let inputs = [numbers(1536, 0.7)?, numbers(768, 1.3)?, numbers(768, 0.6)?, mask];
    assert_same_results(&graph, &as_one_node(&graph, 2), &inputs, "")
}

#[test]
fn masked_attention_computes_the_same_whatever_the_mask_hides() -> Result<()> {
    // Two heads of queries, keys and values for 6 tokens of 32. A token sees those before it, and none sees the fourth.
    let heads = |input: usize| operand(Value::Input(input), 0, &[(2, 192), (6, 32), (32, 1)]);
    let keys = operand(Value::Input(1), 0, &[(2, 192), (32, 1), (6, 32)]);
    let scores = |at: usize| operand(Value::Node(at), 0, &[(72, 1)]);
    let nodes = vec![
        node(Function::Matmul, vec![heads(0), keys], 72),
        node(Function::Affine(0.5, 0.), vec![scores(0)], 72),
        node(
            Function::MaskedFill(f32::NEG_INFINITY.to_bits().into()),
            vec![operand(Value::Input(3), 0, &[(2, 0), (36, 1)]), scores(1)],
            72,
        ),
        node(Function::Softmax(6), vec![scores(2)], 72),
        node(Function::Matmul, vec![operand(Value::Node(3), 0, &[(2, 36), (6, 6), (6, 1)]), heads(2)], 384),
    ];
    let mut inputs = [384, 384, 384, 36].map(|len| input(len, false)).to_vec();
    inputs[3].element = Element::U8;
    let graph = Graph { inputs, nodes, outputs: vec![Output { value: Value::Node(4), buffer: 9 }] };
    let changed = as_one_node(&graph, 1);
    let mask = (0..36u8).map(|at| u8::from(at % 6 == 3 || at % 6 > at / 6));
    let mask = Tensor::from_iter(mask, &Device::Cpu)?;
    for hidden in [0.5, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30] {
        let keys = numbers(384, 1.3)?.reshape((2, 6, 32))?;
        let of_fourth = Tensor::full(hidden, (2, 1, 32), &Device::Cpu)?;
        let keys = keys.slice_assign(&[0..2, 3..4, 0..32], &of_fourth)?.flatten_all()?;
        let inputs = [numbers(384, 0.7)?, keys, numbers(384, 0.6)?, mask.clone()];
        assert_same_results(&graph, &changed, &inputs, &format!("{hidden}"))?;
    }
    Ok(())
}

#[test]
fn a_product_with_what_follows_computes_the_same() -> Result<()> {
    let whole = |node: usize| operand(Value::Node(node), 0, &[(15, 1)]);
    let x = operand(Value::Input(0), 0, &[(1, 0), (5, 8), (8, 1)]);
    let weight = operand(Value::Input(1), 0, &[(1, 0), (8, 1), (3, 8)]);
    let nodes = vec![
        node(Function::Matmul, vec![x, weight], 15),
        node(Function::Binary("add".into()), vec![whole(0), operand(Value::Input(2), 0, &[(5, 0), (3, 1)])], 15),
        node(Function::Unary("gelu_erf".into()), vec![whole(1)], 15),
    ];
    let inputs = vec![input(40, false), input(24, true), input(3, true)];
    let graph = Graph { inputs, nodes, outputs: vec![Output { value: Value::Node(2), buffer: 9 }] };
    let inputs = [numbers(40, 0.7)?, numbers(24, 1.3)?, numbers(3, 0.9)?];
    let y = inputs[0].reshape((5, 8))?.matmul(&inputs[1].reshape((3, 8))?.t()?)?;
    let expected = y.broadcast_add(&inputs[2])?.gelu_erf()?;
    let mut changed = graph.clone();
    assert_eq!(apply(&mut changed, &[]), 2);
    for graph in [graph, changed] {
        assert!(largest_difference(&evaluate(&graph, &inputs, Arithmetic::Typed)?[0], &expected)? < 1e-5);
    }
    Ok(())
}

#[test]
fn products_beside_each_other_compute_the_same_as_one() -> Result<()> {
    let x = operand(Value::Input(0), 0, &[(1, 0), (5, 8), (8, 1)]);
    let weight = |input: usize| operand(Value::Input(input), 0, &[(1, 0), (8, 1), (3, 8)]);
    let rows = |node: usize| operand(Value::Node(node), 0, &[(15, 1)]);
    let mut nodes = vec![
        node(Function::Matmul, vec![x.clone(), weight(1)], 15),
        node(Function::Matmul, vec![x, weight(2)], 15),
        node(Function::Binary("add".into()), vec![rows(1), operand(Value::Input(3), 0, &[(5, 0), (3, 1)])], 15),
    ];
    let compute = Compute::Concat { rows: 5, widths: vec![3, 3] };
    nodes.push(Node::new(compute, vec![rows(0), rows(2)], Element::F32, 30));
    let inputs = vec![input(40, false), input(24, true), input(24, true), input(3, true)];
    let graph = Graph { inputs, nodes, outputs: vec![Output { value: Value::Node(3), buffer: 9 }] };
    let inputs = [numbers(40, 0.7)?, numbers(24, 1.3)?, numbers(24, 0.6)?, numbers(3, 0.9)?];
    let x = inputs[0].reshape((5, 8))?;
    let of = |weight: &Tensor| x.matmul(&weight.reshape((3, 8))?.t()?);
    let expected = Tensor::cat(&[of(&inputs[1])?, of(&inputs[2])?.broadcast_add(&inputs[3])?], 1)?;
    let mut changed = graph.clone();
    assert_eq!(apply(&mut changed, &[]), 2);
    for graph in [graph, changed] {
        assert!(largest_difference(&evaluate(&graph, &inputs, Arithmetic::Typed)?[0], &expected)? < 1e-5);
    }
    Ok(())
}

#[test]
fn a_gated_unit_computes_the_same_as_one_product() -> Result<()> {
    for (activation, has_bias) in [("silu", false), ("gelu", true)] {
        let x = operand(Value::Input(0), 0, &[(1, 0), (5, 8), (8, 1)]);
        let weight = |input: usize| operand(Value::Input(input), 0, &[(1, 0), (8, 1), (3, 8)]);
        let rows = |node: usize| operand(Value::Node(node), 0, &[(15, 1)]);
        let bias = |input: usize| operand(Value::Input(input), 0, &[(5, 0), (3, 1)]);
        let mut nodes = Vec::new();
        for (of_weight, of_bias, activation) in [(1, 3, Some(activation)), (2, 4, None)] {
            nodes.push(node(Function::Matmul, vec![x.clone(), weight(of_weight)], 15));
            if has_bias {
                let operands = vec![rows(nodes.len() - 1), bias(of_bias)];
                nodes.push(node(Function::Binary("add".into()), operands, 15));
            }
            if let Some(name) = activation {
                nodes.push(node(Function::Unary(name.into()), vec![rows(nodes.len() - 1)], 15));
            }
        }
        let gate = if has_bias { 2 } else { 1 };
        // The gate comes second here.
        nodes.push(node(Function::Binary("mul".into()), vec![rows(nodes.len() - 1), rows(gate)], 15));
        let inputs = vec![input(40, false), input(24, true), input(24, true), input(3, true), input(3, true)];
        let outputs = vec![Output { value: Value::Node(nodes.len() - 1), buffer: 9 }];
        let graph = Graph { inputs, nodes, outputs };
        let inputs = [numbers(40, 0.7)?, numbers(24, 1.3)?, numbers(24, 0.6)?, numbers(3, 0.9)?, numbers(3, 0.4)?];
        let x = inputs[0].reshape((5, 8))?;
        let product = |at: usize| -> Result<Tensor> {
            let y = x.matmul(&inputs[at].reshape((3, 8))?.t()?)?;
            if has_bias {
                y.broadcast_add(&inputs[2 + at])
            } else {
                Ok(y)
            }
        };
        let gate = product(1)?;
        let expected = ((if has_bias { gate.gelu()? } else { gate.silu()? }) * product(2)?)?;
        let mut changed = graph.clone();
        assert_eq!(apply(&mut changed, &[]), if has_bias { 2 } else { 1 });
        for graph in [graph, changed] {
            assert!(largest_difference(&evaluate(&graph, &inputs, Arithmetic::Typed)?[0], &expected)? < 1e-5);
        }
    }
    Ok(())
}

/// A sum of two inputs of 3 rows of 8, its norm, and the sum of both if the first sum is read twice.
fn norm_of_sum(is_rms: bool, is_read_twice: bool) -> Graph {
    let all = |value: Value| operand(value, 0, &[(24, 1)]);
    let vector = |input: usize| operand(Value::Input(input), 0, &[(3, 0), (8, 1)]);
    let mut nodes = vec![node(Function::Binary("add".into()), vec![all(Value::Input(0)), all(Value::Input(1))], 24)];
    nodes.push(match is_rms {
        true => node(Function::RmsNorm(8, 1e-6), vec![all(Value::Node(0)), vector(2)], 24),
        false => node(Function::LayerNorm(8, 1e-5), vec![all(Value::Node(0)), vector(2), vector(3)], 24),
    });
    if is_read_twice {
        let operands = vec![all(Value::Node(1)), all(Value::Node(0))];
        nodes.push(node(Function::Binary("add".into()), operands, 24));
    }
    let inputs = [(24, false), (24, false), (8, true), (8, true)].map(|(len, is_constant)| input(len, is_constant));
    let outputs = vec![Output { value: Value::Node(nodes.len() - 1), buffer: 9 }];
    Graph { inputs: inputs.into(), nodes, outputs }
}

#[test]
fn a_convolution_with_a_residual_computes_the_same() -> Result<()> {
    let all = |value: Value| operand(value, 0, &[(2 * 3 * 25, 1)]);
    let image = operand(Value::Input(0), 0, &[(2, 75), (3, 25), (5, 5), (5, 1)]);
    let vector = operand(Value::Input(2), 0, &[(2, 0), (3, 1), (25, 0)]);
    let weight = operand(Value::Input(1), 0, &[(81, 1)]);
    let nodes = vec![
        node(Function::Convolution(window(1, 1)), vec![image, weight], 150),
        node(Function::Binary("mul".into()), vec![all(Value::Node(0)), vector], 150),
        // A block's own input.
        node(Function::Binary("add".into()), vec![all(Value::Input(0)), all(Value::Node(1))], 150),
        node(Function::Unary("relu".into()), vec![all(Value::Node(2))], 150),
    ];
    let inputs = vec![input(150, false), input(81, true), input(3, true)];
    let graph = Graph { inputs, nodes, outputs: vec![Output { value: Value::Node(3), buffer: 9 }] };
    let inputs = [numbers(150, 0.7)?, numbers(81, 1.3)?, numbers(3, 0.9)?];
    let x = inputs[0].reshape((2, 3, 5, 5))?;
    let y =
        x.conv2d(&inputs[1].reshape((3, 3, 3, 3))?, 1, 1, 1, 1)?.broadcast_mul(&inputs[2].reshape((1, 3, 1, 1))?)?;
    let expected = (y + x)?.relu()?;
    for without in [&[][..], &["convolution-residual"], &["convolution-norm"], &["convolution-activation"]] {
        let mut changed = graph.clone();
        apply(&mut changed, without);
        let got = &evaluate(&changed, &inputs, Arithmetic::Typed)?[0];
        assert!(largest_difference(got, &expected)? < 1e-5, "without {without:?}");
    }
    let mut changed = graph.clone();
    assert_eq!(apply(&mut changed, &[]), 4);
    assert_eq!(changed.live(), [false, false, false, true]);
    Ok(())
}

#[test]
fn elements_are_chosen_and_rotated_as_by_candle() -> Result<()> {
    // Rows 2, 0, 2 of (4, 6); then the odd ones where a condition holds; then rotated as one head of 3 tokens.
    let row = |value: Value, len: u64| operand(value, 0, &[(len, 1)]);
    let of_heads = Rotary { outer: 1, tokens: 3, heads: 1, size: 6, is_of_neighbours: false, angles: 0 };
    let mut nodes = vec![
        node(
            Function::IndexSelect { left: 1, from: 4, right: 6 },
            vec![row(Value::Input(0), 24), row(Value::Input(1), 3)],
            18,
        ),
        node(
            Function::Where,
            vec![row(Value::Input(2), 18), row(Value::Node(0), 18), operand(Value::Input(3), 0, &[(18, 0)])],
            18,
        ),
        node(
            Function::Rotary(of_heads),
            vec![row(Value::Node(1), 18), row(Value::Input(4), 9), row(Value::Input(5), 9)],
            18,
        ),
    ];
    let mut inputs = [24, 3, 18, 1, 9, 9].map(|len| input(len, false)).to_vec();
    (inputs[1].element, inputs[2].element) = (Element::U32, Element::U8);
    nodes[2].element = Element::F32;
    let graph = Graph { inputs, nodes, outputs: vec![Output { value: Value::Node(2), buffer: 9 }] };
    let (x, ids) = (numbers(24, 0.7)?, Tensor::new(&[2u32, 0, 2], &Device::Cpu)?);
    let condition = Tensor::from_iter((0..18u8).map(|i| i % 2), &Device::Cpu)?;
    let (value, cos, sin) = (Tensor::new(&[-7f32], &Device::Cpu)?, numbers(9, 0.4)?, numbers(9, 0.6)?);
    let chosen = x.reshape((4, 6))?.index_select(&ids, 0)?;
    let chosen = condition.reshape((3, 6))?.where_cond(&chosen, &value.broadcast_as((3, 6))?.contiguous()?)?;
    let [cos2, sin2] = [&cos, &sin].map(|t| t.reshape((3, 3)));
    let expected = candle_nn::rotary_emb::rope_slow(&chosen.reshape((1, 1, 3, 6))?, &cos2?, &sin2?)?;
    let inputs = [x, ids, condition, value, cos, sin];
    for arithmetic in [Arithmetic::Typed, Arithmetic::In(DType::F64)] {
        assert!(largest_difference(&evaluate(&graph, &inputs, arithmetic)?[0], &expected)? < 1e-6);
    }
    Ok(())
}

#[test]
fn upsampling_copies_what_candle_copies() -> Result<()> {
    let input_of = numbers(120, 0.7)?;
    for size in [[10, 6], [10, 3], [7, 8], [2, 1], [147, 3]] {
        let part = operand(Value::Input(0), 15, &[(2, 60), (3, 15), (5, 3), (3, 1)]);
        let nodes = vec![node(Function::UpsampleNearest(size), vec![part], 6 * size[0] * size[1])];
        let outputs = vec![Output { value: Value::Node(0), buffer: 9 }];
        let graph = Graph { inputs: vec![input(120, false)], nodes, outputs };
        let mut changed = graph.clone();
        assert_eq!(apply(&mut changed, &[]), 1);
        let [rows, columns] = size.map(|n| n as usize);
        let expected = input_of.reshape((2, 4, 5, 3))?.narrow(1, 1, 3)?.upsample_nearest2d(rows, columns)?;
        let expected = expected.flatten_all()?.to_vec1::<f32>()?;
        for (graph, arithmetic) in
            [(&graph, Arithmetic::Typed), (&changed, Arithmetic::Typed), (&changed, Arithmetic::In(DType::F64))]
        {
            let inputs = std::slice::from_ref(&input_of);
            let got = evaluate(graph, inputs, arithmetic)?.remove(0).to_dtype(DType::F32)?;
            assert_eq!(got.flatten_all()?.to_vec1::<f32>()?, expected, "{size:?}");
        }
    }
    Ok(())
}
