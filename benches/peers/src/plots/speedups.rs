//! Speed-ups by model, as in Fig. 5 of Opara's paper.

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::{failed, picture, put, shown, text, tick, upright};
use crate::contestants::colour;
use crate::results::Cell;
use crate::stats::ratio;

/// Pixels of a bar, and of the gap between groups.
const BAR: usize = 18;
const GAP: usize = 24;

/// A model and the speed-up of each contestant.
type Group<'a> = (&'a str, Vec<Option<f64>>);

/// Bars for all models of one dtype at one batch size: the median GPU time of `baseline` over that of each contestant,
/// with the number above the bar.
///
/// A cell without the baseline is omitted. `None` if no cell is left.
///
/// # Errors
/// An error of the drawing crate.
pub fn speedups(cells: &[Cell], dtype: &str, batch: usize, baseline: &str) -> Result<Option<String>> {
    let of_both = |cell: &&Cell| cell.key.dtype == dtype && cell.key.batch == batch;
    let cells: Vec<&Cell> = cells.iter().filter(of_both).collect();
    let mut names = shown(&cells);
    let groups = cells.iter().filter_map(|cell| {
        let base = cell.measured(baseline)?.gpu_us()?;
        let speedup = |name: &&str| ratio(base, cell.measured(name)?.gpu_us()?);
        let speedups: Vec<Option<f64>> = names.iter().map(speedup).collect();
        speedups.iter().any(Option::is_some).then_some((cell.key.model.as_str(), speedups))
    });
    let mut groups: Vec<Group> = groups.collect();
    let has_bar: Vec<bool> = (0..names.len()).map(|at| groups.iter().any(|(_, bars)| bars[at].is_some())).collect();
    keep(&mut names, &has_bar);
    groups.iter_mut().for_each(|(_, bars)| keep(bars, &has_bar));
    let highest = groups.iter().flat_map(|(_, bars)| bars).flatten().copied().max_by(f64::total_cmp);
    let Some(highest) = highest else { return Ok(None) };

    let width = 90 + groups.len() * (names.len() * BAR + GAP);
    let title = format!("Speed-up over {baseline} (GPU time), {dtype}, batch {batch}");
    let svg = picture((width.max(600) as u32, 480), &title, &names, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(30)
            .y_label_area_size(45)
            // Leaves space for the numbers.
            .build_cartesian_2d(0. ..groups.len() as f64, 0. ..1.15 * highest)
            .map_err(failed)?;
        let number = |y: &f64| format!("{}x", tick(y));
        let mut mesh = chart.configure_mesh();
        mesh.disable_x_mesh().x_labels(0).y_label_formatter(&number).light_line_style(TRANSPARENT);
        mesh.draw().map_err(failed)?;
        let slot = BAR as f64 / (names.len() * BAR + GAP) as f64;
        let margin = (1. - slot * names.len() as f64) / 2.;
        for (at, (model, bars)) in groups.iter().enumerate() {
            let left = |bar: usize| at as f64 + margin + slot * bar as f64;
            for (bar, (name, speedup)) in names.iter().zip(bars).enumerate() {
                let Some(speedup) = *speedup else { continue };
                let corners = [(left(bar), 0.), (left(bar + 1), speedup)];
                chart.plotting_area().draw(&Rectangle::new(corners, colour(name).filled())).map_err(failed)?;
                let (x, y) = chart.backend_coord(&(left(bar) + slot / 2., speedup));
                let number = format!("{speedup:.2}");
                put(area, &number, &upright(13), (x, y - 4))?;
            }
            let (x, y) = chart.backend_coord(&(at as f64 + 0.5, 0.));
            put(area, model, &text(15, HPos::Center, VPos::Top), (x, y + 8))?;
        }
        Ok(())
    })?;
    Ok(Some(svg))
}

/// Keeps the items whose flag is set.
fn keep<T>(items: &mut Vec<T>, flags: &[bool]) {
    let mut flags = flags.iter();
    items.retain(|_| flags.next() == Some(&true));
}

#[cfg(test)]
mod tests {
    use super::super::tests::{count, is_xml};
    use super::*;
    use crate::tests::{cell, failed, measured, sampled};

    #[test]
    fn one_bar_per_measured_contestant() {
        let base = || measured("torch eager", 100.);
        let cells = [
            cell("bert", "f32", 1, [base(), measured("tuned", 40.), measured("torch graph", 50.)]),
            cell("t5", "f32", 1, [base(), measured("tuned", 25.), failed("torch graph", "no memory")]),
            cell("nasnet", "f32", 1, [measured("tuned", 1.)]),
            cell("deepfm", "f32", 1, [base(), sampled("opara", &[]), measured("sequential", 0.)]),
            cell("bert", "f16", 1, [base(), measured("onnxruntime graph", 25.)]),
            cell("bert", "f32", 8, [base(), measured("torch opara", 25.)]),
        ];
        let svg = speedups(&cells, "f32", 1, "torch eager").unwrap().unwrap();
        assert!(is_xml(&svg), "{svg}");
        let bars = ["torch eager", "tuned", "torch graph", "opara", "sequential", "onnxruntime graph", "torch opara"];
        assert_eq!(bars.map(|name| count(&svg, "rect", name)), [3, 2, 1, 0, 0, 0, 0]);
        assert_eq!(bars.map(|name| count(&svg, "circle", name)), [1, 1, 1, 0, 0, 0, 0]);
        for (text, there) in [("bert", true), ("deepfm", true), ("nasnet", false), ("4.00", true), ("2.50", true)] {
            assert_eq!(svg.lines().any(|line| line == text), there, "{text}");
        }
    }

    #[test]
    fn bars_are_as_high_as_their_speedups() {
        let cells = [cell("bert", "f32", 1, [measured("torch eager", 90.), measured("tuned", 30.)])];
        let svg = speedups(&cells, "f32", 1, "torch eager").unwrap().unwrap();
        let height = |name| {
            let RGBColor(r, g, b) = colour(name);
            let fill = format!("fill=\"#{r:02X}{g:02X}{b:02X}\"");
            let bar = svg.lines().find(|line| line.starts_with("<rect") && line.contains(&fill)).unwrap();
            bar.split("height=\"").nth(1).unwrap().split('"').next().unwrap().parse::<f64>().unwrap()
        };
        assert!((height("tuned") / height("torch eager") - 3.).abs() < 0.05, "{svg}");
    }

    #[test]
    fn without_the_baseline_there_is_no_plot() {
        let cells = [cell("bert", "f32", 1, [measured("tuned", 1.)])];
        assert_eq!(speedups(&cells, "f32", 1, "torch eager").unwrap(), None);
        assert_eq!(speedups(&[], "f32", 1, "torch eager").unwrap(), None);
        assert!(speedups(&cells, "f32", 1, "tuned").unwrap().is_some());
    }
}
