//! Runs on other operands than a pass had, and the first items of batches.

use opara_plan::rewrite::{first_item, Changes};

use super::super::judgement::judge;
use super::super::set::Set;
use super::heads::{layer, operands};
use super::*;

/// What a graph gives for the first of two items is what all of it begins with.
fn begins_with_first_item(graph: &Graph, inputs: &[Tensor], are_whole: &[bool]) -> Result<()> {
    let item = first_item(graph, 2).unwrap();
    let lens = item.graph.inputs.iter().map(|input| input.len as usize);
    let inputs_of = inputs.iter().zip(lens).map(|(input, len)| input.flatten_all()?.narrow(0, 0, len));
    let inputs_of = inputs_of.collect::<Result<Vec<_>>>()?;
    let whole: Vec<_> = item.graph.inputs.iter().zip(&graph.inputs).map(|(of, all)| of.len == all.len).collect();
    assert_eq!(whole, are_whole);
    for arithmetic in [Arithmetic::Typed, Arithmetic::In(DType::F64)] {
        let all = evaluate(graph, inputs, arithmetic)?[0].flatten_all()?;
        let first = &evaluate(&item.graph, &inputs_of, arithmetic)?[0];
        assert_eq!(2 * first.elem_count(), all.elem_count());
        assert!(largest_difference(first, &all.narrow(0, 0, first.elem_count())?)? < 1e-5, "{arithmetic:?}");
    }
    Ok(())
}

#[test]
fn the_first_item_of_a_batch_is_computed_by_itself() -> Result<()> {
    let lens = [150, 108, 4, 4, 4, 4];
    let inputs = lens.iter().zip([0.3, 0.7, 0.9, 1.1, 1.3, 1.7]).map(|(&len, seed)| numbers(len, seed));
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    begins_with_first_item(&convolution_and_norm(), &inputs, &[false, true, true, true, true, true])?;
    // What is added to the scores of all items, and weights, are read by the first one, too.
    begins_with_first_item(&layer(), &operands()?, &[false, true, true, true, true, true])
}

#[test]
fn items_that_depend_on_each_other_are_computed_together() {
    let len = 24;
    let all = |value: Value| operand(value, 0, &[(len, 1)]);
    // Backwards: the numbers of both items take turns.
    let mixed = [
        node(Function::Copy, vec![operand(Value::Input(0), 0, &[(12, 1), (2, 12)])], len),
        node(Function::Softmax(len), vec![all(Value::Input(0))], len),
        node(
            Function::Binary("add".into()),
            vec![all(Value::Input(0)), operand(Value::Input(0), 23, &[(len, 0)])],
            len,
        ),
    ];
    for node in mixed {
        let graph = Graph {
            inputs: vec![input(len, false)],
            nodes: vec![node],
            outputs: vec![Output { value: Value::Node(0), buffer: 9 }],
        };
        let item = first_item(&graph, 2);
        assert!(item.as_ref().is_none_or(|item| item.graph.inputs[0].len == len), "{item:?}");
    }
    assert!(first_item(&convolution_and_norm(), 3).is_none() && first_item(&convolution_and_norm(), 1).is_none());
}

/// A product of 64 rows with a weight, whose columns have a factor each.
fn product() -> Graph {
    let image = operand(Value::Input(0), 0, &[(64, 16), (16, 1), (1, 1), (1, 1)]);
    let window = Window { kernel: [1; 2], ..window(0, 1) };
    let mut nodes =
        vec![node(Function::Convolution(window), vec![image, operand(Value::Input(1), 0, &[(256, 1)])], 1024)];
    let vector = operand(Value::Input(2), 0, &[(64, 0), (16, 1)]);
    nodes.push(node(Function::Binary("mul".into()), vec![operand(Value::Node(0), 0, &[(1024, 1)]), vector], 1024));
    nodes.iter_mut().for_each(|node| node.element = Element::F16);
    let mut inputs =
        [(1024, false), (256, true), (16, true)].map(|(len, is_constant)| input(len, is_constant)).to_vec();
    inputs.iter_mut().for_each(|input| input.element = Element::F16);
    Graph { inputs, nodes, outputs: vec![Output { value: Value::Node(1), buffer: 9 }] }
}

#[test]
fn what_an_example_does_not_show_altered_operands_do() -> Result<()> {
    // Weights round once more with factors that are no powers of two: nothing of it is seen in zeros.
    let graph = product();
    let inputs = [numbers(1024, 0.3)?.zeros_like()?, numbers(256, 0.7)?, (numbers(16, 0.9)? + 2.)?];
    let inputs = inputs.iter().map(|input| input.to_dtype(DType::F16)).collect::<Result<Vec<_>>>()?;
    let outputs = evaluate(&graph, &inputs, Arithmetic::Typed)?;
    let item = first_item(&graph, 2).unwrap();
    let examples = || -> Result<[Set; 2]> {
        let of_item = Set::of_item(&item, inputs.clone(), &outputs)?.unwrap();
        Ok([Set::new(&graph, inputs.clone(), outputs.clone())?, of_item])
    };
    let (changed, fits) = Changes::default().of(&graph, &[]);
    assert_eq!(fits.iter().map(|fit| fit.rule).collect::<Vec<_>>(), ["convolution", "convolution-norm"]);
    let stands = |sets: &[Set]| Ok::<_, candle::Error>(judge(&graph, (&changed, &fits), sets)?.is_ok());
    for (example, item) in examples()?.into_iter().zip([None, Some(&item)]) {
        let altered = example.altered(&graph, item)?.unwrap();
        assert!(stands(&[example])? && !stands(&[altered])?);
    }
    Ok(())
}

#[test]
fn altered_rows_are_not_alike_and_integers_stay() -> Result<()> {
    let mut graph = layer();
    graph.inputs.push(Input { element: Element::U32, ..input(4, false) });
    let mut inputs = operands()?;
    inputs[0] = numbers(16, 0.7)?.repeat(12)?;
    inputs.push(Tensor::new(&[3u32, 3, 3, 3], &Device::Cpu)?);
    let outputs = evaluate(&graph, &inputs, Arithmetic::Typed)?;
    let altered = Set::new(&graph, inputs.clone(), outputs)?.altered(&graph, None)?.unwrap();
    let rows = altered.inputs()[0].reshape((12, 16))?.to_vec2::<f32>()?;
    assert!((1..12).all(|row| rows[row] != rows[0]));
    assert_eq!(altered.inputs()[6].to_vec1::<u32>()?, [3; 4]);
    for (altered, input) in altered.inputs()[1..6].iter().zip(&inputs[1..]) {
        assert_eq!(altered.to_vec1::<f32>()?, input.to_vec1::<f32>()?, "weights stay");
    }
    Ok(())
}
