//! Gradients of each kind of node beside differences of its results, in double precision.

use candle::{DType, Device, Result, Tensor};
use opara_plan::rewrite::{Compute, Convolution, Graph, Input, Mask, Node, Operand, Output, Scores, Segments, Value};
use opara_plan::trace::{Bilinear, Element, Function, Indexed, Rotary, Window};

use super::{evaluate, node, numbers, operand};
use crate::rewrite::evaluate::Arithmetic;
use crate::rewrite::gradient::{differentiate, Differentiated, Missing, Paths};

const F64: Arithmetic = Arithmetic::In(DType::F64);

/// An operand of a node: its elements, and its view of them.
#[derive(Clone)]
struct Given {
    tensor: Tensor,
    first: u64,
    dims: Vec<(u64, u64)>,
}

/// Floats as a contiguous view.
fn floats(seed: f32, dims: &[u64]) -> Result<Given> {
    let len = dims.iter().product();
    let strides = (0..dims.len()).map(|at| dims[at + 1..].iter().product());
    let dims = dims.iter().copied().zip(strides).collect();
    Ok(Given { tensor: numbers(len, seed)?.to_dtype(DType::F64)?, first: 0, dims })
}

/// Floats as a view of this many.
fn view(seed: f32, len: u64, first: u64, dims: &[(u64, u64)]) -> Result<Given> {
    Ok(Given { tensor: numbers(len, seed)?.to_dtype(DType::F64)?, first, dims: dims.to_vec() })
}

fn integers(all: &[u32], dims: &[u64]) -> Result<Given> {
    Ok(Given { tensor: Tensor::new(all, &Device::Cpu)?, ..floats(0., dims)? })
}

/// The sum of the results of a node, each times its own number.
fn loss_of(compute: Compute, given: &[Given], len: u64) -> Result<(Graph, Vec<Tensor>)> {
    let element = |t: &Tensor| if t.dtype() == DType::U32 { Element::U32 } else { Element::F32 };
    let input = |t: &Tensor| Input { buffer: 0, element: element(t), len: t.elem_count() as u64, is_constant: false };
    let mut tensors: Vec<Tensor> = given.iter().map(|given| given.tensor.clone()).collect();
    tensors.push(numbers(len, 2.3)?.to_dtype(DType::F64)?);
    let operands = given.iter().enumerate();
    let operands = operands.map(|(at, given)| operand(Value::Input(at), given.first, &given.dims)).collect();
    let node = |compute, operands, len| Node::new(compute, operands, Element::F32, len);
    let function = |function| Compute::Recorded(function);
    let factors = Operand::whole(Value::Input(given.len()), len);
    let products = function(Function::Binary("mul".into()));
    let nodes = vec![
        node(compute, operands, len),
        node(products, vec![Operand::whole(Value::Node(0), len), factors], len),
        node(function(Function::RowSum(len)), vec![Operand::whole(Value::Node(1), len)], 1),
    ];
    let outputs = vec![Output { value: Value::Node(2), buffer: 9 }];
    Ok((Graph { inputs: tensors.iter().map(input).collect(), nodes, outputs }, tensors))
}

fn number(graph: &Graph, tensors: &[Tensor]) -> Result<f64> {
    evaluate(graph, tensors, F64)?[0].flatten_all()?.to_vec1::<f64>().map(|x| x[0])
}

/// Gradients of all inputs of floats are quotients of differences.
fn check_graph(name: &str, graph: &Graph, tensors: &[Tensor]) -> Result<()> {
    const STEP: f64 = 1e-5;
    let wanted: Vec<usize> = (0..tensors.len()).filter(|&at| tensors[at].dtype() == DType::F64).collect();
    assert_eq!(Paths::of(graph, &wanted).missing(), None, "{name}");
    let of = differentiate(graph, tensors, F64, &wanted, &Segments::one(graph))?;
    assert_eq!(of.outputs[0].flatten_all()?.to_vec1::<f64>()?, [number(graph, tensors)?]);
    let narrow = tensors.iter().map(|t| if t.dtype() == DType::F64 { t.to_dtype(DType::F32) } else { Ok(t.clone()) });
    let narrow = narrow.collect::<Result<Vec<_>>>()?;
    // What is computed again has the same bits.
    let [narrow, again] = [1, 2].map(|count| {
        let segments = Segments::of(graph, count);
        differentiate(graph, &narrow, Arithmetic::Typed, &wanted, &segments)
    });
    let (narrow, again) = (narrow?, again?);
    for (gradient, again) in narrow.gradients.iter().zip(&again.gradients) {
        let [gradient, again] = [gradient, again].map(|of| of.as_ref().map(|of| of.flatten_all()?.to_vec1::<f32>()));
        assert_eq!(gradient.transpose()?, again.transpose()?, "{name}");
    }
    for (gradient, narrow) in of.gradients.iter().zip(narrow.gradients) {
        let (Some(gradient), Some(narrow)) = (gradient, narrow) else { continue };
        let gradient = gradient.flatten_all()?;
        let apart = (narrow.flatten_all()?.to_dtype(DType::F64)? - &gradient)?.abs()?.max(0)?.to_scalar::<f64>()?;
        let largest = gradient.abs()?.max(0)?.to_scalar::<f64>()?;
        assert!(apart < 1e-5 * largest.max(1.), "{name}: {apart} in f32");
    }
    for (&at, gradient) in wanted.iter().zip(of.gradients) {
        let values = tensors[at].to_vec1::<f64>()?;
        let gradient = match gradient {
            Some(gradient) => gradient.flatten_all()?.to_vec1::<f64>()?,
            None => vec![0.; values.len()],
        };
        assert_eq!(gradient.len(), values.len(), "{name}, input {at}");
        for place in 0..values.len() {
            let moved = |by: f64| {
                let mut tensors = tensors.to_vec();
                let mut values = values.clone();
                values[place] += by;
                tensors[at] = Tensor::new(values, &Device::Cpu)?;
                number(graph, &tensors)
            };
            let slope = (moved(STEP)? - moved(-STEP)?) / (2. * STEP);
            let apart = (slope - gradient[place]).abs() / slope.abs().max(1.);
            assert!(apart < 1e-7, "{name}, input {at}, element {place}: {} for {slope}", gradient[place]);
        }
    }
    Ok(())
}

fn check_compute(compute: Compute, given: &[Given], len: u64) -> Result<()> {
    let name = format!("{compute:?}");
    let (graph, tensors) = loss_of(compute, given, len)?;
    check_graph(&name, &graph, &tensors)
}

fn check(function: Function, given: &[Given], len: u64) -> Result<()> {
    check_compute(Compute::Recorded(function), given, len)
}

#[test]
fn of_single_elements() -> Result<()> {
    let positive = || {
        let of = floats(0.7, &[2, 6])?;
        Ok::<_, candle::Error>(Given { tensor: (of.tensor.abs()? + 0.2)?, ..of })
    };
    for name in [
        "sqr", "neg", "abs", "relu", "exp", "sin", "cos", "tanh", "silu", "gelu", "gelu_erf", "sigmoid", "erf",
        "normcdf",
    ] {
        check(Function::Unary(name.into()), &[floats(0.7, &[12])?], 12)?;
    }
    for name in ["sqrt", "recip", "log"] {
        check(Function::Unary(name.into()), &[positive()?], 12)?;
    }
    check(Function::Power(2.5), &[positive()?], 12)?;
    check(Function::Elu(0.3), &[floats(0.7, &[12])?], 12)?;
    check(Function::Affine(3., 2.), &[floats(0.7, &[12])?], 12)?;
    check(Function::AffineWide(-0.5, 2.), &[floats(0.7, &[12])?], 12)?;
    check(Function::Copy, &[view(0.7, 32, 3, &[(4, 1), (3, 8)])?], 12)?;
    for name in ["add", "sub", "mul", "div", "min", "max"] {
        // A row that repeats, and a transposed view.
        let row = view(1.3, 5, 1, &[(3, 0), (4, 1)])?;
        check(Function::Binary(name.into()), &[view(0.7, 12, 0, &[(3, 1), (4, 3)])?, row], 12)?;
        check(Function::Binary(name.into()), &[floats(0.7, &[12])?, view(1.3, 4, 0, &[(4, 1), (3, 0)])?], 12)?;
    }
    // Ties everywhere.
    for name in ["min", "max"] {
        check(Function::Binary(name.into()), &[floats(0.7, &[12])?, floats(0.7, &[12])?], 12)?;
    }
    let condition = || integers(&[1, 0, 0, 1, 7, 0, 1, 0, 0, 0, 1, 1], &[12]);
    check(Function::Where, &[condition()?, floats(0.7, &[12])?, view(1.3, 4, 0, &[(3, 0), (4, 1)])?], 12)?;
    check(Function::MaskedFill(2f32.to_bits().into()), &[condition()?, floats(0.7, &[12])?], 12)
}

#[test]
fn of_rows() -> Result<()> {
    check(Function::RowSum(4), &[view(0.7, 12, 0, &[(3, 1), (4, 3)])?], 3)?;
    check(Function::RowMax(4), &[floats(0.7, &[3, 4])?], 3)?;
    check(Function::RowMin(4), &[floats(0.7, &[3, 4])?], 3)?;
    check(Function::Softmax(4), &[view(0.7, 16, 4, &[(3, 4), (4, 1)])?], 12)?;
    check_compute(Compute::RowMean { columns: 4, factor: 0.25 }, &[floats(0.7, &[3, 4])?], 3)?;
    // Rows between others.
    let rows = view(0.7, 24, 4, &[(3, 8), (4, 1)])?;
    check_compute(Compute::LogSoftmaxAt { columns: 4 }, &[rows, integers(&[3, 0, 1], &[3])?], 3)?;
    let all = || view(1.7, 5, 1, &[(3, 0), (4, 1)]);
    check(Function::LayerNorm(4, 1e-3), &[floats(0.7, &[3, 4])?, floats(1.3, &[4])?, floats(1.7, &[4])?], 12)?;
    check(Function::RmsNorm(4, 1e-3), &[floats(0.7, &[3, 4])?, floats(1.3, &[4])?], 12)?;
    for is_rms in [false, true] {
        let norm = || Compute::RowNorm { columns: 4, epsilon: 1e-3, is_rms };
        let sum = Compute::NormOfSum { columns: 4, epsilon: 1e-3, is_rms };
        check_compute(norm(), &[floats(0.7, &[3, 4])?, all()?], 12)?;
        let bias = if is_rms { Vec::new() } else { vec![all()?] };
        let of = |more: Vec<Given>| more.into_iter().chain(bias).collect::<Vec<_>>();
        check_compute(sum, &of(vec![floats(0.7, &[3, 4])?, floats(1.1, &[3, 4])?, floats(1.3, &[4])?]), 12)?;
    }
    for silu in [false, true] {
        let of = Compute::GroupNorm { groups: 2, epsilon: 1e-3, silu };
        check_compute(of, &[floats(0.7, &[2, 4, 3])?, floats(1.3, &[4])?, floats(1.7, &[4])?], 24)?;
    }
    let concat = Compute::Concat { rows: 2, widths: vec![3, 1, 4] };
    check_compute(concat, &[floats(0.7, &[6])?, floats(1.3, &[2])?, view(1.7, 10, 1, &[(2, 5), (4, 1)])?], 16)
}

#[test]
fn of_products() -> Result<()> {
    check(Function::Matmul, &[floats(0.7, &[2, 3, 4])?, floats(1.3, &[2, 4, 5])?], 30)?;
    // A transposed matrix for all of the batch.
    let turned = view(1.3, 20, 0, &[(2, 0), (4, 1), (5, 4)])?;
    check(Function::Matmul, &[view(0.7, 24, 0, &[(2, 1), (3, 8), (4, 2)])?, turned], 30)?;
    let linear = || Compute::Linear { activation: None };
    check_compute(linear(), &[floats(0.7, &[3, 4])?, floats(1.3, &[5, 4])?, floats(1.7, &[5])?], 15)?;
    check_compute(linear(), &[view(0.7, 24, 4, &[(3, 8), (4, 1)])?, floats(1.3, &[5, 4])?], 15)
}

#[test]
fn of_choices() -> Result<()> {
    let select = Function::IndexSelect { left: 2, from: 5, right: 3 };
    check(select, &[floats(0.7, &[2, 5, 3])?, integers(&[4, 0, 4, 1], &[4])?], 24)?;
    let shape = Indexed { left: 2, from: 3, to: 2, right: 2 };
    let ids = || integers(&[2, 0, 1, 2, 0, 0, 2, 1], &[2, 2, 2]);
    check(Function::Gather(shape), &[floats(0.7, &[2, 3, 2])?, ids()?], 8)?;
    let shape = Indexed { left: 2, from: 2, to: 3, right: 2 };
    check(Function::ScatterAdd(shape), &[floats(0.7, &[2, 3, 2])?, ids()?, floats(1.3, &[2, 2, 2])?], 12)?;
    let apart = integers(&[2, 0, 1, 2, 0, 1, 2, 0], &[2, 2, 2])?;
    check(Function::Scatter(shape), &[floats(0.7, &[2, 3, 2])?, apart, floats(1.3, &[2, 2, 2])?], 12)?;
    check(
        Function::IndexAdd(shape),
        &[floats(0.7, &[2, 3, 2])?, integers(&[2, 2], &[2])?, floats(1.3, &[2, 2, 2])?],
        12,
    )?;
    for (is_of_neighbours, heads, angles) in [(false, 1, 0), (true, 1, 0), (false, 2, 0), (false, 1, 2)] {
        let rotary = Rotary { outer: 2, tokens: 3, heads, size: 4, is_of_neighbours, angles };
        let len = 2 * 3 * heads * 4;
        let table = 6 * angles.max(1);
        let (graph, tensors) = loss_of(
            Compute::Recorded(Function::Rotary(rotary)),
            &[floats(0.7, &[len])?, floats(1.3, &[table])?, floats(1.7, &[table])?],
            len,
        )?;
        // Angles have no gradient, and say so.
        assert_eq!(Paths::of(&graph, &[1]).missing(), Some(Missing { node: 0, inputs: vec![1] }));
        let mut tensors = tensors;
        tensors[1..3].iter_mut().try_for_each(|t| t.to_dtype(DType::F32).map(|narrow| *t = narrow))?;
        check_graph(&format!("{rotary:?}"), &graph, &tensors)?;
    }
    Ok(())
}

#[test]
fn of_images() -> Result<()> {
    let window = |kernel, padding, stride, dilation, groups| Window {
        kernel: [kernel; 2],
        padding: [padding; 2],
        stride: [stride; 2],
        dilation: [dilation; 2],
        groups,
    };
    for (window, out) in [
        (window(3, 1, 1, 1, 1), 2u64),
        (window(3, 1, 2, 1, 2), 4),
        (window(2, 0, 1, 2, 4), 4),
        (window(1, 0, 1, 1, 1), 3),
        // Tiles.
        (window(2, 0, 2, 1, 1), 3),
    ] {
        let [rows, columns] = window.windows([6, 8]).unwrap();
        let weight = floats(1.3, &[out, 4 / window.groups, window.kernel[0], window.kernel[1]])?;
        let len = 2 * out * rows * columns;
        for compute in
            [Compute::Recorded(Function::Convolution(window)), Compute::FusedConvolution(Convolution::new(window))]
        {
            check_compute(compute, &[floats(0.7, &[2, 4, 6, 8])?, weight.clone()], len)?;
        }
    }
    for (window, output_padding) in [(window(3, 1, 2, 1, 1), 1), (window(2, 0, 2, 1, 1), 0)] {
        let [rows, columns] = window.transposed([3, 4], [output_padding; 2]).unwrap();
        let weight = floats(1.3, &[4, 3, window.kernel[0], window.kernel[1]])?;
        let function = Function::TransposedConvolution { window, output_padding: [output_padding; 2] };
        check(function, &[floats(0.7, &[2, 4, 3, 4])?, weight], 2 * 3 * window.groups * rows * columns)?;
    }
    for window in [window(2, 0, 2, 1, 1), window(3, 0, 2, 1, 1), window(3, 0, 1, 1, 1)] {
        let [rows, columns] = window.windows([6, 7]).unwrap();
        check(Function::MaxPool(window), &[floats(0.7, &[1, 2, 6, 7])?], 2 * rows * columns)?;
        check(Function::MeanPool(window), &[floats(0.7, &[1, 2, 6, 7])?], 2 * rows * columns)?;
    }
    for window in [window(2, 0, 2, 1, 1), window(3, 1, 2, 1, 1), window(2, 0, 1, 2, 1)] {
        let [rows, columns] = window.windows([6, 7]).unwrap();
        let windows = [1, rows, columns, 2, window.kernel[0], window.kernel[1]];
        check(Function::Unfold(window), &[floats(0.7, &[1, 2, 6, 7])?], windows.iter().product())?;
        let [h, w] = window.transposed([rows, columns], [0; 2]).unwrap();
        check(Function::Fold(window), &[floats(0.7, &windows)?], 2 * h * w)?;
    }
    check(Function::UpsampleNearest([7, 6]), &[floats(0.7, &[1, 2, 3, 4])?], 84)?;
    check_compute(Compute::UpsampleNearest([6, 8]), &[floats(0.7, &[1, 2, 3, 4])?], 96)?;
    for is_aligned in [false, true] {
        let step = if is_aligned { [0.4, 0.6] } else { [0.5, 2. / 3.] };
        let of = Bilinear { size: [6, 6], step, is_aligned };
        check(Function::UpsampleBilinear(of), &[floats(0.7, &[1, 2, 3, 4])?], 72)?;
    }
    Ok(())
}

#[test]
fn of_attention() -> Result<()> {
    let heads = |seed, tokens: u64, heads: u64| {
        // Heads inside of tokens, as products give them.
        view(seed, 2 * tokens * heads * 4, 0, &[(2, tokens * heads * 4), (heads, 4), (tokens, heads * 4), (4, 1)])
    };
    let with = |scores: Scores, of_keys: u64, more: Vec<Given>| {
        let given = [heads(0.7, 3, 4)?, heads(1.3, 5, of_keys)?, heads(1.7, 5, of_keys)?];
        check_compute(Compute::Attention(scores), &given.into_iter().chain(more).collect::<Vec<_>>(), 96)
    };
    with(Scores::of(0.6), 4, Vec::new())?;
    with(Scores::of(0.6), 2, Vec::new())?;
    with(Scores::of(0.6), 1, Vec::new())?;
    let bias = || view(1.1, 60, 0, &[(2, 0), (4, 15), (3, 5), (5, 1)]);
    with(Scores { masks: vec![Mask::Added(1.)], ..Scores::of(0.6) }, 4, vec![bias()?])?;
    with(Scores { masks: vec![Mask::Added(-0.5)], cap: Some(1.5), ..Scores::of(0.6) }, 2, vec![bias()?])?;
    let hidden = || {
        let all: Vec<u32> = (0..15).map(|at| u32::from(at % 4 == 1)).collect();
        Ok::<_, candle::Error>(Given { dims: vec![(2, 0), (4, 0), (3, 5), (5, 1)], ..integers(&all, &[15])? })
    };
    for number in [f32::NEG_INFINITY, 0.3] {
        for where_zero in [false, true] {
            let masks = vec![Mask::Filled { number, where_zero }];
            with(Scores { masks, ..Scores::of(0.6) }, 4, vec![hidden()?])?;
        }
    }
    let masks = vec![Mask::Replaced { where_zero: false }, Mask::Added(1.)];
    with(Scores { masks, ..Scores::of(0.6) }, 4, vec![hidden()?, bias()?, bias()?])?;
    let factor = view(0.9, 1, 0, &[(2, 0), (4, 0), (3, 0), (4, 0)])?;
    let divisor = view(0.4, 1, 0, &[(1, 1)])?;
    with(Scores { are_divisors: vec![false, true], ..Scores::of(0.6) }, 2, vec![factor, divisor])
}

/// A batch norm, whose moments are its operand's, beside a product of the moments.
#[test]
fn of_batch_norms() -> Result<()> {
    let node = |compute, operands, len| Node::new(compute, operands, Element::F32, len);
    let whole = |at, len| Operand::whole(Value::Node(at), len);
    let activated = || Compute::ActivatedBatchNorm { epsilon: 1e-3, activation: "silu".into() };
    let norm = || Compute::BatchNorm { epsilon: 1e-3 };
    let all = [(true, 4), (false, 4), (true, 1)].map(|of| [(of, norm()), (of, activated())]);
    for ((is_scaled, pixels), compute) in all.into_iter().flatten() {
        let len = 6 * pixels;
        // Images of 3 channels, as they are and with their channels beside each other.
        for strides in [[3 * pixels, pixels, 1], [3 * pixels, 1, 3]] {
            let x = operand(Value::Input(0), 0, &[(2, strides[0]), (3, strides[1]), (pixels, strides[2])]);
            let vector = |at| operand(Value::Input(at), 0, &[(3, 1)]);
            let vectors = if is_scaled { vec![vector(1), vector(2)] } else { Vec::new() };
            let product = || Compute::Recorded(Function::Binary("mul".into()));
            let sum = |len| Compute::Recorded(Function::RowSum(len));
            let nodes = vec![
                node(Compute::BatchMoments { variance: Some(1) }, vec![x.clone()], 3),
                node(Compute::BatchMoments { variance: None }, vec![x.clone()], 3),
                node(compute.clone(), [vec![x, whole(0, 3), whole(1, 3)], vectors].concat(), len),
                node(product(), vec![whole(2, len), Operand::whole(Value::Input(3), len)], len),
                node(sum(len), vec![whole(3, len)], 1),
                node(product(), vec![whole(0, 3), whole(1, 3)], 3),
                node(sum(3), vec![whole(5, 3)], 1),
                node(Compute::Recorded(Function::Binary("add".into())), vec![whole(4, 1), whole(6, 1)], 1),
            ];
            let tensors = [(len, 0.7), (3, 1.3), (3, 1.7), (len, 2.3)];
            let tensors = tensors.map(|(len, seed)| numbers(len, seed)?.to_dtype(DType::F64));
            let tensors = tensors.into_iter().collect::<Result<Vec<_>>>()?;
            let input =
                |t: &Tensor| Input { buffer: 0, element: Element::F32, len: t.elem_count() as u64, is_constant: true };
            let outputs = vec![Output { value: Value::Node(7), buffer: 9 }];
            let graph = Graph { inputs: tensors.iter().map(input).collect(), nodes, outputs };
            check_graph(&format!("batch norm, {strides:?}"), &graph, &tensors)?;
        }
    }
    Ok(())
}

/// Several readers of one value, in part and as a whole, and values that depend on no wanted input.
#[test]
fn of_several_nodes() -> Result<()> {
    let node = |function, operands, len| Node::new(Compute::Recorded(function), operands, Element::F32, len);
    let whole = |value, len| Operand::whole(value, len);
    let unary = |name: &str| Function::Unary(name.into());
    let (x, y) = (Value::Input(0), Value::Input(1));
    let slice = |value, first| operand(value, first, &[(3, 4), (2, 1)]);
    let nodes = vec![
        node(
            Function::Matmul,
            vec![operand(x, 0, &[(1, 0), (3, 4), (4, 1)]), operand(y, 0, &[(1, 0), (4, 1), (4, 4)])],
            12,
        ),
        node(unary("tanh"), vec![slice(Value::Node(0), 0)], 6),
        node(Function::Binary("mul".into()), vec![whole(Value::Node(1), 6), slice(Value::Node(0), 2)], 6),
        node(unary("exp"), vec![whole(y, 16)], 16),
        node(unary("floor"), vec![whole(y, 16)], 16),
        node(Function::Binary("add".into()), vec![whole(Value::Node(3), 16), whole(Value::Node(4), 16)], 16),
        node(Function::RowSum(16), vec![whole(Value::Node(5), 16)], 1),
        node(Function::RowSum(6), vec![whole(Value::Node(2), 6)], 1),
        node(Function::Binary("add".into()), vec![whole(Value::Node(6), 1), whole(Value::Node(7), 1)], 1),
    ];
    let input = |len| Input { buffer: 0, element: Element::F32, len, is_constant: true };
    let output = |of| Output { value: Value::Node(of), buffer: 9 };
    let mut graph = Graph { inputs: vec![input(12), input(16), input(4)], nodes, outputs: vec![output(8), output(4)] };
    let tensors = [(12, 0.7), (16, 1.3), (4, 0.2)].map(|(len, seed)| numbers(len, seed)?.to_dtype(DType::F64));
    let tensors = tensors.into_iter().collect::<Result<Vec<_>>>()?;
    check_graph("several nodes", &graph, &tensors)?;
    assert_eq!(Paths::of(&graph, &[0, 1, 2]).reached(), [true, true, false], "nothing reads the last input");
    assert!(differentiate(&graph, &tensors, F64, &[1], &Segments::one(&graph))?.gradients[0].is_some());
    graph.outputs = vec![output(4)];
    assert_eq!(Paths::of(&graph, &[0, 1]).reached(), [false, false], "it is constant in pieces");
    Ok(())
}

#[test]
fn of_products_of_activations() -> Result<()> {
    for activation in ["relu", "gelu", "gelu_erf", "silu"] {
        let compute = || Compute::ActivatedProduct { activation: activation.into() };
        let (x, weight) = (floats(0.7, &[3, 4])?, floats(1.3, &[2, 4])?);
        check_compute(compute(), &[x.clone(), weight.clone(), floats(1.7, &[2])?], 6)?;
        check_compute(compute(), &[x, weight], 6)?;
    }
    Ok(())
}

#[test]
fn of_products_with_summands() -> Result<()> {
    let (x, weight, summand) = (floats(0.7, &[3, 4])?, floats(1.3, &[2, 4])?, floats(0.2, &[6])?);
    for factor in [1., -1.5] {
        let compute = || Compute::ProductSum { factor };
        check_compute(compute(), &[x.clone(), weight.clone(), summand.clone()], 6)?;
        check_compute(compute(), &[x.clone(), weight.clone(), floats(1.7, &[2])?, summand.clone()], 6)?;
    }
    Ok(())
}

/// Products whose rows are padded have the numbers and gradients that they had.
#[test]
fn of_padded_products() -> Result<()> {
    let [rows, inner, columns] = [64, 3, 5];
    let of = |compute, operands, element, len| Node::new(compute, operands, element, len);
    let whole = |value, dims: &[(u64, u64)]| operand(value, 0, dims);
    let bf16 = |len| Input { buffer: 0, element: Element::Bf16, len, is_constant: true };
    let ids = Input { buffer: 0, element: Element::U32, len: rows, is_constant: false };
    let product = vec![
        whole(Value::Input(0), &[(rows, inner), (inner, 1)]),
        whole(Value::Input(1), &[(columns, inner), (inner, 1)]),
        whole(Value::Input(2), &[(columns, 1)]),
    ];
    let at = vec![whole(Value::Node(0), &[(rows, columns), (columns, 1)]), whole(Value::Input(3), &[(rows, 1)])];
    let sum = Compute::Recorded(Function::RowSum(rows));
    let graph = Graph {
        inputs: vec![bf16(rows * inner), bf16(columns * inner), bf16(columns), ids],
        nodes: vec![
            of(Compute::Linear { activation: None }, product, Element::Bf16, rows * columns),
            of(Compute::LogSoftmaxAt { columns }, at, Element::F32, rows),
            of(sum, vec![whole(Value::Node(1), &[(rows, 1)])], Element::F32, 1),
        ],
        outputs: vec![Output { value: Value::Node(2), buffer: 0 }],
    };
    let mut padded = graph.clone();
    padded.pad_products();
    assert_eq!(padded.nodes.len(), 7);
    assert_eq!(padded.nodes[4].len, rows * 8);
    let classes: Vec<u32> = (0..rows as u32).map(|row| row * 7 % columns as u32).collect();
    let numbers = |len, seed| numbers(len, seed)?.to_dtype(DType::F64);
    let inputs = [
        numbers(rows * inner, 0.7)?,
        numbers(columns * inner, 1.3)?,
        numbers(columns, 1.7)?,
        Tensor::new(classes, &Device::Cpu)?,
    ];
    let [a, b] = [&graph, &padded].map(|graph| differentiate(graph, &inputs, F64, &[0, 1, 2], &Segments::one(graph)));
    let (a, b) = (a?, b?);
    let all = |of: Differentiated| of.outputs.into_iter().chain(of.gradients.into_iter().flatten());
    let [a, b] = [all(a).collect::<Vec<_>>(), all(b).collect::<Vec<_>>()];
    assert_eq!((a.len(), b.len()), (4, 4));
    for (a, b) in a.iter().zip(&b) {
        let apart = (a.flatten_all()? - b.flatten_all()?)?.abs()?.max(0)?.to_scalar::<f64>()?;
        assert!(apart < 1e-12, "{apart}");
    }
    Ok(())
}

/// Parts of rows that lie beside each other, in any order and with dimensions in another one, are one tensor.
#[test]
fn of_parts_of_rows() -> Result<()> {
    let x = floats(0.7, &[3, 8])?;
    let parts = [operand(Value::Input(0), 3, &[(5, 1), (3, 8)]), operand(Value::Input(0), 0, &[(3, 8), (3, 1)])];
    let nodes = parts.iter().map(|part| node(Function::Unary("sqr".into()), vec![part.clone()], part.len()));
    let mut nodes: Vec<Node> = nodes.collect();
    for (at, part) in parts.iter().enumerate() {
        nodes.push(node(Function::RowSum(part.len()), vec![Operand::whole(Value::Node(at), part.len())], 1));
    }
    let sums = [2, 3].map(|at| Operand::whole(Value::Node(at), 1)).to_vec();
    nodes.push(node(Function::Binary("mul".into()), sums, 1));
    let outputs = vec![Output { value: Value::Node(4), buffer: 0 }];
    check_graph("parts", &Graph { inputs: vec![super::input(24, false)], nodes, outputs }, &[x.tensor])
}
