//! Chooses the rewrites of a run that are no less accurate than candle's operators on the operands of a recorded pass.

use candle::{Result, Tensor};
use hashbrown::HashSet;
use opara_plan::rewrite::rules::{self, Match, RULES};
use opara_plan::rewrite::{downstream, Changes, Downstream, Graph, Node, ProductPrecision, Standing};

use super::accuracy::{compare, near, same_kinds, Compared};
use super::alone::alone;
use super::evaluate::{evaluate, evaluate_downstream, Arithmetic, Numbers};
use super::folds::settled_folds;
use super::set::{beginning, in_one_row, with_outputs, Intermediates, Set, ENOUGH};

/// The rewritten run.
pub(crate) struct Choice {
    pub graph: Graph,
    pub fits: Vec<Match>,
    pub compared: Compared,
    /// Which launches stay candle's, and why.
    pub notes: Vec<String>,
    /// The rules that stand.
    pub standing: Standing,
}

/// The choice of an earlier build, if it is no less accurate than candle's operators on this pass's operands, and `using` accepts it.
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
    let Ok(compared) = checked(graph, &changed, sets)? else { return Ok(None) };
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
        let (changed, _) = choice.standing.changes().of(graph, &others);
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
/// Norms are folded into convolutions of 16 bits only where any mean of what these read allows it. All are tried together then. If that fails, the last product is more precise. If that does not help, each changed node is held
/// against double precision by itself, on what candle's operators give it, and gets more precise products, or loses what is less
/// accurate. If the rest fails together, more products of f32 are precise; if that does not help, rules are added one after the other.
///
/// # Errors
/// The inner one says why nothing stands.
pub(super) fn choose(graph: &Graph, without: &[&str], sets: &[Set]) -> Result<std::result::Result<Choice, String>> {
    // Its kernel computes rows that are not finite once more, without tensor cores.
    let fits =
        |rule: &&str| rules::apply(&mut graph.clone(), without, &HashSet::new()).iter().any(|fit| fit.rule == *rule);
    let is_slow = sets.iter().any(|set| set.numbers == Numbers::Finite).then_some("attention").filter(fits);
    let without = &without.iter().copied().chain(is_slow).collect::<Vec<_>>()[..];
    let attempt = |without: &[&str], changes: &Changes| -> Result<std::result::Result<Choice, String>> {
        let (changed, fits) = changes.of(graph, without);
        if fits.is_empty() {
            return Ok(Err("no rule is left".into()));
        }
        let compared = checked(graph, &changed, sets)?;
        let standing = Standing::new(without, changes, &fits);
        Ok(compared.map(|compared| Choice { graph: changed, fits, compared, notes: Vec::new(), standing }))
    };
    let slow = is_slow.map(|rule| format!("{rule} stays out: the run gives no finite number"));
    let (folds, notes) = settled_folds(graph, without, sets)?;
    let kept_out: Vec<String> = slow.into_iter().chain(notes).collect();
    let first = match attempt(without, &folds)? {
        Ok(choice) => return Ok(Ok(Choice { notes: kept_out, ..choice })),
        Err(reason) => reason,
    };
    if let Some(reason) = unexplained(graph, sets)? {
        return Ok(Err(reason));
    }
    // Errors of the last product are the output's own. More precision there is tried before anything is left out.
    if let Some(last) = fastest_products(graph, without, &folds).into_iter().next() {
        let mut changes = folds.clone();
        changes.precise.extend([last]);
        if let Ok(choice) = attempt(without, &changes)? {
            let notes = kept_out.into_iter().chain([format!("the last product is more precise: {first}")]).collect();
            return Ok(Ok(Choice { notes, ..choice }));
        }
    }
    let (mut changes, notes) = alone(graph, without, sets)?;
    changes.refused.extend(folds.refused);
    let notes: Vec<String> = kept_out.into_iter().chain(notes).collect();
    let with_reason = || notes.iter().cloned().chain([first.clone()]).collect::<Vec<_>>();
    if !changes.is_empty() {
        if let Ok(choice) = attempt(without, &changes)? {
            return Ok(Ok(Choice { notes: with_reason(), ..choice }));
        }
    }
    let passes = |changes: &Changes| attempt(without, changes).map(std::result::Result::ok);
    if let Some(choice) = more_precise(graph, without, &changes, passes)? {
        return Ok(Ok(Choice { notes: with_reason(), ..choice }));
    }
    let mut best = None;
    let mut out: Vec<&str> = RULES.iter().map(|rule| rule.name).collect();
    for rule in RULES.iter().filter(|rule| !without.contains(&rule.name)) {
        let tried: Vec<&str> = out.iter().copied().filter(|name| *name != rule.name).collect();
        if !changes.of(graph, &tried).1.iter().any(|fit| fit.rule == rule.name) {
            continue;
        }
        if let Ok(choice) = attempt(&tried, &changes)? {
            (best, out) = (Some(choice), tried);
        }
    }
    Ok(match best {
        Some(choice) => Ok(Choice { notes: with_reason(), ..choice }),
        None => Err(with_reason().join("; ")),
    })
}

/// What passes together because the last products of f32 are more precise, as few of them as bisection finds. Errors of TF32 at the
/// end of many layers differ by more than a twentieth from one order of sums to another. The last layers have the smallest images,
/// where precision takes the least time.
pub(super) fn more_precise<T>(
    graph: &Graph,
    without: &[&str],
    changes: &Changes,
    passes: impl Fn(&Changes) -> Result<Option<T>>,
) -> Result<Option<T>> {
    let ways = fastest_products(graph, without, changes);
    if ways.is_empty() {
        return Ok(None);
    }
    let with = |last: usize| {
        let mut changes = changes.clone();
        changes.precise.extend(ways[..last].iter().copied());
        passes(&changes)
    };
    let Some(mut best) = with(ways.len())? else { return Ok(None) };
    let (mut too_few, mut enough) = (0, ways.len());
    while enough - too_few > 1 {
        let middle = too_few.midpoint(enough);
        match with(middle)? {
            Some(found) => (best, enough) = (found, middle),
            None => too_few = middle,
        }
    }
    Ok(Some(best))
}

/// The products of a changed graph that can be more precise than the fastest, each with how; the last one first.
fn fastest_products(graph: &Graph, without: &[&str], changes: &Changes) -> Vec<(usize, ProductPrecision)> {
    let (changed, _) = changes.of(graph, without);
    let live = changed.live();
    let is_fastest = |(at, node): &(usize, &Node)| live[*at] && node.precision == ProductPrecision::Fastest;
    let nodes = changed.nodes.iter().enumerate().rev().filter(is_fastest);
    nodes.filter_map(|(at, node)| Some((at, node.more_precise()?))).collect()
}

/// Compares what a changed graph computes with double precision. Returns the largest errors.
fn checked(graph: &Graph, changed: &Graph, sets: &[Set]) -> Result<std::result::Result<Compared, String>> {
    let mut worst = Compared::default();
    for set in sets {
        let verdict = match by_intermediates(graph, changed, set) {
            Ok(Some(verdict)) => verdict,
            // There may be no memory for the intermediate values.
            Ok(None) | Err(_) => by_outputs(graph, changed, set)?,
        };
        match verdict {
            Ok(compared) => worst = worst.or_worse(compared),
            Err(reason) => return Ok(Err(reason)),
        }
        let Some(recorded) = &set.recorded else { continue };
        for (candle, other) in recorded.iter().zip(evaluate(changed, &set.inputs, Arithmetic::Typed, Numbers::All)?) {
            if let Err(reason) = same_kinds(candle, &other)? {
                return Ok(Err(reason));
            }
        }
    }
    Ok(Ok(worst))
}

/// One output of the run on all sets of operands, in double precision and by candle's operators.
fn of_all(graph: &Graph, set: &Set, at: usize) -> Result<[Tensor; 2]> {
    let references = in_one_row(set.all(graph).map(|set| &set.references[at]))?;
    Ok([references, in_one_row(set.all(graph).map(|set| &set.outputs[at]))?])
}

/// Compares the outputs of the run on all sets of operands together.
fn by_outputs(graph: &Graph, changed: &Graph, set: &Set) -> Result<std::result::Result<Compared, String>> {
    let given = set.all(graph).map(|set| evaluate(changed, &set.inputs, Arithmetic::Typed, set.numbers));
    let given = given.collect::<Result<Vec<_>>>()?;
    worst_of((0..set.outputs.len()).map(|at| {
        let [reference, candle] = of_all(graph, set, at)?;
        let other = in_one_row(given.iter().map(|given| &given[at]))?;
        // By the first item alone, candle's are that one's.
        let other = beginning(&other, candle.elem_count())?;
        Ok([reference, candle, other])
    }))
}

/// Compares outputs that have too few elements for statistics: computes them from the intermediate values, on candle's and on perturbed
/// copies, and counts all errors together.
fn by_downstream_runs(
    graph: &Graph,
    changed: &Graph,
    set: &Set,
    intermediates: &Intermediates,
) -> Result<std::result::Result<Compared, String>> {
    let runs = intermediates.downstream_runs(graph, set)?;
    let given =
        runs.iter().map(|run| evaluate_downstream(&run.known, changed, &set.inputs, Arithmetic::Typed, set.numbers));
    let given = given.collect::<Result<Vec<_>>>()?;
    let are_few = |at: &usize| set.outputs[*at].elem_count() < ENOUGH;
    worst_of((0..set.outputs.len()).filter(are_few).map(|at| {
        let references = in_one_row(runs.iter().map(|run| &run.references[at]))?;
        let candle = in_one_row(runs.iter().map(|run| &run.candle[at]))?;
        Ok([references, candle, in_one_row(given.iter().map(|given| &given[at]))?])
    }))
}

/// The largest errors of some results, each in double precision, candle's, and the changed one. The inner error says why one is refused.
fn worst_of(results: impl Iterator<Item = Result<[Tensor; 3]>>) -> Result<std::result::Result<Compared, String>> {
    let mut worst = Compared::default();
    for result in results {
        let [reference, candle, other] = result?;
        match compare(&reference, &candle, &other)? {
            Ok(compared) => worst = worst.or_worse(compared),
            Err(reason) => return Ok(Err(reason)),
        }
    }
    Ok(Ok(worst))
}

/// Why no change can be judged: double precision does not reproduce candle's own results, or nothing is finite.
fn unexplained(graph: &Graph, sets: &[Set]) -> Result<Option<String>> {
    for set in sets {
        let values = match &set.intermediates {
            Some(Intermediates { candle, references, .. }) => {
                references.iter().cloned().zip(candle.iter().cloned()).map(<[Tensor; 2]>::from).collect()
            }
            None => (0..set.outputs.len()).map(|at| of_all(graph, set, at)).collect::<Result<Vec<_>>>()?,
        };
        for [reference, candle] in values {
            if let Err(reason) = compare(&reference, &candle, &candle)? {
                return Ok(Some(reason));
            }
        }
    }
    Ok(None)
}

/// Compares the large outputs, the intermediate values that the small outputs come from, and, where their downstream nodes are changed,
/// the small outputs. `None` if there are no such values, if downstream nodes read more than these, or if an output does not follow from
/// values as accurate as candle's.
fn by_intermediates(
    graph: &Graph,
    changed: &Graph,
    set: &Set,
) -> Result<Option<std::result::Result<Compared, String>>> {
    let Some(intermediates) = &set.intermediates else { return Ok(None) };
    let Some(downstream) = downstream(&intermediates.nodes, graph, changed) else { return Ok(None) };
    // A few integers downstream show errors only by chance.
    if downstream == Downstream::Changed && set.outputs.iter().any(|output| !output.dtype().is_float()) {
        return Ok(None);
    }
    let asked = with_outputs(changed, &intermediates.nodes);
    let given = evaluate(&asked, &set.inputs, Arithmetic::Typed, set.numbers)?;
    let outputs = set.references.iter().zip(&set.outputs);
    let values = outputs.clone().chain(intermediates.references.iter().zip(&intermediates.candle)).zip(&given);
    let mut worst = Compared::default();
    for ((reference, candle), other) in values.filter(|(_, other)| other.elem_count() >= ENOUGH) {
        match compare(reference, candle, other)? {
            Ok(compared) => worst = worst.or_worse(compared),
            Err(reason) => return Ok(Some(Err(reason))),
        }
    }
    if downstream == Downstream::Changed {
        match by_downstream_runs(graph, changed, set, intermediates)? {
            Ok(compared) => worst = worst.or_worse(compared),
            Err(reason) => return Ok(Some(Err(reason))),
        }
    }
    for ((reference, candle), other) in outputs.zip(&given) {
        if !follows([reference, candle, other], worst.apart())? {
            return Ok(None);
        }
    }
    Ok(Some(Ok(worst)))
}

/// Can a result come from values at distance `apart` from candle's? Integers must be equal.
pub(super) fn follows([reference, candle, other]: [&Tensor; 3], apart: f64) -> Result<bool> {
    let apart = if candle.dtype().is_float() { apart } else { 0. };
    let is_explained = near(reference, candle, f64::INFINITY)?.is_ok();
    let are_same_kinds = same_kinds(candle, other)?.is_ok() && same_kinds(other, candle)?.is_ok();
    Ok(is_explained && are_same_kinds && near(candle, other, apart)?.is_ok())
}
