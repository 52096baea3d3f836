//! Judges a changed run: whether its results are no less accurate than candle's.

use std::collections::BTreeSet;

use candle::{Result, Tensor};
use opara_plan::rewrite::rules::Match;
use opara_plan::rewrite::{Compared, Compute, Graph};
use opara_plan::trace::Function;

use super::accuracy::{compare, may_be_luck, near_in_kind, same_kinds};
use super::alone::Candles;
use super::evaluate::{evaluate, Arithmetic, Numbers};
use super::set::{beginning, in_one_row, joined, Set, ENOUGH};

/// Compares what a changed graph computes with double precision. Returns the largest errors; the inner error says why it does not stand.
pub(super) fn judge(
    graph: &Graph,
    (changed, fits): (&Graph, &[Match]),
    sets: &[Set],
) -> Result<std::result::Result<Compared, String>> {
    let mut worst = Compared::default();
    for set in sets {
        match judge_on(graph, (changed, fits), set)? {
            Ok(compared) => worst = worst.or_worse(compared),
            Err(reason) => return Ok(Err(reason)),
        }
        let Some(recorded) = &set.recorded else { continue };
        for (candle, other) in recorded.iter().zip(evaluate(changed, set.inputs(), Arithmetic::Typed, Numbers::All)?) {
            if let Err(reason) = same_kinds(candle, &other)? {
                return Ok(Err(reason));
            }
        }
    }
    Ok(Ok(worst))
}

/// Compares outputs of many numbers. Few numbers have to follow from nodes that are judged by themselves. So do those behind products
/// that round to 8 bits, if they differ: a rounding that falls another way in one layer moves all that follow, and whose errors are
/// smaller at the end is luck. So it is where candle's own errors [scatter](super::accuracy::Scatter).
fn judge_on(
    graph: &Graph,
    (changed, fits): (&Graph, &[Match]),
    set: &Set,
) -> Result<std::result::Result<Compared, String>> {
    let given = set.runs.iter().map(|run| evaluate(changed, &run.inputs, Arithmetic::Typed, set.numbers));
    let given = given.collect::<Result<Vec<_>>>()?;
    let [references, candle] = set.outputs()?;
    let (mut worst, mut noise) = (Compared::default(), 0f64);
    // Values that nodes decide about, and of those the results that have to follow from them.
    let (mut by_nodes, mut few) = (Vec::new(), Vec::new());
    let is_rounded = rounds(graph);
    for (at, output) in changed.outputs.iter().enumerate() {
        let other = in_one_row(given.iter().map(|given| &given[at]))?;
        // By the first item alone, candle's are that one's.
        let other = beginning(&other, candle[at].elem_count())?;
        if candle[at].elem_count() < ENOUGH {
            by_nodes.push(output.value);
            few.push([references[at].clone(), candle[at].clone(), other]);
            continue;
        }
        let tensors = [&references[at], &candle[at], &other];
        let reason = match compare(tensors[0], tensors[1], tensors[2])? {
            Ok(compared) => {
                worst = worst.or_worse(compared);
                continue;
            }
            Err(reason) => reason,
        };
        by_nodes.push(output.value);
        if is_rounded {
            match compare(&references[at], &candle[at], &candle[at])? {
                Ok(own) => noise = noise.max(own.apart),
                Err(reason) => return Ok(Err(reason)),
            }
            few.push([references[at].clone(), candle[at].clone(), other]);
            continue;
        }
        let scatter = if may_be_luck(tensors)? { set.scatter(graph, at) } else { None };
        let Some(scatter) = scatter else { return Ok(Err(reason)) };
        match scatter.compare(tensors)? {
            Ok(compared) => worst = worst.or_worse(compared),
            Err(reason) => return Ok(Err(reason)),
        }
    }
    if by_nodes.is_empty() {
        return Ok(Ok(worst));
    }
    let (live, needed) = (changed.live(), changed.needed_for(by_nodes));
    let nodes: BTreeSet<usize> = fits.iter().map(|fit| fit.at).filter(|&at| live[at] && needed[at]).collect();
    let original = joined(graph);
    let mut candles = Candles::new(&original, set);
    for at in nodes {
        match candles.judge(changed, at, noise)? {
            Ok(compared) => worst = worst.or_worse(compared),
            Err(reason) => return Ok(Err(reason)),
        }
    }
    for [reference, candle, other] in &few {
        // Their own errors are luck.
        match follow([reference, candle, other], worst.apart)? {
            Ok(apart) => worst.apart = apart,
            Err(reason) => return Ok(Err(reason)),
        }
    }
    Ok(Ok(worst))
}

/// Has a graph products whose operands candle rounds to 8 bits?
fn rounds(graph: &Graph) -> bool {
    graph.nodes.iter().any(|node| matches!(node.compute, Compute::Recorded(Function::QuantizedProduct(_))))
}

/// Whether a result can come from values at distance `apart` from candle's, or as far from candle's as candle's is from double precision:
/// returns the larger distance. Integers must be equal.
pub(super) fn follow([reference, candle, other]: [&Tensor; 3], apart: f64) -> Result<std::result::Result<f64, String>> {
    let own = match compare(reference, candle, candle)? {
        Ok(own) => own.apart,
        Err(reason) => return Ok(Err(reason)),
    };
    if let Err(reason) = same_kinds(other, candle)? {
        return Ok(Err(reason));
    }
    let apart = apart.max(own);
    Ok(near_in_kind(candle, other, [apart; 2])?.map(|()| apart))
}
