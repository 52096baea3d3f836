//! Plots as SVG.

mod speedups;
mod throughput;

use std::fmt::Display;

use anyhow::{anyhow, Result};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub use self::speedups::speedups;
pub use self::throughput::throughput;

use crate::contestants::{colour, line_up, Side};
use crate::results::Cell;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Pixels of a legend's line and of an entry's square with its margin; approximate pixels of a letter.
const LINE: i32 = 20;
const SQUARE: i32 = 30;
const LETTER: i32 = 7;

/// The contestants that plots show: [`line_up`] without eager execution of candle and of this library, which is an
/// order of magnitude slower and would hide the differences between the others.
fn shown<'a>(cells: &[&'a Cell]) -> Vec<&'a str> {
    let fast = |name: &&str| Side::of(name) != Side::Candle && *name != "eager";
    line_up(cells.iter().copied()).into_iter().filter(fast).collect()
}

/// A picture of this size: the title, the legend of these contestants, and below it the result of `draw`.
fn picture(
    (width, height): (u32, u32),
    title: &str,
    names: &[&str],
    draw: impl FnOnce(&Area) -> Result<()>,
) -> Result<String> {
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
    root.fill(&WHITE).map_err(failed)?;
    let title_style = text(18, HPos::Left, VPos::Center);
    root.draw_text(title, &title_style, (10, LINE)).map_err(failed)?;
    let below = legend(&root, names, 2 * LINE)?;
    draw(&root.split_vertically(below).1)?;
    root.present().map_err(failed)?;
    drop(root);
    Ok(svg)
}

/// Draws coloured disks with names from the height `top` on, and returns the height where they end.
fn legend(area: &Area, names: &[&str], top: i32) -> Result<i32> {
    let width = area.dim_in_pixel().0 as i32;
    let (mut x, mut y) = (LINE, top);
    for name in names {
        let wide = SQUARE + LETTER * name.chars().count() as i32;
        if x + wide > width && x > LINE {
            (x, y) = (LINE, y + LINE);
        }
        area.draw(&Circle::new((x, y), 6, colour(name).filled())).map_err(failed)?;
        area.draw_text(name, &text(13, HPos::Left, VPos::Center), (x + 10, y)).map_err(failed)?;
        x += wide;
    }
    Ok(y + LINE)
}

/// Draws text at a chart's coordinates in the whole picture.
fn put(area: &Area, text: &str, style: &TextStyle, (x, y): (i32, i32)) -> Result<()> {
    let (left, top) = area.get_base_pixel();
    area.draw_text(text, style, (x - left, y - top)).map_err(failed)
}

/// An axis label, rounded to remove accumulated rounding errors.
fn tick(y: &f64) -> String {
    ((y * 1e6).round() / 1e6).to_string()
}

/// Black text of a height in pixels.
fn text(height: u32, h: HPos, v: VPos) -> TextStyle<'static> {
    ("sans-serif", height).into_text_style(&(0, 0)).color(&BLACK).pos(Pos::new(h, v))
}

/// Vertical text, from below upwards, that starts at its position.
fn upright(height: u32) -> TextStyle<'static> {
    text(height, HPos::Left, VPos::Center).transform(FontTransform::Rotate270)
}

/// The drawing crate's errors borrow the drawing.
fn failed(error: impl Display) -> anyhow::Error {
    anyhow!("cannot draw: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{cell, measured};

    /// Is every element closed, and is every special character escaped?
    pub fn is_xml(svg: &str) -> bool {
        let mut open = Vec::new();
        let Some(rest) = svg.strip_prefix('<') else { return false };
        for tag in rest.split('<') {
            let Some((tag, text)) = tag.split_once('>') else { return false };
            let is_quoted = tag.matches('"').count() % 2 == 0;
            let is_escaped = text.split('&').skip(1).all(|after| after.contains(';'));
            let name = tag.split_whitespace().next().unwrap_or_default();
            let closes = match name.strip_prefix('/') {
                Some(name) => open.pop() == Some(name),
                None if tag.ends_with('/') => true,
                None => {
                    open.push(name);
                    true
                }
            };
            if !(is_quoted && is_escaped && closes) || text.contains('>') {
                return false;
            }
        }
        open.is_empty()
    }

    /// The number of elements of this kind in the colour of this contestant.
    pub fn count(svg: &str, element: &str, name: &str) -> usize {
        let RGBColor(r, g, b) = colour(name);
        let paint = format!("\"#{r:02X}{g:02X}{b:02X}\"");
        let is_one = |line: &&str| line.starts_with(&format!("<{element} ")) && line.contains(&paint);
        svg.lines().filter(is_one).count()
    }

    #[test]
    fn broken_xml_is_detected() {
        assert!(is_xml("<a x=\"1\">\n<b/>\nx &lt; y</a>\n"));
        for broken in ["", "<a>", "<a></b>", "</a>", "<a x=\"1></a>", "<a>x & y</a>", "<a>></a>"] {
            assert!(!is_xml(broken), "{broken}");
        }
    }

    #[test]
    fn legends_wrap_and_stay_within_the_picture() {
        let names = ["torch graph"; 30];
        let svg = picture((400, 900), "a < b", &names, |_| Ok(())).unwrap();
        assert!(is_xml(&svg), "{svg}");
        assert!(svg.contains("a &lt; b"), "{svg}");
        assert_eq!(count(&svg, "circle", "torch graph"), 30);
        let right = svg.lines().filter_map(|line| line.strip_prefix("<circle cx=\"")?.split('"').next());
        assert!(right.map(|x| x.parse::<i32>().unwrap()).max().unwrap() < 300);
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!([0.1 + 0.2, 5000., 0.].map(|y| tick(&y)), ["0.3", "5000", "0"]);
    }

    #[test]
    fn eager_execution_is_not_drawn() {
        let all = ["candle", "eager", "tuned", "torch eager"].map(|name| measured(name, 1.));
        assert_eq!(shown(&[&cell("bert", "f32", 1, all)]), ["tuned", "torch eager"]);
    }
}
