//! Tensors of a pass that it overwrites in part.

use super::*;

/// 3 rows of 4, of which the pass overwrites a part when it has read them: `exp(x)`, or zeros.
fn overwritten(is_zeros: bool, from: &[(u64, u64)], (first, to): (u64, &[(u64, u64)])) -> Result<Whole, usize> {
    let mut maker = Maker::default();
    let x = maker.buffer(12, Role::Input(0));
    let y = match is_zeros {
        true => maker.made(Function::Zeros, Vec::new(), 12),
        false => maker.made(Function::Unary("exp".into()), vec![all(x, 12)], 12),
    };
    let earlier = maker.made(Function::Unary("tanh".into()), vec![all(y, 12)], 12);
    maker.op(Function::Copy, vec![view(x, 0, from)], view(y, first, to));
    let sum = maker.made(binary("add"), vec![all(y, 12), all(earlier, 12)], 12);
    maker.output(sum);
    whole(&maker.0, [])
}

#[test]
fn a_tensor_that_is_overwritten_in_part_is_another_one() {
    let graph = overwritten(false, &[(2, 4), (2, 1)], (4, &[(4, 1)])).unwrap().graph;
    let [_, tanh, concat, sum] = &graph.nodes[..] else { panic!("{graph:?}") };
    // The part, in one row between the elements before it and those behind it.
    assert_eq!(concat.compute, Compute::Concat { rows: 1, widths: vec![4, 4, 4] });
    assert_eq!(tanh.operands[0].value, Value::Node(0));
    assert_eq!([sum.operands[0].value, sum.operands[1].value], [Value::Node(2), Value::Node(1)]);
}

#[test]
fn zeros_are_overwritten_in_all_rows() {
    let columns = [(3, 4), (2, 1)];
    let graph = overwritten(true, &columns, (1, &columns)).unwrap().graph;
    let concat = graph.nodes.iter().map(|node| &node.compute).find(|of| matches!(of, Compute::Concat { .. }));
    assert_eq!(concat, Some(&Compute::Concat { rows: 3, widths: vec![1, 2, 1] }));
    // Columns of some rows are not followed.
    assert_eq!(overwritten(true, &[(2, 4), (2, 1)], (5, &[(2, 4), (2, 1)])), Err(2));
}
