//! Changed nodes by themselves: which are no less accurate than candle's, and which need more precise products for that.

use std::collections::BTreeMap;

use candle::{DType, Result, Tensor};
use hashbrown::{HashMap, HashSet};
use opara_plan::rewrite::{Changes, Compute, Graph, ProductPrecision, Value};

use super::accuracy::compare;
use super::evaluate::Arithmetic;
use super::evaluation::Evaluation;
use super::operators::compute;
use super::set::{in_one_row, joined, nearby, runs_for, Set, ENOUGH};

/// As many numbers tell errors apart of nodes whose rows each share an error.
const ENOUGH_OF_ROWS: usize = 4 * ENOUGH;

/// For each rule a count, and the first reason.
#[derive(Default)]
struct Reasons(BTreeMap<&'static str, (usize, String)>);

impl Reasons {
    fn add(&mut self, rule: &'static str, reason: String) {
        self.0.entry(rule).or_insert((0, reason)).0 += 1;
    }

    fn notes(self, what: &str) -> Vec<String> {
        self.0.into_iter().map(|(rule, (times, why))| format!("{rule} {what} {times} times: {why}")).collect()
    }
}

/// Holds each changed node against double precision, on operands as candle's operators give them: see [`settled`].
pub(super) fn alone(graph: &Graph, without: &[&str], sets: &[Set]) -> Result<(Changes, Vec<String>)> {
    let original = joined(graph);
    // candle's values of all nodes.
    let mut typed: Vec<Evaluation> = sets
        .iter()
        .map(|set| Evaluation::new(&original, &set.inputs, Arithmetic::Typed, set.numbers, compute))
        .collect();
    for (at, _) in original.live().into_iter().enumerate().filter(|(_, is_live)| *is_live) {
        typed.iter_mut().try_for_each(|typed| typed.tensor(Value::Node(at)).map(drop))?;
    }
    settled(graph, without, |changed, at| {
        let mut verdicts = typed.iter_mut().zip(sets).map(|(typed, set)| verdict(&original, changed, at, typed, set));
        verdicts.find_map(|verdict| verdict.map(std::result::Result::err).transpose()).transpose()
    })
}

/// Changes such that nothing is said against a changed node any more, and notes that say what it took. A node that something is said
/// against gets more precise products; if it has the most precise ones, it loses the last rule that made it. Other nodes come to be
/// then, which are asked for, too.
pub(super) fn settled(
    graph: &Graph,
    without: &[&str],
    mut said_against: impl FnMut(&Graph, usize) -> Result<Option<String>>,
) -> Result<(Changes, Vec<String>)> {
    let (mut changes, mut left_out, mut made_precise) = (Changes::default(), Reasons::default(), Reasons::default());
    let mut passed: HashSet<(&'static str, usize)> = HashSet::new();
    loop {
        let (changed, fits) = changes.of(graph, without);
        let live = changed.live();
        // The last rule at a node is the one that made it what it is.
        let last: HashMap<usize, &'static str> = fits.iter().map(|fit| (fit.at, fit.rule)).collect();
        let mut found = false;
        for at in (0..changed.nodes.len()).filter(|&at| live[at]) {
            let Some(&rule) = last.get(&at).filter(|rule| !passed.contains(&(**rule, at))) else { continue };
            let Some(reason) = said_against(&changed, at)? else {
                passed.insert((rule, at));
                continue;
            };
            found = true;
            if let Some(precision) = changed.nodes[at].more_precise() {
                changes.precise.insert(at, precision);
                if changed.nodes[at].precision == ProductPrecision::Fastest {
                    made_precise.add(rule, reason);
                }
            } else {
                changes.precise.remove(&at);
                changes.refused.insert((rule, at));
                left_out.add(rule, reason);
            }
        }
        if !found {
            let notes = left_out.notes("stays out").into_iter().chain(made_precise.notes("has more precise products"));
            return Ok((changes, notes.collect()));
        }
    }
}

/// Holds a changed node against double precision, on operands as candle's operators give them. A node of few numbers is held on operands
/// nearby, too, all of them together: the numbers of one row share the error of its norm, or of its attention's weights.
fn verdict(
    original: &Graph,
    changed: &Graph,
    at: usize,
    typed: &mut Evaluation,
    set: &Set,
) -> Result<std::result::Result<(), String>> {
    // Grouped convolutions are one in the original, too: there is nothing to compare with in a time that anyone would wait.
    if matches!(original.nodes[at].compute, Compute::FusedConvolution(_)) {
        return Ok(Ok(()));
    }
    let constant = changed.constant();
    let has_others = |value: &Value| !changed.is_constant(*value, &constant) && changed.element(*value).is_float();
    let values: HashSet<Value> = changed.nodes[at].operands.iter().map(|operand| operand.value).collect();
    let operands = values.into_iter().map(|value| Ok((value, typed.tensor(value)?))).collect::<Result<Vec<_>>>()?;
    let value = Value::Node(at);
    let varying = operands.iter().filter(|(value, _)| has_others(value)).map(|(_, tensor)| tensor.elem_count()).sum();
    let first = typed.tensor(value)?;
    let runs = runs_for(first.elem_count(), ENOUGH_OF_ROWS, varying);
    let run = |number: usize| -> Result<[Tensor; 3]> {
        let of = |graph, arithmetic| Evaluation::new(graph, &set.inputs, arithmetic, set.numbers, compute);
        let double = Arithmetic::In(DType::F64);
        let (mut reference, mut candle) = (of(original, double), of(original, Arithmetic::Typed));
        let mut other = of(changed, Arithmetic::Typed);
        for (value, tensor) in &operands {
            let tensor = if has_others(value) { nearby(tensor, number)? } else { tensor.clone() };
            reference.assume(*value, tensor.to_dtype(double.dtype(original.element(*value)))?);
            candle.assume(*value, tensor.clone());
            other.assume(*value, tensor);
        }
        let candle = if number == 0 { first.clone() } else { candle.tensor(value)? };
        Ok([reference.tensor(value)?, candle, other.tensor(value)?])
    };
    let runs = (0..runs).map(run).collect::<Result<Vec<_>>>()?;
    let [reference, candle, other] = [0, 1, 2].map(|at| in_one_row(runs.iter().map(|run| &run[at])));
    Ok(compare(&reference?, &candle?, &other?)?.map(drop))
}
