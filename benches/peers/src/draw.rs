//! Writes all tables and plots of some results to a folder.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::contestants::place;
use crate::markdown::{details, header, kernels, medians, schedulers};
use crate::plots::{speedups, throughput};
use crate::results::{Cell, Results};

/// The default baseline of speed-ups, as in Opara's paper.
pub const BASELINE: &str = "torch eager";

/// Writes `results.md` and its plots to a folder, which is created if needed, and returns the files. Speed-ups are
/// relative to the contestant called `baseline`.
///
/// # Errors
/// A folder or a file that cannot be written.
pub fn draw(results: &Results, folder: &Path, baseline: &str) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut cells = results.cells();
    for cell in &mut cells {
        cell.contestants.sort_by_key(|contestant| place(&contestant.name));
    }
    let plots = plots(&cells, baseline)?;
    let page = ("results.md".to_string(), page(results, &cells, &plots)?);
    let write = |(name, text)| {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    };
    std::iter::once(page).chain(plots).map(write).collect()
}

/// File names and contents.
fn plots(cells: &[Cell], baseline: &str) -> Result<Vec<(String, String)>> {
    let mut plots = Vec::new();
    let all: BTreeSet<(&str, usize)> = cells.iter().map(|cell| (cell.key.dtype.as_str(), cell.key.batch)).collect();
    for &(dtype, batch) in &all {
        let svg = speedups(cells, dtype, batch, baseline)?;
        plots.extend(svg.map(|svg| (format!("speedups-{dtype}-batch{batch}.svg"), svg)));
    }
    for dtype in all.iter().map(|(dtype, _)| *dtype).collect::<BTreeSet<_>>() {
        plots.extend(throughput(cells, dtype)?.map(|svg| (format!("throughput-{dtype}.svg"), svg)));
    }
    Ok(plots)
}

fn page(results: &Results, cells: &[Cell], plots: &[(String, String)]) -> Result<String> {
    let mut page = format!("# Results\n\n{}\n## GPU time\n\n{}\n", header(results), medians(cells));
    writeln!(
        page,
        "Medians, in microseconds; the fastest of a row is bold. Last column: the time of the fastest peer"
    )?;
    writeln!(page, "over that of our fastest in the row; below 1x the peer is ahead.")?;
    for (name, _) in plots {
        writeln!(page, "\n![{}]({name})", name.trim_end_matches(".svg"))?;
    }
    write!(page, "\n## Schedulers\n\n{}", schedulers(cells))?;
    let kernels = cells.iter().filter_map(|cell| Some((&cell.key, kernels(cell)?)));
    for (at, (key, table)) in kernels.enumerate() {
        let title = if at == 0 { "\n## Kernels by family\n" } else { "" };
        write!(page, "{title}\n### {key}\n\n{table}")?;
    }
    write!(page, "\n## Details\n")?;
    for cell in cells {
        write!(page, "\n### {}\n\n{}", cell.key, details(cell))?;
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Kernel, Outcome};
    use crate::tests::{cell, failed, measured, results};

    fn names(written: &[PathBuf]) -> Vec<&str> {
        written.iter().filter_map(|path| path.file_name()?.to_str()).collect()
    }

    #[test]
    fn the_page_shows_every_plot_that_was_written() {
        let mut tuned = measured("tuned", 50.);
        if let Outcome::Measured(measured) = &mut tuned.outcome {
            measured.kernels = vec![Kernel { name: "badd_f16".into(), calls: 1., us: 2. }];
        }
        let cells = [
            cell("bert", "f16", 1, [failed("torch graph", "no memory"), measured(BASELINE, 100.), tuned]),
            cell("bert", "f16", 8, [measured("tuned", 90.)]),
            cell("t5", "f32", 1, [measured("tuned", 90.)]),
        ];
        let folder = tempfile::tempdir().unwrap();
        let written = draw(&results(cells), &folder.path().join("new"), BASELINE).unwrap();
        assert_eq!(names(&written), ["results.md", "speedups-f16-batch1.svg", "throughput-f16.svg"]);
        let page = fs::read_to_string(&written[0]).unwrap();
        for name in &names(&written)[1..] {
            assert!(page.contains(&format!("]({name})")), "{page}");
        }
        let titles: Vec<&str> = page.lines().filter(|line| line.starts_with("## ")).collect();
        assert_eq!(titles, ["## GPU time", "## Schedulers", "## Kernels by family", "## Details"]);
        assert_eq!(page.lines().filter(|line| line.starts_with("### ")).count(), 4);
        assert!(page.contains("| element-wise"), "{page}");
        let (_, details) = page.split_once("## Details").unwrap();
        let at = |name: &str| details.find(&format!("| {name} ")).unwrap();
        assert!(at("tuned") < at(BASELINE) && at(BASELINE) < at("torch graph"), "{page}");
    }

    #[test]
    fn empty_results_give_a_page() {
        let folder = tempfile::tempdir().unwrap();
        let written = draw(&results([]), folder.path(), BASELINE).unwrap();
        assert_eq!(names(&written), ["results.md"]);
    }

    #[test]
    fn a_file_is_no_folder() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = draw(&results([]), file.path(), BASELINE).unwrap_err();
        assert!(error.to_string().starts_with("cannot make "), "{error}");
    }
}
