//! Fills, and pools of images between them.

use super::images::{all, concat};
use super::*;

fn fill(number: f32, len: u64) -> Node {
    node(Function::Fill(number.to_bits().into()), vec![], len)
}

/// A pool of two images of 3 channels of 7 x 5 between copies of a number: a row above and two below, a column to the right.
fn padded(number: f32, stride: u64, is_max: bool) -> Graph {
    let window = Window { stride: [stride; 2], ..window(0, 1) };
    let [rows, columns] = [10, 6].map(|len| (len - 3) / stride + 1);
    let image = operand(Value::Node(4), 0, &[(2, 180), (3, 60), (10, 6), (6, 1)]);
    let function = if is_max { Function::MaxPool(window) } else { Function::MeanPool(window) };
    let nodes = vec![
        fill(number, 30),
        fill(number, 60),
        fill(number, 60),
        concat(vec![all(Value::Node(0), 30), all(Value::Input(0), 210), all(Value::Node(1), 60)], 6, &[5, 35, 10]),
        concat(vec![all(Value::Node(3), 300), all(Value::Node(2), 60)], 60, &[5, 1]),
        node(function, vec![image], 6 * rows * columns),
    ];
    Graph { inputs: vec![input(210, false)], nodes, outputs: vec![Output { value: Value::Node(5), buffer: 9 }] }
}

fn changed(graph: &Graph) -> Graph {
    let mut changed = graph.clone();
    assert_eq!(apply(&mut changed, &[]), 1);
    assert_eq!(changed.live().iter().filter(|live| **live).count(), 1);
    changed
}

#[test]
fn pools_with_padding_compute_the_same() -> Result<()> {
    let below_zero = (numbers(210, 0.7)? - 3.)?;
    // Images whose channels lie beside each other.
    let last = below_zero.reshape((2, 3, 7, 5))?.permute((0, 2, 3, 1))?.contiguous()?.permute((0, 3, 1, 2))?;
    for (number, is_max) in [(f32::NEG_INFINITY, true), (f32::MIN, true), (0., false)] {
        for stride in [1, 2] {
            let graph = padded(number, stride, is_max);
            let reference = &evaluate(&graph, std::slice::from_ref(&below_zero), Arithmetic::In(DType::F64))?[0];
            let recorded = &evaluate(&graph, std::slice::from_ref(&below_zero), Arithmetic::Typed)?[0];
            assert!(largest_difference(recorded, reference)? < 1e-6, "{number}, stride {stride}");
            for x in [&below_zero, &last] {
                for arithmetic in [Arithmetic::Typed, Arithmetic::In(DType::F64)] {
                    let got = &evaluate(&changed(&graph), std::slice::from_ref(x), arithmetic)?[0];
                    assert!(largest_difference(got, reference)? < 1e-6, "{number}, stride {stride}, {arithmetic:?}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn maxima_beside_copies_of_edges_are_those_of_the_image() -> Result<()> {
    // Two images of 3 channels of 7 x 5; beside each column or row at an edge a copy of it.
    let of = |value, first: u64, dims: [u64; 2], row| operand(value, first, &[(dims[0], row), (dims[1], 1)]);
    let (x, wide) = (Value::Input(0), Value::Node(0));
    let image = operand(Value::Node(1), 0, &[(2, 189), (3, 63), (9, 7), (7, 1)]);
    let window = Window { stride: [2; 2], ..window(0, 1) };
    let nodes = vec![
        concat(vec![of(x, 0, [42, 1], 5), all(x, 210), of(x, 4, [42, 1], 5)], 42, &[1, 5, 1]),
        concat(vec![of(wide, 0, [6, 7], 49), all(wide, 294), of(wide, 42, [6, 7], 49)], 6, &[7, 49, 7]),
        node(Function::MaxPool(window), vec![image], 6 * 4 * 3),
    ];
    let outputs = vec![Output { value: Value::Node(2), buffer: 9 }];
    let graph = Graph { inputs: vec![input(210, false)], nodes, outputs };
    let below_zero = (numbers(210, 0.7)? - 3.)?;
    let maxima = |graph| -> Result<Vec<f32>> {
        evaluate(graph, std::slice::from_ref(&below_zero), Arithmetic::Typed)?[0].flatten_all()?.to_vec1()
    };
    assert_eq!(maxima(&graph)?, maxima(&changed(&graph))?);
    Ok(())
}

#[test]
fn what_is_not_finite_is_pooled_alike() -> Result<()> {
    let mut values = numbers(210, 0.7)?.to_vec1::<f32>()?;
    (values[3], values[40], values[100]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
    // A plane of minus infinity.
    values[175..].fill(f32::NEG_INFINITY);
    let x = Tensor::from_vec(values, 210, &Device::Cpu)?;
    let graph = padded(f32::NEG_INFINITY, 1, true);
    let numbers = |graph| -> Result<Vec<f32>> {
        evaluate(graph, std::slice::from_ref(&x), Arithmetic::Typed)?[0].flatten_all()?.to_vec1()
    };
    let (before, after) = (numbers(&graph)?, numbers(&changed(&graph))?);
    let bits = |numbers: &[f32]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&before), bits(&after));
    assert!(after.iter().any(|x| x.is_nan()) && after.contains(&f32::NEG_INFINITY));
    Ok(())
}

#[test]
fn fills_have_the_bits_that_were_recorded() -> Result<()> {
    // Numbers of each type, times one from before.
    let fills = [(Element::F16, 0xc100, -2.5), (Element::Bf16, 0xc020, -2.5), (Element::F32, 0xc020_0000, -2.5)];
    let integers = [(Element::U8, 200, 200.), (Element::U32, 70_000, 70_000.), (Element::I64, u64::MAX, -1.)];
    for (element, bits, number) in fills.into_iter().chain(integers) {
        let filled = Node { element, ..node(Function::Fill(bits), vec![], 4) };
        let nodes = vec![
            filled,
            node(Function::Copy, vec![all(Value::Node(0), 4)], 4),
            node(Function::Binary("mul".into()), vec![all(Value::Node(1), 4), all(Value::Input(0), 4)], 4),
        ];
        let outputs = vec![Output { value: Value::Node(2), buffer: 9 }];
        let graph = Graph { inputs: vec![input(4, false)], nodes, outputs };
        for arithmetic in [Arithmetic::Typed, Arithmetic::In(DType::F64)] {
            let got = &evaluate(&graph, &[Tensor::ones(4, DType::F32, &Device::Cpu)?], arithmetic)?[0];
            assert_eq!(got.to_dtype(DType::F64)?.to_vec1::<f64>()?, [number; 4], "{element:?}, {arithmetic:?}");
        }
    }
    Ok(())
}
