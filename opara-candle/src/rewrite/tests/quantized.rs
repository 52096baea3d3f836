//! Products with quantised weights.

use candle::quantized::{GgmlDType, QTensor};
use opara_plan::trace::BlockType;

use super::*;
use crate::ops::BLOCK_TYPES;

const INNER: u64 = 512;

fn blocks_of(dtype: GgmlDType, rows: usize, seed: f32) -> Result<Tensor> {
    let weight = (numbers(rows as u64 * INNER, seed)?.reshape((rows, INNER as usize))? * 0.05)?;
    let bytes = QTensor::quantize(&weight, dtype)?.data()?.into_owned();
    // candle pads each weight.
    let padded = [&bytes[..], &[0; 99]].concat();
    Tensor::from_vec(padded, bytes.len() + 99, &Device::Cpu)
}

/// A norm, a gated unit or products of which one is added to, in each type.
fn layer(blocks: BlockType, rows: u64, is_gated: bool) -> Graph {
    let of_row = blocks.bytes_of_row(INNER).unwrap();
    let x = operand(Value::Input(0), 0, &[(rows * INNER, 1)]);
    let scale = operand(Value::Input(1), 0, &[(INNER, 1)]);
    let of_rows = |node: usize| operand(Value::Node(node), 0, &[(rows, INNER), (INNER, 1)]);
    let weight = |input: usize| operand(Value::Input(input), 0, &[(64, of_row), (of_row, 1)]);
    let all = |node: usize| operand(Value::Node(node), 0, &[(rows * 64, 1)]);
    let product = |input| node(Function::QuantizedProduct(blocks), vec![of_rows(0), weight(input)], rows * 64);
    let mut nodes = vec![node(Function::RmsNorm(INNER, 1e-5), vec![x, scale], rows * INNER), product(2), product(3)];
    if is_gated {
        nodes.push(node(Function::Unary("silu".into()), vec![all(1)], rows * 64));
        nodes.push(node(Function::Binary("mul".into()), vec![all(3), all(2)], rows * 64));
    } else {
        nodes.push(node(Function::Unary("sqr".into()), vec![all(1)], rows * 64));
        nodes.push(node(Function::Binary("add".into()), vec![all(2), all(3)], rows * 64));
    }
    let blocks = Input { element: Element::U8, ..input(64 * of_row + 99, true) };
    let inputs = vec![input(rows * INNER, false), input(INNER, true), blocks.clone(), blocks];
    Graph { inputs, nodes, outputs: vec![Output { value: Value::Node(4), buffer: 9 }] }
}

#[test]
fn products_of_every_type_are_those_with_the_elements() -> Result<()> {
    for (blocks, dtype) in BlockType::ALL.into_iter().zip(BLOCK_TYPES) {
        assert_eq!((blocks.bytes(), blocks.elements()), (dtype.type_size() as u64, dtype.block_size() as u64));
        for (rows, is_gated) in [(1, true), (3, true), (1, false), (3, false), (9, true)] {
            let graph = layer(blocks, rows, is_gated);
            let mut changed = graph.clone();
            let rules = if rows > 8 { 0 } else { 3 };
            assert_eq!(apply(&mut changed, &[]), rules, "{blocks:?}, {rows} rows");
            let inputs = [
                numbers(rows * INNER, 0.37)?,
                numbers(INNER, 0.7)?,
                blocks_of(dtype, 64, 1.7)?,
                blocks_of(dtype, 64, 2.3)?,
            ];
            let reference = &evaluate(&graph, &inputs, Arithmetic::In(DType::F64))?[0];
            // candle rounds rows to 8 bits, and this library scales to f16.
            for (graph, most) in [(&graph, 0.05), (&changed, if rows > 8 { 0.05 } else { 2e-3 })] {
                let got = &evaluate(graph, &inputs, Arithmetic::Typed)?[0];
                let difference = largest_difference(got, reference)?;
                assert!(difference < most, "{blocks:?}, {rows} rows, gated {is_gated}: {difference}");
            }
        }
    }
    Ok(())
}

/// Products of many rows with blocks that lie anywhere are candle's with its own copy of the weight, bit for bit.
#[cfg(feature = "cuda")]
#[test]
fn products_of_many_rows_are_candles() -> Result<()> {
    use candle::quantized::{QMatMul, QStorage};
    use candle::Module;

    use crate::cuda::driver::block_product;

    let Some(device) = crate::test_device::gpu() else { return Ok(()) };
    for dtype in BLOCK_TYPES {
        for (rows, out) in [(9, 128), (32, 70), (130, 300)] {
            let weight = (Tensor::randn(0f32, 1., (out, INNER as usize), &Device::Cpu)? * 0.05)?;
            let data = QTensor::quantize(&weight, dtype)?.data()?.into_owned();
            let blocks = Tensor::from_vec(data.clone(), (out, data.len() / out), &device)?;
            let x = Tensor::randn(0f32, 1., (rows, INNER as usize), &device)?;
            let storage = QStorage::from_data(data.into(), &device, dtype)?;
            let expected = QMatMul::from_qtensor(QTensor::new(storage, weight.shape())?)?.forward(&x)?;
            let given = block_product(&x, &blocks, dtype)?.expect("candle has a kernel for each of these types");
            assert_eq!(given.to_vec2::<f32>()?, expected.to_vec2::<f32>()?, "{dtype:?}, {rows} rows");
        }
    }
    Ok(())
}
