//! Which rewrites of a run stand: those that are no less accurate than candle's on what a recorded pass had.

use std::collections::BTreeMap;

use candle::{DType, Result, Tensor};
use hashbrown::{HashMap, HashSet};
use opara_plan::rewrite::rules::{self, Fit, RULES};
use opara_plan::rewrite::{Compute, Graph, Standing, Value};

use super::accuracy::{compare, same_kinds, Compared};
use super::evaluate::{evaluate, Arithmetic, Numbers};
use super::evaluation::Evaluation;
use super::operators::compute;

/// The operands and results of a run.
pub(crate) struct Set {
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    /// The same outputs in double precision.
    references: Vec<Tensor>,
    /// Whether only the finite numbers count: candle gave no others.
    numbers: Numbers,
    /// candle's outputs, if `outputs` were computed anew.
    recorded: Option<Vec<Tensor>>,
}

impl Set {
    /// Of a run that gave these outputs. If one of them has no finite number, the run is computed once more by candle's operators,
    /// with zeros in the place of what is not finite: BERT's mask in f16, 0 times minus infinity, makes everything NaN.
    ///
    /// # Errors
    /// A graph that cannot be computed.
    pub fn new(graph: &Graph, inputs: Vec<Tensor>, outputs: Vec<Tensor>) -> Result<Self> {
        let has_no_finite =
            outputs.iter().map(super::accuracy::has_no_finite).collect::<Result<Vec<_>>>()?.contains(&true);
        let (numbers, recorded, outputs) = match has_no_finite {
            false => (Numbers::All, None, outputs),
            true => {
                let finite = evaluate(graph, &inputs, Arithmetic::Typed, Numbers::Finite)?;
                (Numbers::Finite, Some(outputs), finite)
            }
        };
        let references = in_double_precision(graph, &inputs, numbers)?;
        Ok(Self { inputs, outputs, references, numbers, recorded })
    }
}

/// A graph's outputs in double precision. Grouped convolutions are one each there: candle takes seconds for thousands of groups.
fn in_double_precision(graph: &Graph, inputs: &[Tensor], numbers: Numbers) -> Result<Vec<Tensor>> {
    let arithmetic = Arithmetic::In(DType::F64);
    evaluate(&joined(graph), inputs, arithmetic, numbers).or_else(|_| evaluate(graph, inputs, arithmetic, numbers))
}

/// The graph with grouped convolutions as one each, and nothing else changed.
fn joined(graph: &Graph) -> Graph {
    let others: Vec<&str> = RULES.iter().map(|rule| rule.name).filter(|name| *name != "grouped-convolution").collect();
    let mut joined = graph.clone();
    rules::apply(&mut joined, &others, &HashSet::new());
    joined
}

/// The rewritten run.
pub(crate) struct Choice {
    pub graph: Graph,
    pub fits: Vec<Fit>,
    pub compared: Compared,
    /// What stays candle's, and why.
    pub notes: Vec<String>,
    /// The rules that stand.
    pub standing: Standing,
}

/// What an earlier build chose, if it is still no less accurate than candle's on what this pass had, and can be used.
///
/// # Errors
/// Those of `using`, and a graph that cannot be computed.
pub(crate) fn choose_as_before<T>(
    graph: &Graph,
    standing: &Standing,
    sets: &[Set],
    using: impl FnOnce(&Graph, &[Tensor]) -> crate::Result<std::result::Result<T, String>>,
) -> crate::Result<Option<(Choice, T)>> {
    let Some((changed, fits)) = standing.applied(graph) else { return Ok(None) };
    let Ok(compared) = checked(&changed, sets)? else { return Ok(None) };
    let inputs = sets.first().map(|set| &set.inputs[..]).unwrap_or_default();
    let Ok(used) = using(&changed, inputs)? else { return Ok(None) };
    let standing = standing.clone();
    Ok(Some((Choice { graph: changed, fits, compared, notes: Vec::new(), standing }, used)))
}

/// [`choose`], such that what is chosen can be used, too: `using` gives how, or says why not. If not, the run does without the rule
/// whose operator it is.
///
/// # Errors
/// Those of `using`. The inner one says why nothing stands.
pub(crate) fn choose_usable<T>(
    graph: &Graph,
    without: &[&str],
    sets: &[Set],
    mut using: impl FnMut(&Graph, &[Tensor]) -> crate::Result<std::result::Result<T, String>>,
) -> crate::Result<std::result::Result<(Choice, T), String>> {
    let inputs = sets.first().map(|set| &set.inputs[..]).unwrap_or_default();
    let choice = match choose(graph, without, sets)? {
        Ok(choice) => choice,
        Err(reason) => return Ok(Err(reason)),
    };
    let why = match using(&choice.graph, inputs)? {
        Ok(used) => return Ok(Ok((choice, used))),
        Err(why) => why,
    };
    let fitted: Vec<&str> = rules::counted(&choice.fits).into_iter().map(|(rule, _)| rule).collect();
    // The last first: others build on those before.
    for &rule in fitted.iter().rev() {
        let names = RULES.iter().map(|rule| rule.name);
        let others: Vec<&str> = names.filter(|name| *name == rule || !fitted.contains(name)).collect();
        let mut changed = graph.clone();
        rules::apply(&mut changed, &others, &choice.standing.refused());
        // Accuracy takes longer to find out.
        let Ok(used) = using(&changed, inputs)? else { continue };
        let without: Vec<&str> = without.iter().copied().chain([rule]).collect();
        let Ok(mut other) = choose(graph, &without, sets)? else { continue };
        let used = if other.graph == changed { Ok(used) } else { using(&other.graph, inputs)? };
        if let Ok(used) = used {
            other.notes.push(format!("{rule} stays out: {why}"));
            return Ok(Ok((other, used)));
        }
    }
    Ok(Err(why))
}

/// Changes a graph by all rules that are not `without` and no less accurate than candle's.
///
/// All are tried together first. If that fails, each changed node is held against double precision by itself, on what candle's
/// operators give it, and loses what is less accurate; if the rest fails together, rules are added one after the other.
///
/// # Errors
/// The inner one says why nothing stands.
pub(super) fn choose(graph: &Graph, without: &[&str], sets: &[Set]) -> Result<std::result::Result<Choice, String>> {
    // Its kernel computes rows that are not finite once more, without tensor cores.
    let fits =
        |rule: &&str| rules::apply(&mut graph.clone(), without, &HashSet::new()).iter().any(|fit| fit.rule == *rule);
    let is_slow = sets.iter().any(|set| set.numbers == Numbers::Finite).then_some("attention").filter(fits);
    let without = &without.iter().copied().chain(is_slow).collect::<Vec<_>>()[..];
    let attempt =
        |without: &[&str], refused: &HashSet<(&'static str, usize)>| -> Result<std::result::Result<Choice, String>> {
            let mut changed = graph.clone();
            let fits = rules::apply(&mut changed, without, refused);
            if fits.is_empty() {
                return Ok(Err("no rule is left".into()));
            }
            let standing = Standing::new(without, refused, &fits);
            Ok(checked(&changed, sets)?.map(|compared| Choice {
                graph: changed,
                fits,
                compared,
                notes: Vec::new(),
                standing,
            }))
        };
    let slow = is_slow.map(|rule| format!("{rule} stays out: the run gives no finite number"));
    let first = match attempt(without, &HashSet::new())? {
        Ok(choice) => return Ok(Ok(Choice { notes: slow.into_iter().collect(), ..choice })),
        Err(reason) => reason,
    };
    let Refused { nodes, reasons } = refused(graph, without, sets)?;
    let notes = reasons.into_iter().map(|(rule, (times, why))| format!("{rule} stays out {times} times: {why}"));
    let notes: Vec<String> = slow.into_iter().chain(notes).collect();
    if !nodes.is_empty() {
        if let Ok(choice) = attempt(without, &nodes)? {
            return Ok(Ok(Choice { notes, ..choice }));
        }
    }
    let mut best = None;
    let mut out: Vec<&str> = RULES.iter().map(|rule| rule.name).collect();
    for rule in RULES.iter().filter(|rule| !without.contains(&rule.name)) {
        let tried: Vec<&str> = out.iter().copied().filter(|name| *name != rule.name).collect();
        let mut changed = graph.clone();
        if !rules::apply(&mut changed, &tried, &nodes).iter().any(|fit| fit.rule == rule.name) {
            continue;
        }
        if let Ok(choice) = attempt(&tried, &nodes)? {
            (best, out) = (Some(choice), tried);
        }
    }
    let reasons = || notes.iter().cloned().chain([first.clone()]).collect::<Vec<_>>();
    Ok(match best {
        Some(choice) => Ok(Choice { notes: reasons(), ..choice }),
        None => Err(reasons().join("; ")),
    })
}

/// Holds what a changed graph computes against double precision; the worst of its outputs.
fn checked(changed: &Graph, sets: &[Set]) -> Result<std::result::Result<Compared, String>> {
    let mut worst = Compared::default();
    for Set { inputs, outputs, references, numbers, recorded } in sets {
        let given = evaluate(changed, inputs, Arithmetic::Typed, *numbers)?;
        for ((reference, candle), other) in references.iter().zip(outputs).zip(&given) {
            match compare(reference, candle, other)? {
                Ok(compared) if compared.other.rms >= worst.other.rms => worst = compared,
                Ok(_) => {}
                Err(reason) => return Ok(Err(reason)),
            }
        }
        let Some(recorded) = recorded else { continue };
        for (candle, other) in recorded.iter().zip(evaluate(changed, inputs, Arithmetic::Typed, Numbers::All)?) {
            if let Err(reason) = same_kinds(candle, &other)? {
                return Ok(Err(reason));
            }
        }
    }
    Ok(Ok(worst))
}

/// Where rules are less accurate than candle.
#[derive(Default)]
pub(super) struct Refused {
    nodes: HashSet<(&'static str, usize)>,
    /// By rule: how often, and the first reason.
    pub(super) reasons: BTreeMap<&'static str, (usize, String)>,
}

/// Holds each changed node against double precision on its own operands. Without what made it less accurate other nodes come to be,
/// which are held against it, too.
pub(super) fn refused(graph: &Graph, without: &[&str], sets: &[Set]) -> Result<Refused> {
    let mut refused = Refused::default();
    let mut passed: HashSet<(&'static str, usize)> = HashSet::new();
    let original = joined(graph);
    // candle's values of all nodes.
    let mut typed: Vec<Evaluation> = sets
        .iter()
        .map(|set| Evaluation::new(&original, &set.inputs, Arithmetic::Typed, set.numbers, compute))
        .collect();
    for (at, _) in original.live().into_iter().enumerate().filter(|(_, is_live)| *is_live) {
        typed.iter_mut().try_for_each(|typed| typed.tensor(Value::Node(at)).map(drop))?;
    }
    loop {
        let mut changed = graph.clone();
        let fits = rules::apply(&mut changed, without, &refused.nodes);
        let live = changed.live();
        // The last rule at a node is the one that made it what it is.
        let last: HashMap<usize, &'static str> = fits.iter().map(|fit| (fit.at, fit.rule)).collect();
        let mut found = false;
        for at in (0..changed.nodes.len()).filter(|&at| live[at]) {
            let Some(&rule) = last.get(&at).filter(|rule| !passed.contains(&(**rule, at))) else { continue };
            let mut verdicts =
                typed.iter_mut().zip(sets).map(|(typed, set)| alone(&original, &changed, at, typed, set));
            let failed = verdicts.find_map(|verdict| verdict.map(std::result::Result::err).transpose()).transpose()?;
            match failed {
                None => drop(passed.insert((rule, at))),
                Some(reason) => {
                    found = true;
                    refused.nodes.insert((rule, at));
                    refused.reasons.entry(rule).or_insert((0, reason)).0 += 1;
                }
            }
        }
        if !found {
            return Ok(refused);
        }
    }
}

/// Holds a changed node against double precision, on operands as candle's operators give them.
fn alone(
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
    let of = |graph, arithmetic| Evaluation::new(graph, &set.inputs, arithmetic, set.numbers, compute);
    let (mut other, mut reference) = (of(changed, Arithmetic::Typed), of(original, Arithmetic::In(DType::F64)));
    for operand in &changed.nodes[at].operands {
        if let Value::Node(_) = operand.value {
            let value = typed.tensor(operand.value)?;
            reference.assume(
                operand.value,
                value.to_dtype(Arithmetic::In(DType::F64).dtype(original.element(operand.value)))?,
            );
            other.assume(operand.value, value);
        }
    }
    let value = Value::Node(at);
    let (candle, other) = (typed.tensor(value)?, other.tensor(value)?);
    Ok(compare(&reference.tensor(value)?, &candle, &other)?.map(drop))
}
