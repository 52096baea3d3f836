//! Elements that others name, and their order.

use candle::{DType, Device, Result, Tensor};
use opara_plan::rewrite::{Compute, Graph, Input, Node, Output, Value};
use opara_plan::trace::{Element, Function, Indexed, Order};

use super::{evaluate, input, largest_difference, numbers, operand};
use crate::rewrite::evaluate::Arithmetic;

/// Elements are named, sorted and compared as by candle, in both arithmetics.
#[test]
fn places_are_those_of_candle() -> Result<()> {
    let shape = Indexed { left: 2, from: 5, to: 3, right: 4 };
    let (x, ids) = (numbers(40, 0.7)?, Tensor::new(&[3u32, 0, 4], &Device::Cpu)?);
    let each = Tensor::from_iter((0..24u32).map(|at| at * 3 % 5), &Device::Cpu)?;
    let back = Indexed { from: 3, to: 5, ..shape };
    let new = numbers(24, 1.3)?;
    let [wide, narrow, named] = [x.reshape((2, 5, 4))?, new.reshape((2, 3, 4))?, each.reshape((2, 3, 4))?];
    let rows = x.reshape((8, 5))?;
    let cases = [
        (Function::Gather(shape), vec![&x, &each], wide.gather(&named, 1)?),
        (Function::IndexAdd(back), vec![&x, &ids, &new], wide.index_add(&ids, &narrow, 1)?),
        (Function::ScatterAdd(back), vec![&x, &each, &new], wide.scatter_add(&named, &narrow, 1)?),
        (Function::Scatter(back), vec![&x, &each, &new], wide.scatter(&named, &narrow, 1)?),
        (Function::ArgSort(5, Order::Ascending), vec![&x], rows.arg_sort_last_dim(true)?),
        (Function::ArgSort(5, Order::Descending), vec![&x], rows.arg_sort_last_dim(false)?),
        (Function::ArgMax(5), vec![&x], rows.argmax(1)?),
        (Function::ArgMin(5), vec![&x], rows.argmin(1)?),
        (Function::Binary("ge".into()), vec![&x, &x], x.ge(&x)?),
    ];
    for (function, operands, expected) in cases {
        let of = |dtype: DType| match dtype {
            DType::U8 => Element::U8,
            DType::U32 => Element::U32,
            _ => Element::F32,
        };
        let lens = operands.iter().map(|operand| operand.elem_count() as u64).collect::<Vec<_>>();
        let inputs = operands.iter().zip(&lens).map(|(t, &len)| Input { element: of(t.dtype()), ..input(len, false) });
        let views = lens.iter().enumerate().map(|(at, &len)| operand(Value::Input(at), 0, &[(len, 1)]));
        let computed = Compute::Recorded(function.clone());
        let len = expected.elem_count() as u64;
        let nodes = vec![Node::new(computed, views.collect(), of(expected.dtype()), len)];
        let outputs = vec![Output { value: Value::Node(0), buffer: 9 }];
        let graph = Graph { inputs: inputs.collect(), nodes, outputs };
        let operands: Vec<Tensor> = operands.into_iter().cloned().collect();
        for arithmetic in [Arithmetic::Typed, Arithmetic::In(DType::F64)] {
            let got = evaluate(&graph, &operands, arithmetic)?[0].to_dtype(expected.dtype())?;
            assert_eq!(largest_difference(&got, &expected)?, 0., "{function:?}, {arithmetic:?}");
        }
    }
    Ok(())
}
