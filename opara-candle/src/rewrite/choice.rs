//! Chooses the rewrites of a run that are no less accurate than candle's operators on the operands of a recorded pass.

use candle::{Result, Tensor};
use hashbrown::HashSet;
use opara_plan::rewrite::rules::{self, Match, RULES};
use opara_plan::rewrite::{Changes, Compared, Graph, Standing};

use super::alone::said_against;
use super::evaluate::Numbers;
use super::folds::settled_folds;
use super::judgement::judge;
use super::set::{joined, Set};
use super::settling::Settling;

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
    let inputs = sets.first().map(Set::inputs).unwrap_or_default();
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

/// The run as it is, on candle's operators: no rule stands, for a reason.
///
/// # Errors
/// The inner one says why its results cannot be held against double precision.
pub(crate) fn unchanged(graph: &Graph, sets: &[Set], why: String) -> Result<std::result::Result<Choice, String>> {
    let all: Vec<&str> = RULES.iter().map(|rule| rule.name).collect();
    let standing = Standing::new(&all, &Changes::default(), &[]);
    let of = |compared| Choice { graph: graph.clone(), fits: Vec::new(), compared, notes: vec![why], standing };
    Ok(judge(graph, (graph, &[]), sets)?.map(of))
}

/// Changes a graph by all rules that are not `without` and no less accurate than candle's. Norms are folded into convolutions of 16 bits
/// only where any mean of what these read allows it. All are tried together then, and what [`Settling::search`] leaves of them.
///
/// # Errors
/// The inner one says why nothing stands.
pub(super) fn choose(graph: &Graph, without: &[&str], sets: &[Set]) -> Result<std::result::Result<Choice, String>> {
    // Its kernel computes rows that are not finite once more, without tensor cores.
    let fits =
        |rule: &&str| rules::apply(&mut graph.clone(), without, &HashSet::new()).iter().any(|fit| fit.rule == *rule);
    let is_slow = sets.iter().any(|set| set.numbers == Numbers::Finite).then_some("attention").filter(fits);
    let without = &without.iter().copied().chain(is_slow).collect::<Vec<_>>()[..];
    let (folds, fold_notes) = settled_folds(graph, without, sets)?;
    let slow = is_slow.map(|rule| format!("{rule} stays out: the run gives no finite number"));
    let kept_out: Vec<String> = slow.into_iter().chain(fold_notes).collect();
    let attempt = |changes: &Changes| -> Result<std::result::Result<Choice, String>> {
        let (changed, fits) = changes.of(graph, without);
        if fits.is_empty() {
            return Ok(Err("no rule is left".into()));
        }
        let compared = judge(graph, (&changed, &fits), sets)?;
        let standing = Standing::new(without, changes, &fits);
        Ok(compared.map(|compared| Choice { graph: changed, fits, compared, notes: Vec::new(), standing }))
    };
    let why = match attempt(&folds)? {
        Ok(choice) => return Ok(Ok(Choice { notes: kept_out, ..choice })),
        Err(reason) => reason,
    };
    for set in sets {
        if let Some(reason) = set.unexplained(graph)? {
            return Ok(Err(reason));
        }
    }
    let (original, mut settling) = (joined(graph), Settling::new(graph, without, folds));
    let found = settling.search(said_against(&original, sets), |changes| Ok(attempt(changes)?.ok()))?;
    let notes: Vec<String> = kept_out.into_iter().chain(settling.notes()).chain([why]).collect();
    Ok(match found {
        Some(choice) => Ok(Choice { notes, ..choice }),
        None => Err(notes.join("; ")),
    })
}
