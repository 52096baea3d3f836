//! Products with quantised weights.

use super::*;
use crate::rewrite::ProductEnd;
use crate::trace::BlockType;

const INNER: u64 = 256;

/// The bytes of a weight with `columns` rows of `INNER` elements.
fn weight(maker: &mut Maker, blocks: BlockType, columns: u64) -> View {
    let of_row = blocks.bytes_of_row(INNER).unwrap();
    let buffer = maker.weight(columns * of_row);
    maker.0.buffers[buffer].bytes = columns * of_row;
    View { element: Element::U8, ..view(buffer, 0, &[(columns, of_row), (of_row, 1)]) }
}

/// The product of `rows` rows with a weight, `columns` results each.
fn product(maker: &mut Maker, blocks: BlockType, x: BufferId, [rows, columns]: [u64; 2]) -> BufferId {
    let weight = weight(maker, blocks, columns);
    let x = view(x, 0, &[(rows, INNER), (INNER, 1)]);
    maker.made(Function::QuantizedProduct(blocks), vec![x, weight], rows * columns)
}

fn normed(maker: &mut Maker, rows: u64) -> BufferId {
    let (x, scale) = (maker.buffer(rows * INNER, Role::Input(0)), maker.weight(INNER));
    maker.made(Function::RmsNorm(INNER, 1e-6), vec![all(x, rows * INNER), all(scale, INNER)], rows * INNER)
}

/// The rules that fitted, and what is computed, node by node.
fn changed(trace: &Trace) -> (Vec<&'static str>, Vec<Compute>) {
    let mut graph = regions(trace)[0].graph.clone();
    let names = apply(&mut graph, &[]).into_iter().map(|(name, _)| name).collect();
    let live = graph.live();
    let nodes = graph.nodes.iter().zip(live).filter(|(_, is_live)| *is_live);
    (names, nodes.map(|(node, _)| node.compute.clone()).collect())
}

fn own(blocks: BlockType, norm: Option<f32>, end: ProductEnd) -> Compute {
    Compute::QuantizedProduct { blocks, norm, end }
}

#[test]
fn a_gated_unit_behind_a_norm_is_one_launch() {
    for (rows, is_fitting) in [(1, true), (8, true), (9, false)] {
        let mut maker = Maker::default();
        let x = normed(&mut maker, rows);
        let [gate, up] = [0, 1].map(|_| product(&mut maker, BlockType::Q4K, x, [rows, 96]));
        let gate = maker.made(Function::Unary("silu".into()), vec![all(gate, rows * 96)], rows * 96);
        let y = maker.made(binary("mul"), vec![all(gate, rows * 96), all(up, rows * 96)], rows * 96);
        maker.output(y);
        let (names, nodes) = changed(&maker.0);
        if is_fitting {
            assert_eq!(names, ["quantized-product", "quantized-gate", "quantized-norm"]);
            assert_eq!(nodes, [own(BlockType::Q4K, Some(1e-6), ProductEnd::Gate("silu".into()))]);
        } else {
            assert_eq!((names.len(), nodes.len()), (0, 5), "{rows} rows");
        }
    }
}

#[test]
fn products_of_one_row_are_one_and_those_of_another_type_stay_apart() {
    let mut maker = Maker::default();
    let x = normed(&mut maker, 1);
    let types = [BlockType::Q4K, BlockType::Q4K, BlockType::Q6K];
    let made = types.map(|blocks| product(&mut maker, blocks, x, [1, 64]));
    let views = made.map(|made| all(made, 64)).to_vec();
    let sum = maker.made(binary("sub"), views[..2].to_vec(), 64);
    let y = maker.made(binary("div"), vec![all(sum, 64), views[2].clone()], 64);
    maker.output(y);
    let (names, nodes) = changed(&maker.0);
    assert_eq!(names, ["quantized-product", "quantized-products-of-one", "quantized-norm"]);
    let Compute::QuantizedProduct { blocks, norm, end: ProductEnd::Others(others) } = &nodes[0] else {
        panic!("{nodes:?}")
    };
    assert_eq!((*blocks, *norm, others.len()), (BlockType::Q4K, Some(1e-6), 1));
    assert!(nodes.contains(&own(BlockType::Q6K, Some(1e-6), ProductEnd::Nothing)), "{nodes:?}");
    assert!(!nodes.iter().any(|of| matches!(of, Compute::Recorded(Function::RmsNorm(..)))));
}

#[test]
fn a_sum_is_part_of_the_product_and_a_norm_that_others_read_is_not() {
    let mut maker = Maker::default();
    let x = normed(&mut maker, 2);
    let y = product(&mut maker, BlockType::Q8_0, x, [2, INNER]);
    let y = maker.made(binary("add"), vec![all(x, 2 * INNER), all(y, 2 * INNER)], 2 * INNER);
    maker.output(y);
    let (names, nodes) = changed(&maker.0);
    assert_eq!(names, ["quantized-product", "quantized-sum"]);
    assert_eq!(nodes[1..], [own(BlockType::Q8_0, None, ProductEnd::Sum)]);
}

/// What rounds rows for a launch that is not taken stays with it.
#[test]
fn a_run_does_not_end_within_a_call() {
    let mut maker = Maker::default();
    let x = normed(&mut maker, 1);
    let y = maker.made(Function::Unary("silu".into()), vec![all(x, INNER)], INNER);
    let scratch = maker.buffer(64, Role::External);
    let mut part = maker.0.ops[0].clone();
    part.meaning = Some(Meaning::part().into());
    part.accesses = vec![Access { buffer: scratch, region: Bytes::contiguous(0, 64), mode: AccessMode::Write }];
    let last = Op { meaning: None, ..part.clone() };
    maker.0.ops.extend([part, last]);
    maker.output(y);
    let found = regions(&maker.0);
    assert_eq!((found.len(), found[0].ops.clone()), (1, 0..2));
}

/// A rounding may change which logit is the largest: the run before it is judged by the logits.
#[test]
fn a_run_ends_before_floats_are_compared() {
    for function in [Function::ArgMax(INNER), Function::ArgSort(INNER, crate::trace::Order::Descending), binary("lt")] {
        let mut maker = Maker::default();
        let x = normed(&mut maker, 1);
        let y = maker.made(function, vec![all(x, INNER)], INNER);
        maker.output(y);
        assert_eq!(regions(&maker.0)[0].ops, 0..1);
        assert!(whole(&maker.0, []).is_ok());
    }
}
