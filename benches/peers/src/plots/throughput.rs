//! Throughput by batch size, as in Fig. 8 of Opara's paper.

use std::collections::BTreeSet;

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::{failed, picture, put, shown, text, tick, Area};
use crate::contestants::colour;
use crate::results::Cell;

/// Charts per row, and the width of each in pixels.
const COLUMNS: usize = 3;
const WIDTH: usize = 400;
const HEIGHT: usize = 300;

/// A contestant's items per second, by batch size.
type Line<'a> = (&'a str, Vec<(usize, f64)>);

/// One chart for each model of one dtype that was measured at more than one batch size: one line per contestant, items
/// per second of wall time over the batch size. `None` if there is no such model.
///
/// # Errors
/// An error of the drawing crate.
pub fn throughput(cells: &[Cell], dtype: &str) -> Result<Option<String>> {
    let cells: Vec<&Cell> = cells.iter().filter(|cell| cell.key.dtype == dtype).collect();
    let names = shown(&cells);
    let models: BTreeSet<&str> = cells.iter().map(|cell| cell.key.model.as_str()).collect();
    let charts = models.into_iter().map(|model| (model, lines(&cells, model, &names)));
    let charts: Vec<(&str, Vec<Line>)> = charts.filter(|(_, lines)| batches(lines).len() > 1).collect();
    if charts.is_empty() {
        return Ok(None);
    }
    let drawn = |name: &&str| charts.iter().any(|(_, lines)| lines.iter().any(|(of, _)| of == name));
    let names: Vec<&str> = names.iter().copied().filter(drawn).collect();
    let columns = charts.len().min(COLUMNS);
    let rows = charts.len().div_ceil(columns);
    // With a single column, the legend is wider than the charts.
    let size = ((columns * WIDTH).max(600) as u32, (rows * HEIGHT + 120) as u32);
    let title = format!("Items in a second by size of batch (wall time), {dtype}");
    let svg = picture(size, &title, &names, |area| {
        let places = area.split_evenly((rows, columns));
        places.iter().zip(&charts).try_for_each(|(place, (model, lines))| chart(place, model, lines))
    })?;
    Ok(Some(svg))
}

/// The lines of one model, without empty ones.
fn lines<'a>(cells: &[&Cell], model: &str, names: &[&'a str]) -> Vec<Line<'a>> {
    let line = |name: &&'a str| {
        let of_model = cells.iter().filter(|cell| cell.key.model == model);
        let point = |cell: &&Cell| {
            let batch = cell.key.batch;
            Some((batch, cell.measured(name)?.items_per_second(batch)?))
        };
        let mut points: Vec<(usize, f64)> = of_model.filter_map(point).collect();
        points.sort_by_key(|(batch, _)| *batch);
        (*name, points)
    };
    names.iter().map(line).filter(|(_, points)| !points.is_empty()).collect()
}

fn batches(lines: &[Line]) -> BTreeSet<usize> {
    lines.iter().flat_map(|(_, points)| points.iter().map(|(batch, _)| *batch)).collect()
}

fn chart(area: &Area, model: &str, lines: &[Line]) -> Result<()> {
    let batches = batches(lines);
    // Batches with a throughput are not empty.
    let x = |batch: usize| (batch as f64).log2();
    let (Some(first), Some(last)) = (batches.first(), batches.last()) else { return Ok(()) };
    let highest = lines.iter().flat_map(|(_, points)| points).map(|(_, items)| *items).fold(0., f64::max);
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .caption(model, text(16, HPos::Center, VPos::Top))
        .x_label_area_size(25)
        .y_label_area_size(60)
        .build_cartesian_2d(x(*first) - 0.2..x(*last) + 0.2, 0. ..1.05 * highest)
        .map_err(failed)?;
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh()
        .x_labels(0)
        .y_labels(6)
        .y_label_formatter(&tick)
        .light_line_style(TRANSPARENT)
        .draw()
        .map_err(failed)?;
    for (name, points) in lines {
        let points = points.iter().map(|(batch, items)| (x(*batch), *items));
        let colour = colour(name);
        chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2))).map_err(failed)?;
        chart.draw_series(points.map(|point| Circle::new(point, 3, colour.filled()))).map_err(failed)?;
    }
    for batch in batches {
        let (left, bottom) = chart.backend_coord(&(x(batch), 0.));
        put(area, &batch.to_string(), &text(13, HPos::Center, VPos::Top), (left, bottom + 6))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{count, is_xml};
    use super::*;
    use crate::tests::{cell, measured, sampled};

    #[test]
    fn a_line_for_each_contestant_and_model() {
        let mut cells = Vec::new();
        for model in ["bert", "t5", "googlenet", "deepfm"] {
            for batch in [1, 2, 8] {
                let us = 100. * batch as f64;
                cells.push(cell(model, "f16", batch, [measured("tuned", us), sampled("opara", &[])]));
            }
        }
        cells.push(cell("bert", "f16", 32, [measured("torch graph", 100.), measured("tuned", 0.)]));
        cells.push(cell("nasnet", "f16", 1, [measured("onnxruntime graph", 100.)]));
        cells.push(cell("bert", "f32", 1, [measured("sequential", 100.)]));
        let svg = throughput(&cells, "f16").unwrap().unwrap();
        assert!(is_xml(&svg), "{svg}");
        // One point each, and one in the legend.
        let names = ["tuned", "torch graph", "opara", "onnxruntime graph", "sequential"];
        assert_eq!(names.map(|name| count(&svg, "circle", name)), [13, 2, 0, 0, 0]);
        assert_eq!(count(&svg, "polyline", "tuned"), 4);
        for (text, there) in [("bert", true), ("deepfm", true), ("nasnet", false), ("32", true), ("4", false)] {
            assert_eq!(svg.lines().any(|line| line == text), there, "{text}");
        }
    }

    #[test]
    fn a_single_batch_size_makes_no_line() {
        assert_eq!(throughput(&[cell("bert", "f32", 1, [measured("tuned", 1.)])], "f32").unwrap(), None);
        assert_eq!(throughput(&[], "f32").unwrap(), None);
        let empty = [0, 1].map(|batch| cell("bert", "f32", batch, [measured("tuned", 1.)]));
        assert_eq!(throughput(&empty, "f32").unwrap(), None);
    }
}
