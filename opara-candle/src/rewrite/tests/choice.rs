//! Which rewrites stand.

use std::cell::Cell;

use opara_plan::rewrite::{Changes, ProductPrecision};

use super::super::alone::said_against;
use super::super::choice::{choose, choose_usable, Choice};
use super::super::judgement::{follow, judge};
use super::super::set::{joined, Set};
use super::super::settling::Settling;
use super::norms::norm;
use super::*;

/// A graph of f16, on inputs of f32.
fn choice(graph: Graph, inputs: &[Tensor]) -> Result<std::result::Result<Choice, String>> {
    usable(graph, inputs, |_| true)
}

/// The same, if not all graphs can be used.
fn usable(
    graph: Graph,
    inputs: &[Tensor],
    is_usable: impl Fn(&Graph) -> bool,
) -> Result<std::result::Result<Choice, String>> {
    let (graph, set) = in_f16(graph, inputs)?;
    let using = |graph: &Graph, _: &[Tensor]| Ok(is_usable(graph).then_some(()).ok_or("it is of no use".into()));
    Ok(choose_usable(&graph, &[], &[set], using)?.map(|(choice, ())| choice))
}

/// The graph in f16, and its operands and results.
fn in_f16(mut graph: Graph, inputs: &[Tensor]) -> Result<(Graph, Set)> {
    graph.inputs.iter_mut().for_each(|input| input.element = Element::F16);
    graph.nodes.iter_mut().for_each(|node| node.element = Element::F16);
    let inputs = inputs.iter().map(|input| input.to_dtype(DType::F16)).collect::<Result<Vec<_>>>()?;
    let outputs = evaluate(&graph, &inputs, Arithmetic::Typed)?;
    let set = Set::new(&graph, inputs, outputs)?;
    Ok((graph, set))
}

/// Two convolutions of one pixel, from 64 channels to 8, each with a factor for every channel of the result.
fn two_convolutions() -> Graph {
    let all = |value: Value, len: u64| operand(value, 0, &[(len, 1)]);
    let mut nodes = Vec::new();
    for branch in 0..2 {
        let (image, weight) = (
            operand(Value::Input(2 * branch), 0, &[(1, 64), (64, 1), (1, 1), (1, 1)]),
            all(Value::Input(2 * branch + 1), 512),
        );
        let window = Window { kernel: [1; 2], ..window(0, 1) };
        nodes.push(node(Function::Convolution(window), vec![image, weight], 8));
        let y = all(Value::Node(2 * branch), 8);
        nodes.push(node(Function::Binary("mul".into()), vec![y, all(Value::Input(4 + branch), 8)], 8));
    }
    let inputs =
        [64, 512, 64, 512, 8, 8].into_iter().enumerate().map(|(at, len)| input(len, at != 0 && at != 2)).collect();
    let outputs = [1, 3].map(|node| Output { value: Value::Node(node), buffer: 9 }).into();
    Graph { inputs, nodes, outputs }
}

/// Its inputs, with these factors.
fn two_inputs([one, other]: [Tensor; 2]) -> Result<[Tensor; 6]> {
    Ok([numbers(64, 0.3)?, numbers(512, 0.7)?, numbers(64, 0.4)?, numbers(512, 0.6)?, one, other])
}

#[test]
fn what_is_less_accurate_costs_itself_alone() -> Result<()> {
    // Weights round once more with factors that are no powers of two.
    let inputs = two_inputs([Tensor::full(2f32, 8, &Device::Cpu)?, (numbers(8, 0.9)? + 2.)?])?;
    let Choice { graph, fits, notes, .. } = choice(two_convolutions(), &inputs)?.unwrap();
    let fits: Vec<_> = fits.iter().map(|fit| (fit.rule, fit.at)).collect();
    assert_eq!(fits, [("convolution", 0), ("convolution", 2), ("convolution-norm", 1)], "{notes:?}");
    assert_eq!(graph.live(), [false, true, true, true]);
    assert!(
        notes.len() == 1
            && notes[0].starts_with("convolution-norm stays out 1 times: ")
            && notes[0].contains("its mean error"),
        "{notes:?}"
    );
    Ok(())
}

#[test]
fn what_is_accurate_stands_at_once() -> Result<()> {
    let two = Tensor::full(2f32, 8, &Device::Cpu)?;
    let inputs = two_inputs([two.clone(), two])?;
    let Choice { fits, notes, .. } = choice(two_convolutions(), &inputs)?.unwrap();
    assert_eq!((fits.len(), notes.len()), (4, 0));
    Ok(())
}

#[test]
fn what_cannot_be_used_costs_its_rule_alone() -> Result<()> {
    let two = Tensor::full(2f32, 8, &Device::Cpu)?;
    let inputs = two_inputs([two.clone(), two])?;
    let has_steps =
        |node: &Node| matches!(&node.compute, Compute::FusedConvolution(convolution) if !convolution.steps.is_empty());
    let asked = Cell::new(0);
    let without_steps = |graph: &Graph| {
        asked.set(asked.get() + 1);
        !graph.nodes.iter().any(has_steps)
    };
    let Choice { fits, notes, .. } = usable(two_convolutions(), &inputs, without_steps)?.unwrap();
    assert_eq!(fits.iter().map(|fit| fit.rule).collect::<Vec<_>>(), ["convolution"; 2]);
    assert_eq!(notes, ["convolution-norm stays out: it is of no use"]);
    assert_eq!(asked.get(), 2, "each graph is asked about once");
    assert_eq!(usable(two_convolutions(), &inputs, |_| false)?.err().as_deref(), Some("it is of no use"));
    Ok(())
}

/// Changes of the two convolutions in f32, if something is said against nodes of these precisions: with more precise products, and without
/// what fails even so.
fn two_settled(is_said: impl Fn(usize, &Node) -> bool) -> Result<([Changes; 2], Vec<String>)> {
    let graph = two_convolutions();
    let mut said_against = |changed: &Graph, at: usize| {
        Ok(is_said(at, &changed.nodes[at]).then(|| format!("{:?} is too little", changed.nodes[at].precision)))
    };
    let mut settling = Settling::new(&graph, &[], Changes::default());
    let failed = settling.climb(&mut said_against)?;
    let climbed = settling.changes.clone();
    settling.leave_out(failed, &mut said_against)?;
    Ok(([climbed, settling.changes.clone()], settling.notes()))
}

#[test]
fn products_become_more_precise_before_their_rule_is_lost() -> Result<()> {
    use ProductPrecision::{Fastest, High, Highest};
    let precise = |nodes: &[(usize, ProductPrecision)]| Changes {
        precise: nodes.iter().copied().collect(),
        ..Changes::default()
    };
    // Nodes 1 and 3 are the convolutions with their factors.
    let (changes, notes) = two_settled(|at, node| at == 1 && node.precision == Fastest)?;
    assert_eq!(changes, [(); 2].map(|()| precise(&[(1, High)])));
    assert_eq!(notes, ["convolution-norm has more precise products 1 times: Fastest is too little"]);

    let (changes, _) = two_settled(|_, node| node.precision < Highest)?;
    assert_eq!(changes, [(); 2].map(|()| precise(&[(1, Highest), (3, Highest)])));

    // A node that fails even so loses its rule, and the rest is asked for in the fastest way again.
    let has_steps =
        |node: &Node| matches!(&node.compute, Compute::FusedConvolution(convolution) if !convolution.steps.is_empty());
    let ([climbed, settled], notes) = two_settled(|at, node| at == 3 && has_steps(node))?;
    assert_eq!(climbed, precise(&[(3, Highest)]));
    assert_eq!(settled, Changes { refused: [("convolution-norm", 3)].into(), ..Changes::default() });
    assert_eq!(notes[0], "convolution-norm stays out 1 times: Highest is too little");
    Ok(())
}

/// The changes that a search judges the whole run with, of the two convolutions in f32, if none passes but the last.
fn judged(is_said: impl Fn(&Node) -> bool, judgements: usize) -> Result<(Vec<Changes>, Vec<String>)> {
    let (graph, mut judged) = (two_convolutions(), Vec::new());
    let mut settling = Settling::new(&graph, &[], Changes::default());
    let found = settling.search(
        |changed, at| Ok(is_said(&changed.nodes[at]).then(|| "it is too little".into())),
        |changes| {
            judged.push(changes.clone());
            Ok((judged.len() == judgements).then_some(()))
        },
    )?;
    assert_eq!(found.is_some(), judged.len() == judgements);
    Ok((judged, settling.notes()))
}

#[test]
fn a_run_is_judged_three_more_times_at_most() -> Result<()> {
    use ProductPrecision::{Fastest, High, Highest};
    let has_steps =
        |node: &Node| matches!(&node.compute, Compute::FusedConvolution(convolution) if !convolution.steps.is_empty());
    let changes = |precise: &[(usize, ProductPrecision)], refused: &[usize]| Changes {
        precise: precise.iter().copied().collect(),
        refused: refused.iter().map(|&at| ("convolution-norm", at)).collect(),
    };
    let all = [
        changes(&[(1, Highest), (3, Highest)], &[]),
        changes(&[], &[1, 3]),
        // The convolutions without their factors.
        changes(&[(0, High), (2, High)], &[1, 3]),
    ];
    for judgements in 1..=4 {
        let (judged, notes) = judged(has_steps, judgements)?;
        assert_eq!(judged, all[..judgements.min(3)], "{notes:?}");
    }
    // Nothing is said against nodes by themselves: their products are more precise.
    assert_eq!(judged(|_| false, 1)?.0, [changes(&[(1, High), (3, High)], &[])]);
    // The same, and nothing is left to try.
    let (judged, notes) = judged(|node| node.precision == Fastest, 2)?;
    assert_eq!(judged, [changes(&[(1, High), (3, High)], &[])]);
    assert_eq!(notes, ["convolution-norm has more precise products 2 times: it is too little"]);
    Ok(())
}

/// Does a norm of one row in f32 stay out, behind what a pass computes, on numbers of a seed?
fn stays_out(seed: u16) -> Result<bool> {
    let columns = 128;
    let mut graph = norm([1, columns], &[&[(1, 0), (columns, 1)]], true, false);
    for operand in graph.nodes.iter_mut().flat_map(|node| &mut node.operands) {
        operand.value = match operand.value {
            Value::Input(0) => Value::Node(0),
            Value::Node(at) => Value::Node(at + 1),
            vector => vector,
        };
    }
    let x = operand(Value::Input(0), 0, &[(columns, 1)]);
    graph.nodes.insert(0, node(Function::Unary("sin".into()), vec![x], columns));
    graph.outputs[0].value = Value::Node(graph.nodes.len() - 1);
    let inputs = [numbers(columns, 0.3 + f32::from(seed) / 7.)?, numbers(columns, 1.1)?];
    let outputs = evaluate(&graph, &inputs, Arithmetic::Typed)?;
    let (original, set) = (joined(&graph), Set::new(&graph, inputs.to_vec(), outputs)?);
    let sets = [set];
    let failed = Settling::new(&graph, &[], Changes::default()).climb(&mut said_against(&original, &sets))?;
    Ok(!failed.is_empty())
}

/// The numbers of one row share the error of its norm: on that row alone, luck decides whether it is smaller than candle's.
#[test]
fn one_row_is_judged_on_rows_nearby_too() -> Result<()> {
    // On the CPU the operator adds squares one by one, and candle's sums do not: its error is twice theirs.
    for seed in 0..100 {
        assert!(stays_out(seed)?, "{seed}");
    }
    Ok(())
}

/// The sum of a convolution of an image of 8 by 8 pixels, from 64 channels to 8, with a factor for every channel of the result.
fn sum_of_convolution() -> Graph {
    let image = operand(Value::Input(0), 0, &[(1, 4096), (64, 64), (8, 8), (8, 1)]);
    let all = |value: Value, len: u64| operand(value, 0, &[(len, 1)]);
    let window = Window { kernel: [1; 2], ..window(0, 1) };
    let factors = operand(Value::Input(2), 0, &[(1, 0), (8, 1), (64, 0)]);
    let nodes = vec![
        node(Function::Convolution(window), vec![image, all(Value::Input(1), 512)], 512),
        node(Function::Binary("mul".into()), vec![all(Value::Node(0), 512), factors], 512),
        node(Function::RowSum(512), vec![all(Value::Node(1), 512)], 1),
    ];
    let inputs = vec![input(4096, false), input(512, true), input(8, true)];
    Graph { inputs, nodes, outputs: vec![Output { value: Value::Node(2), buffer: 9 }] }
}

#[test]
fn a_run_that_gives_few_numbers_is_judged_by_its_operators() -> Result<()> {
    let mut with_many = sum_of_convolution();
    with_many.outputs.push(Output { value: Value::Node(1), buffer: 8 });
    for graph in [sum_of_convolution(), with_many] {
        // Weights round once more with factors that are no powers of two, whatever the one sum says.
        for (factors, stands) in [(Tensor::full(2f32, 8, &Device::Cpu)?, true), ((numbers(8, 0.9)? + 2.)?, false)] {
            let inputs = [numbers(4096, 0.3)?, numbers(512, 0.7)?, factors];
            let (graph, set) = in_f16(graph.clone(), &inputs)?;
            let Choice { fits, notes, compared, .. } = choose(&graph, &[], &[set])?.unwrap();
            assert_eq!(fits.iter().any(|fit| fit.rule == "convolution-norm"), stands, "{notes:?}");
            assert!(compared.candle.rms > 0., "{compared:?}");
        }
    }
    Ok(())
}

#[test]
fn each_operator_of_a_run_that_gives_few_numbers_counts() -> Result<()> {
    // A convolution of these as 512 channels of one pixel gives eight numbers, which are scaled, too.
    let mut graph = sum_of_convolution();
    let all = |value: Value, len: u64| operand(value, 0, &[(len, 1)]);
    let image = operand(Value::Node(1), 0, &[(1, 512), (512, 1), (1, 1), (1, 1)]);
    let window = Window { kernel: [1; 2], ..window(0, 1) };
    graph.nodes[2] = node(Function::Convolution(window), vec![image, all(Value::Input(3), 4096)], 8);
    graph.nodes.push(node(Function::Binary("mul".into()), vec![all(Value::Node(2), 8), all(Value::Input(4), 8)], 8));
    graph.inputs.extend([input(4096, true), input(8, true)]);
    graph.outputs[0].value = Value::Node(3);
    let (two, other) = (Tensor::full(2f32, 8, &Device::Cpu)?, (numbers(8, 0.9)? + 2.)?);
    for (inner, last, fits_at) in [(&two, &two, vec![1, 3]), (&two, &other, vec![1]), (&other, &two, vec![3])] {
        let inputs =
            [numbers(4096, 0.3)?, numbers(512, 0.7)?, inner.clone(), (numbers(4096, 0.7)? * 0.1)?, last.clone()];
        let (graph, set) = in_f16(graph.clone(), &inputs)?;
        let Choice { fits, notes, .. } = choose(&graph, &[], &[set])?.unwrap();
        let norms: Vec<usize> = fits.iter().filter(|fit| fit.rule == "convolution-norm").map(|fit| fit.at).collect();
        assert_eq!(norms, fits_at, "{notes:?}");
    }
    Ok(())
}

#[test]
fn a_grouped_convolution_is_held_against_one_that_does_not_round_to_tf32() -> Result<()> {
    let window = Window { kernel: [1; 2], ..window(0, 1) };
    let of_group = |group: u64| {
        let image = operand(Value::Input(0), group * 128, &[(1, 256), (2, 64), (8, 8), (8, 1)]);
        let weight = operand(Value::Input(1), group * 4, &[(4, 1)]);
        node(Function::Convolution(window), vec![image, weight], 128)
    };
    let part = |at: usize| operand(Value::Node(at), 0, &[(128, 1)]);
    let concat = Compute::Concat { rows: 1, widths: vec![128; 2] };
    let concat = Node::new(concat, vec![part(0), part(1)], Element::F32, 256);
    let outputs = vec![Output { value: Value::Node(2), buffer: 9 }];
    let inputs = vec![input(256, false), input(8, true)];
    let graph = Graph { inputs, nodes: vec![of_group(0), of_group(1), concat], outputs };
    let standing_for_candles = joined(&graph);
    let nodes = &standing_for_candles.nodes;
    let grouped = nodes.iter().find(|node| matches!(node.compute, Compute::FusedConvolution(_))).unwrap();
    assert_eq!(grouped.precision, ProductPrecision::Highest);
    let inputs = vec![numbers(256, 0.3)?, numbers(8, 0.7)?];
    let outputs = evaluate(&graph, &inputs, Arithmetic::Typed)?;
    let set = Set::new(&graph, inputs, outputs)?;
    let Choice { fits, notes, .. } = choose(&graph, &[], &[set])?.unwrap();
    assert!(fits.iter().any(|fit| fit.rule == "grouped-convolution"), "{notes:?}");
    Ok(())
}

#[test]
fn few_numbers_follow_if_they_are_near_of_the_same_kind_and_the_same_integers() -> Result<()> {
    let floats = |values: [f32; 2]| Tensor::new(&values, &Device::Cpu);
    let of = |reference: [f32; 2], candle: [f32; 2], other: [f32; 2]| {
        follow([&floats(reference)?, &floats(candle)?, &floats(other)?], 1e-3).map(|verdict| verdict.is_ok())
    };
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    assert!(of([1., 2.], [1.001, 2.], [1., 2.01])?);
    assert!(!of([1., 2.], [1., 2.], [1., 2.1])?, "too far");
    assert!(!of([1., 2.], [1., 3.], [1., 3.])?, "candle's are something else");
    for (candle, other) in [(inf, nan), (nan, inf), (-inf, -18.), (nan, 1.), (1., nan)] {
        assert!(!of([1., candle], [1., candle], [1., other])?, "{candle} {other}");
        assert!(of([1., candle], [1., candle], [1., candle])?, "{candle}");
    }
    let integers = |value: u32| Tensor::new(&[value, 7], &Device::Cpu);
    let reference = Tensor::new(&[100f64, 7.], &Device::Cpu)?;
    assert!(follow([&reference, &integers(100)?, &integers(100)?], 1.)?.is_ok());
    assert!(follow([&reference, &integers(100)?, &integers(101)?], 1.)?.is_err());
    Ok(())
}

#[test]
fn nothing_is_tried_where_double_precision_does_not_give_candles_results() -> Result<()> {
    // 512 sums of which nothing is left but their errors.
    let mut graph = sum_of_convolution();
    let all = |value: Value| operand(value, 0, &[(512, 1)]);
    graph.nodes[2] = node(Function::Binary("sub".into()), vec![all(Value::Node(1)), all(Value::Input(3))], 512);
    graph.inputs.push(input(512, true));
    let mut inputs = vec![numbers(4096, 0.3)?, numbers(512, 0.7)?, (numbers(8, 0.9)? + 2.)?];
    let mut before = sum_of_convolution();
    before.outputs[0].value = Value::Node(1);
    let of_f16 = in_f16(before.clone(), &inputs)?.1.inputs().to_vec();
    inputs.push(evaluate(&before, &of_f16, Arithmetic::In(DType::F64))?.remove(0).to_dtype(DType::F32)?.flatten_all()?);
    let refused = choice(graph, &inputs)?.err().unwrap_or_default();
    // Not even by itself: no rule is named.
    assert!(refused.starts_with("double precision does not give candle's results"), "{refused}");
    Ok(())
}

/// Two convolutions of images, each with factors of its own, and a sine of so many turns of their sum that roundings decide what it gives.
fn turns(doubled: i32, factors: [Tensor; 2]) -> Result<(Graph, Set)> {
    let all = |value: Value| operand(value, 0, &[(512, 1)]);
    let mut graph = sum_of_convolution();
    graph.nodes.pop();
    let mut other = graph.clone();
    for value in other.nodes.iter_mut().flat_map(|node| &mut node.operands).map(|operand| &mut operand.value) {
        *value = match *value {
            Value::Input(at) => Value::Input(at + 3),
            Value::Node(at) => Value::Node(at + 2),
        };
    }
    graph.nodes.extend(other.nodes);
    graph.inputs.extend(other.inputs);
    graph.nodes.push(node(Function::Binary("add".into()), vec![all(Value::Node(1)), all(Value::Node(3))], 512));
    graph.nodes.push(node(Function::Affine(2f32.powi(doubled), 0.), vec![all(Value::Node(4))], 512));
    graph.nodes.push(node(Function::Unary("sin".into()), vec![all(Value::Node(5))], 512));
    graph.outputs[0].value = Value::Node(6);
    let [one, two] = factors;
    in_f16(graph, &[numbers(4096, 0.4)?, numbers(512, 0.6)?, one, numbers(4096, 0.3)?, numbers(512, 0.7)?, two])
}

#[test]
fn operators_decide_where_roundings_are_amplified() -> Result<()> {
    let powers = |factor: f32| Tensor::full(factor, 8, &Device::Cpu);
    let mut by_operator = 0;
    for doubled in 0..12 {
        let judged = |factors: Tensor| -> Result<_> {
            let (graph, set) = turns(doubled, [powers(1.)?, factors])?;
            let (changed, fits) = Changes::default().of(&graph, &[]);
            assert_eq!(fits.iter().filter(|fit| fit.rule == "convolution-norm").count(), 2);
            judge(&graph, (&changed, &fits), &[set])
        };
        // Half of what more turns give is errors.
        let accurate = judged(powers(2.)?)?;
        assert_eq!(accurate.is_ok(), doubled < 9, "{doubled}: {accurate:?}");
        // Weights round once more with factors that are no powers of two: the end says so, or the operator.
        let refused = judged((numbers(8, 0.9)? + 2.)?)?.unwrap_err();
        assert!(refused.contains("its mean error") || doubled >= 9, "{doubled}: {refused}");
        by_operator += usize::from(refused.contains("candle's 0.4"));
    }
    assert!(by_operator > 3, "{by_operator}");
    Ok(())
}

#[test]
fn few_numbers_that_double_precision_does_not_give_refuse_a_run() -> Result<()> {
    // Nothing is left of the sum but its errors.
    let mut graph = sum_of_convolution();
    let one = |value: Value| operand(value, 0, &[(1, 1)]);
    graph.nodes.push(node(Function::Binary("sub".into()), vec![one(Value::Node(2)), one(Value::Input(3))], 1));
    graph.inputs.push(input(1, true));
    graph.outputs[0].value = Value::Node(3);
    let mut inputs = vec![numbers(4096, 0.3)?, numbers(512, 0.7)?, Tensor::full(2f32, 8, &Device::Cpu)?];
    let sum = evaluate(&sum_of_convolution(), &inputs, Arithmetic::In(DType::F64))?.remove(0);
    inputs.push(sum.to_dtype(DType::F32)?.flatten_all()?);
    let (graph, set) = in_f16(graph, &inputs)?;
    let refused = choose(&graph, &[], &[set])?.err();
    assert!(refused.is_some_and(|reason| reason.contains("double precision does not give candle's results")));
    Ok(())
}

/// A product of `(4, 8)` and a weight `(3, 8)`, its bias, and a mask: 0 times the least number of f32, in f16.
fn masked_product() -> Graph {
    let all = |value: Value| operand(value, 0, &[(12, 1)]);
    let x = operand(Value::Input(0), 0, &[(1, 0), (4, 8), (8, 1)]);
    let weight = operand(Value::Input(1), 0, &[(1, 0), (8, 1), (3, 8)]);
    let nodes = vec![
        node(Function::Binary("mul".into()), vec![all(Value::Input(3)), operand(Value::Input(4), 0, &[(12, 0)])], 12),
        node(Function::Matmul, vec![x, weight], 12),
        node(
            Function::Binary("add".into()),
            vec![all(Value::Node(1)), operand(Value::Input(2), 0, &[(4, 0), (3, 1)])],
            12,
        ),
        node(Function::Binary("add".into()), vec![all(Value::Node(2)), all(Value::Node(0))], 12),
    ];
    let inputs =
        [(32, false), (24, true), (3, true), (12, true), (1, true)].map(|(len, is_constant)| input(len, is_constant));
    Graph { inputs: inputs.into(), nodes, outputs: vec![Output { value: Value::Node(3), buffer: 9 }] }
}

#[test]
fn a_run_that_gives_nan_alone_is_judged_without_them() -> Result<()> {
    let zeros = Tensor::zeros(12, DType::F32, &Device::Cpu)?;
    let least = Tensor::new(&[f32::MIN], &Device::Cpu)?;
    let inputs = [numbers(32, 0.3)?, numbers(24, 0.7)?, numbers(3, 0.9)?, zeros, least];
    let Choice { graph, fits, compared, notes, .. } = choice(masked_product(), &inputs)?.unwrap();
    assert!(notes.is_empty(), "no attention fits: {notes:?}");
    assert_eq!(fits.iter().map(|fit| fit.rule).collect::<Vec<_>>(), ["product-bias"]);
    assert!(compared.candle.rms > 0. && compared.other.rms <= 1.05 * compared.candle.rms + 0.05, "{compared:?}");
    let inputs = inputs.iter().map(|input| input.to_dtype(DType::F16)).collect::<Result<Vec<_>>>()?;
    let given = evaluate(&graph, &inputs, Arithmetic::Typed)?[0].to_dtype(DType::F32)?.flatten_all()?;
    assert!(given.to_vec1::<f32>()?.iter().all(|value| value.is_nan()), "as candle's");
    Ok(())
}

#[test]
fn a_norm_of_a_sum_computes_the_same_as_one_operator() -> Result<()> {
    let inputs = [numbers(24, 0.7)?, numbers(24, 1.3)?, numbers(8, 0.9)?, numbers(8, 0.4)?];
    let sum = (inputs[0].reshape((3, 8))? + inputs[1].reshape((3, 8))?)?;
    for (is_rms, is_read_twice) in [(true, false), (false, false), (true, true)] {
        let graph = norm_of_sum(is_rms, is_read_twice);
        let normed = match is_rms {
            true => candle_nn::ops::rms_norm(&sum, &inputs[2], 1e-6)?,
            false => candle_nn::ops::layer_norm(&sum, &inputs[2], &inputs[3], 1e-5)?,
        };
        let expected = if is_read_twice { (normed + &sum)? } else { normed };
        let mut changed = graph.clone();
        assert_eq!(apply(&mut changed, &[]), 1);
        for (graph, arithmetic) in [
            (&graph, Arithmetic::Typed),
            (&graph, Arithmetic::In(DType::F64)),
            (&changed, Arithmetic::Typed),
            (&changed, Arithmetic::In(DType::F64)),
        ] {
            let got = &evaluate(graph, &inputs, arithmetic)?[0];
            assert!(largest_difference(got, &expected)? < 1e-5, "{is_rms} {is_read_twice} {arithmetic:?}");
        }
        let Choice { fits, notes, .. } = choice(graph, &inputs)?.unwrap();
        assert_eq!((fits.len(), fits[0].rule), (1, "residual-norm"), "{notes:?}");
    }
    Ok(())
}
