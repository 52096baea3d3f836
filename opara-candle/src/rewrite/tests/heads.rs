//! Attention whose operands were products and copies.

use opara_plan::rewrite::Changes;

use super::super::alone::said_against;
use super::super::choice::choose;
use super::super::set::{joined, Set};
use super::super::settling::Settling;
use super::*;

/// Attention of two items of 2 heads of 32 for 6 tokens, as candle runs it: queries, keys and values are products of one operand of 16
/// columns, the first with a bias, copied into the order of heads; the mask is the same for both items, and heads lie beside each
/// other in the end.
pub(super) fn layer() -> Graph {
    let whole = |node: usize, len: u64| operand(Value::Node(node), 0, &[(len, 1)]);
    let mut nodes = Vec::new();
    let mut copies = Vec::new();
    for weight in 1..4 {
        let x = operand(Value::Input(0), 0, &[(1, 0), (12, 16), (16, 1)]);
        let weight_of = operand(Value::Input(weight), 0, &[(1, 0), (16, 1), (64, 16)]);
        nodes.push(node(Function::Matmul, vec![x, weight_of], 768));
        if weight == 1 {
            let bias = operand(Value::Input(4), 0, &[(12, 0), (64, 1)]);
            nodes.push(node(Function::Binary("add".into()), vec![whole(0, 768), bias], 768));
        }
        let heads = operand(Value::Node(nodes.len() - 1), 0, &[(2, 384), (2, 32), (6, 64), (32, 1)]);
        nodes.push(node(Function::Copy, vec![heads], 768));
        copies.push(Value::Node(nodes.len() - 1));
    }
    let rows = |value| operand(value, 0, &[(4, 192), (6, 32), (32, 1)]);
    let at = nodes.len();
    nodes.push(node(
        Function::Matmul,
        vec![rows(copies[0]), operand(copies[1], 0, &[(4, 192), (32, 1), (6, 32)])],
        144,
    ));
    nodes.push(node(
        Function::Binary("add".into()),
        vec![whole(at, 144), operand(Value::Input(5), 0, &[(2, 0), (72, 1)])],
        144,
    ));
    nodes.push(node(Function::Softmax(6), vec![whole(at + 1, 144)], 144));
    let p = operand(Value::Node(at + 2), 0, &[(4, 36), (6, 6), (6, 1)]);
    nodes.push(node(Function::Matmul, vec![p, rows(copies[2])], 768));
    let merged = operand(Value::Node(at + 3), 0, &[(2, 384), (6, 32), (2, 192), (32, 1)]);
    nodes.push(node(Function::Copy, vec![merged], 768));
    // What takes heads beside each other.
    nodes.push(node(Function::Unary("relu".into()), vec![whole(at + 4, 768)], 768));
    let weights = [1024, 1024, 1024, 64, 72].map(|len| input(len, true));
    let inputs = [input(192, false)].into_iter().chain(weights).collect();
    Graph { inputs, nodes, outputs: vec![Output { value: Value::Node(at + 5), buffer: 9 }] }
}

pub(super) fn operands() -> Result<Vec<Tensor>> {
    let lens = [(192, 0.7), (1024, 1.3), (1024, 0.6), (1024, 0.9), (64, 1.1), (72, 1.7)];
    lens.into_iter().map(|(len, seed)| numbers(len, seed)).collect()
}

#[test]
fn heads_of_one_product_compute_the_same() -> Result<()> {
    let (graph, inputs) = (layer(), operands()?);
    let expected = &evaluate(&graph, &inputs, Arithmetic::In(DType::F64))?[0];
    let mut changed = graph.clone();
    let fits = rules::counted(&rules::apply(&mut changed, &[], &Default::default()));
    let names: Vec<_> = fits.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["attention", "copied-heads", "product-bias", "products-of-one"]);
    for without in [&[][..], &["products-of-one"], &["copied-heads"], &["product-bias"]] {
        let mut changed = graph.clone();
        apply(&mut changed, without);
        let got = &evaluate(&changed, &inputs, Arithmetic::Typed)?[0];
        assert!(largest_difference(got, expected)? < 1e-5, "without {without:?}");
    }
    Ok(())
}

#[test]
fn heads_of_one_product_pass_by_themselves_and_together() -> Result<()> {
    let (graph, inputs) = (layer(), operands()?);
    let outputs = evaluate(&graph, &inputs, Arithmetic::Typed)?;
    let sets = [Set::new(&graph, inputs, outputs)?];
    // Attention is for a GPU to judge.
    let without = ["attention"];
    let choice = choose(&graph, &without, &sets)?.map_err(candle::Error::Msg)?;
    assert!(choice.fits.iter().any(|fit| fit.rule == "products-of-one"), "{:?}", choice.notes);
    let original = joined(&graph);
    let mut settling = Settling::new(&graph, &without, Changes::default());
    let failed = settling.climb(&mut said_against(&original, &sets))?;
    assert!(failed.is_empty(), "{failed:?}");
    assert!(settling.changes.precise.is_empty(), "{:?}", settling.notes());
    Ok(())
}
