//! Decisions of rewriting, on disk and back.

use hashbrown::{HashMap, HashSet};

use super::*;
use crate::disk_cache::{Kind, Record};

/// The run of [`convolution_and_norm`], with what stands in it if the norm is left out at one node.
fn standing() -> (Region, Standing) {
    let region = regions(&convolution_and_norm()).remove(0);
    let refused = HashSet::from([("convolution-norm", 4)]);
    let changes = Changes { refused, precise: HashMap::from([(1, ProductPrecision::High)]) };
    let (_, fits) = changes.of(&region.graph, &["convolution-activation"]);
    (region, Standing::new(&["convolution-activation"], &changes, &fits))
}

fn outcome(region: &Region, standing: Option<Standing>) -> Outcome {
    let standing = standing.map(|standing| (standing, Compared { unit: 0.5, ..Compared::default() }));
    let run = Decision { ops: region.ops.clone(), standing, notes: vec!["convolution-norm stays out".into()] };
    Outcome { weights: "some".into(), runs: vec![run], refused: None, times: Some([17.25, 30.5]) }
}

#[test]
fn an_outcome_comes_back_from_disk_and_changes_the_graph_as_before() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let record = Record::new(folder.path(), Kind::Rewriting, "a pass");
    let (region, standing) = standing();
    let kept = outcome(&region, Some(standing.clone()));
    record.store(&kept);
    let back = record.load(Ok::<Outcome, String>);
    assert_eq!(back.as_ref(), Some(&kept));
    let (changed, fits) = standing.changes().of(&region.graph, &standing.without());
    assert_eq!(fits.iter().map(|fit| fit.at).collect::<Vec<_>>(), [0, 1, 2, 3], "not at node 4");
    assert_eq!(changed.nodes[1].precision, ProductPrecision::High);
    assert_eq!(back.and_then(|back| back.runs[0].standing.as_ref()?.0.applied(&region.graph)), Some((changed, fits)));
    Ok(())
}

#[test]
fn rules_that_fit_elsewhere_are_noticed() -> anyhow::Result<()> {
    let (region, standing) = standing();
    // A rule that is no more, and one that fitted more often.
    for (from, to) in [("convolution-norm", "convolution-scale"), ("\"fits\":[", "\"fits\":[[\"convolution\",5,0],")] {
        let text = serde_json::to_string(&standing)?;
        let other: Standing = serde_json::from_str(&text.replace(from, to))?;
        assert!(standing.applied(&region.graph).is_some() && other.applied(&region.graph).is_none(), "{to}");
    }
    // Another graph: without its norm.
    let mut other = region.graph.clone();
    other.nodes[3].compute = Compute::Recorded(Function::Unary("relu".into()));
    other.nodes[3].operands.truncate(1);
    assert_eq!(standing.applied(&other), None);
    Ok(())
}

#[test]
fn an_outcome_of_other_runs_or_weights_is_noticed() {
    let (region, _) = standing();
    let of = outcome(&region, None);
    assert!(of.is_of(std::slice::from_ref(&region), "some"));
    assert!(!of.is_of(std::slice::from_ref(&region), "others"));
    assert!(!of.is_of(&[], "some") && !of.is_of(&[region.clone(), region.clone()], "some"));
    assert!(!of.is_of(&[Region { ops: 0..5, ..region }], "some"));
}
