//! Merges the results of several runs into one file per model and type.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::results::{Results, Run};

/// Writes results to a folder, which is created if needed: one file `MODEL-DTYPE.json` each, with the contestants that
/// `wants` selects.
///
/// # Returns
/// The files. Other files in the folder stay unchanged.
///
/// # Errors
/// A folder or a file that cannot be written.
pub fn merge(results: Results, wants: impl Fn(&str) -> bool, folder: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let write = |((model, dtype), runs)| {
        let path = folder.join(format!("{model}-{dtype}.json"));
        Results::new(runs).save(&path)?;
        Ok(path)
    };
    by_model(results.runs, wants).into_iter().map(write).collect()
}

/// For each model and type, the runs that measured wanted contestants of it.
fn by_model(runs: Vec<Run>, wants: impl Fn(&str) -> bool) -> BTreeMap<(String, String), Vec<Run>> {
    let mut files: BTreeMap<_, Vec<Run>> = BTreeMap::new();
    for Run { machine, turn, cells } in runs {
        let mut parts: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for mut cell in cells {
            cell.contestants.retain(|contestant| wants(&contestant.name));
            if !cell.contestants.is_empty() {
                parts.entry((cell.key.model.clone(), cell.key.dtype.clone())).or_default().push(cell);
            }
        }
        for (of, cells) in parts {
            files.entry(of).or_default().push(Run { machine: machine.clone(), turn, cells });
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::results::{Cell, Measured};
    use crate::tests::{cell, failed, measured, results};

    #[test]
    fn the_last_measurement_is_kept_by_model_and_type() -> Result<()> {
        let folder = TempDir::new()?;
        let before = results([
            cell("bert", "f16", 1, [measured("tuned", 10.), measured("torch graph", 20.)]),
            cell("bert", "f16", 2, [measured("tuned", 11.)]),
            cell("t5", "f16", 1, [measured("tuned", 12.)]),
        ]);
        let after =
            results([cell("bert", "f16", 1, [measured("tuned", 9.)]), cell("bert", "f16", 2, [failed("tuned", "")])]);
        let all = Results::new([before.runs, after.runs].concat());
        let files = merge(all.clone(), |_| true, folder.path())?;
        assert_eq!(files, ["bert-f16.json", "t5-f16.json"].map(|name| folder.path().join(name)));
        let merged = Results::load(&files)?;
        let medians = |results: &Results| {
            let of = |cell: Cell| {
                let medians =
                    cell.contestants.iter().map(|c| (c.name.clone(), c.measured().and_then(Measured::gpu_us)));
                (cell.key.to_string(), medians.collect::<BTreeMap<_, _>>())
            };
            results.cells().into_iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!(medians(&merged), medians(&all), "the same counts");
        let kept = |run: &Run| run.cells.iter().map(|cell| (cell.key.to_string(), cell.contestants.len())).collect();
        let kept: Vec<Vec<(String, usize)>> = merged.runs.iter().map(kept).collect();
        let [one, two] = ["bert f16 batch 1", "bert f16 batch 2"].map(|key| (key.to_string(), 1));
        assert_eq!(kept, [vec![one.clone()], vec![one, two], vec![("t5 f16 batch 1".into(), 1)]]);
        Ok(())
    }

    #[test]
    fn contestants_can_be_chosen() -> Result<()> {
        let folder = TempDir::new()?;
        let all = results([
            cell("bert", "f16", 1, [measured("tuned", 10.), measured("torch graph", 20.)]),
            cell("t5", "f16", 1, [measured("tuned", 12.)]),
        ]);
        let files = merge(all, |name| name == "torch graph", folder.path())?;
        assert_eq!(files, [folder.path().join("bert-f16.json")]);
        let merged = Results::load(&files)?;
        assert_eq!(merged.cells(), [cell("bert", "f16", 1, [measured("torch graph", 20.)])]);
        Ok(())
    }
}
