//! Recorded passes of random modules: whatever rules make of them computes the same, by an interpreter that shares nothing with them.
//!
//! The passes were recorded on one NVIDIA H100 by `OPARA_TRACES=FOLDER cargo test --release --features cudnn --test gpu random`.

mod interpreter;
mod operators;
mod recorded;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use fastrand::Rng;
use opara_plan::rewrite::{regions, rules, whole, Graph};
use opara_plan::trace::{Element, Function, Trace};
use rayon::prelude::*;

use self::interpreter::Interpreter;

/// The recorded passes. The file has the length of each trace before it.
fn traces() -> Result<Vec<Trace>> {
    let file = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/random.traces"))?;
    let (mut left, mut traces) = (&file[..], Vec::new());
    while let Some((len, rest)) = left.split_first_chunk() {
        let (trace, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize).context("a whole trace")?;
        traces.push(Trace::read_from(trace)?);
        left = rest;
    }
    Ok(traces)
}

/// The graphs of recorded runs that rules fit.
fn graphs() -> Result<Vec<Graph>> {
    let mut graphs: Vec<Graph> = traces()?.iter().flat_map(regions).map(|region| region.graph).collect();
    graphs.retain(|graph| !rules::apply(&mut graph.clone(), &[], &Default::default()).is_empty());
    Ok(graphs)
}

/// A pass is one graph if each of its launches has a meaning.
#[test]
fn recorded_passes_are_graphs() -> Result<()> {
    let (mut graphs, mut unknown) = (0, 0);
    for (at, trace) in traces()?.iter().enumerate() {
        match whole(trace, []) {
            Ok(of) => {
                graphs += 1;
                assert_eq!(of.graph.nodes.len(), of.origins.len());
            }
            Err(op) => {
                unknown += 1;
                let meaning = &trace.ops[op].meaning;
                assert!(meaning.is_none(), "pass {at}, launch {op}, {}: {meaning:?}", trace.ops[op].name);
            }
        }
    }
    assert!(unknown * 10 < graphs, "{unknown} passes have launches without a meaning");
    Ok(())
}

/// Numbers for each input of a graph: ids are of rows that there are, and conditions hold half of the time. Some of those that are no
/// constants are `special`.
fn inputs(graph: &Graph, rng: &mut Rng, special: &[f64]) -> Vec<Vec<f64>> {
    let mut rows = vec![u64::MAX; graph.inputs.len()];
    for node in &graph.nodes {
        if let opara_plan::rewrite::Compute::Recorded(Function::IndexSelect { from, .. }) = node.compute {
            if let opara_plan::rewrite::Value::Input(at) = node.operands[1].value {
                rows[at] = rows[at].min(from);
            }
        }
    }
    let number = |rng: &mut Rng| ((0..4).map(|_| rng.f64()).sum::<f64>() - 2.) * 1.7;
    let of = |(input, &rows): (&opara_plan::rewrite::Input, &u64), rng: &mut Rng| -> Vec<f64> {
        (0..input.len)
            .map(|_| match input.element {
                element if element.is_float() => match number(rng) {
                    _ if !input.is_constant && !special.is_empty() && rng.usize(..input.len as usize) < 2 => {
                        special[rng.usize(..special.len())]
                    }
                    number => number,
                },
                Element::U8 => f64::from(rng.u8(..2)),
                _ => rng.u64(..rows.min(3)) as f64,
            })
            .collect()
    };
    graph.inputs.iter().zip(&rows).map(|input| of(input, rng)).collect()
}

/// How far results are from what they should be, relative to the root of the mean square; those that are no finite numbers have to be so.
fn apart(expected: &[f64], got: &[f64]) -> f64 {
    let finite = || expected.iter().zip(got).filter(|(expected, _)| expected.is_finite());
    let size = (finite().map(|(x, _)| x * x).sum::<f64>() / finite().count().max(1) as f64).sqrt();
    let largest =
        finite().map(|(x, y)| (x - y).abs()).fold(0., |most: f64, of| if of > most || of.is_nan() { of } else { most });
    largest / size.max(1e-30)
}

/// Whether both are finite, the same infinity, or no number.
fn is_alike(expected: f64, got: f64) -> bool {
    expected.is_finite() && got.is_finite() || expected == got || expected.is_nan() && got.is_nan()
}

#[test]
fn rules_keep_what_random_modules_compute() -> Result<()> {
    let graphs = graphs()?;
    let cases: u64 = std::env::var("OPARA_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(1000);
    let checked = AtomicU64::new(0);
    let failed: Vec<String> = (0..cases)
        .into_par_iter()
        .filter_map(|seed| {
            let mut rng = Rng::with_seed(seed);
            let graph = &graphs[seed as usize % graphs.len()];
            // At first with all rules, then without some.
            let is_out = |_: &&str| rng.usize(..6) == 0 && seed as usize >= graphs.len();
            let without: Vec<&str> = rules::RULES.iter().map(|rule| rule.name).filter(is_out).collect();
            check(graph, &without, &mut Rng::with_seed(!seed), &checked)
                .err()
                .map(|error| format!("case {seed}: {error:#}"))
        })
        .collect();
    // In the others no rule is left that fits.
    assert!(graphs.len() > 100 && checked.into_inner() > cases / 4 * 3);
    assert!(failed.is_empty(), "{} of {cases}:\n{}", failed.len(), failed.join("\n"));
    Ok(())
}

fn check(graph: &Graph, without: &[&str], rng: &mut Rng, checked: &AtomicU64) -> Result<()> {
    let mut changed = graph.clone();
    let fits = rules::apply(&mut changed, without, &Default::default());
    if fits.is_empty() {
        return Ok(());
    }
    checked.fetch_add(1, Ordering::Relaxed);
    let said = || format!("{:?}", rules::counted(&fits).iter().map(|(name, _)| *name).collect::<Vec<_>>());
    // Exponentials that are not reduced by the largest score are too large sooner.
    let mends =
        |expected: f64, got: f64| expected.is_nan() && got.is_finite() && fits.iter().any(|fit| fit.rule == "softmax");
    let specials: [&[f64]; 6] =
        [&[], &[0.], &[f64::INFINITY], &[f64::NEG_INFINITY], &[f64::NAN], &[0., f64::INFINITY, f64::NAN]];
    let special = specials[rng.usize(..specials.len())];
    let inputs = inputs(graph, rng, special);
    let expected = Interpreter::outputs(graph, &inputs).context("as recorded")?;
    let got = Interpreter::outputs(&changed, &inputs).with_context(said)?;
    for (output, (expected, got)) in expected.iter().zip(&got).enumerate() {
        let apart = apart(expected, got);
        let is_known =
            expected.iter().zip(got).all(|(&expected, &got)| is_alike(expected, got) || mends(expected, got));
        anyhow::ensure!(is_known, "output {output} is of another kind with {special:?}: {}", said());
        anyhow::ensure!(apart < 1e-5, "output {output} differs by {apart:e} with {special:?}: {}", said());
    }
    Ok(())
}
