//! The contestants: their sides, order and colours.

use opara_candle::BuiltIn;
use plotters::style::RGBColor;

use crate::results::{Cell, Contestant};

/// The contestants that every table and plot shows if they were measured, in this order: candle in grey, this library
/// in blue, PyTorch in orange, ONNX Runtime in green.
const KNOWN: [(&str, RGBColor); 15] = [
    ("candle", RGBColor(0x99, 0x99, 0x99)),
    ("candle tuned", RGBColor(0x5c, 0x6b, 0x7a)),
    ("candle accurate", RGBColor(0x38, 0x42, 0x4d)),
    ("eager", RGBColor(0xbd, 0xd7, 0xe7)),
    ("sequential", RGBColor(0x8f, 0xc1, 0xe3)),
    ("opara", RGBColor(0x3b, 0x8b, 0xc4)),
    ("tuned", RGBColor(0x08, 0x40, 0x8a)),
    ("torch eager", RGBColor(0xfd, 0xc8, 0x94)),
    ("torch graph", RGBColor(0xfb, 0x9a, 0x4b)),
    ("torch opara", RGBColor(0xe6, 0x6f, 0x1a)),
    ("torch reduce-overhead", RGBColor(0xbf, 0x3a, 0x07)),
    ("torch max-autotune", RGBColor(0x70, 0x1c, 0x04)),
    ("onnxruntime", RGBColor(0x9a, 0xd6, 0x8c)),
    ("onnxruntime eager", RGBColor(0x74, 0xc4, 0x76)),
    ("onnxruntime graph", RGBColor(0x23, 0x8b, 0x45)),
];

/// The colour of contestants outside [`KNOWN`].
const UNKNOWN: RGBColor = RGBColor(0x88, 0x56, 0xa7);

/// The project that a contestant belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// candle's own operators, eager.
    Candle,
    /// This library's: its operators, eager; its schedulers; and executors of candle's operators.
    Ours,
    /// Another framework's.
    Peer,
}

impl Side {
    /// The side of the contestant called `name`. It is this library's if the first word, or the word after `candle`, is
    /// `eager`, `accurate` or a scheduler's name.
    pub fn of(name: &str) -> Self {
        let scheduler = |word: &str| word.parse::<BuiltIn>().is_ok();
        match name.split_once(' ').unwrap_or((name, "")) {
            ("candle", "") => Self::Candle,
            ("candle", by) if by == "accurate" || scheduler(by) => Self::Ours,
            ("eager", _) => Self::Ours,
            (word, _) if scheduler(word) => Self::Ours,
            _ => Self::Peer,
        }
    }
}

/// The contestant's colour, the same in all plots.
pub fn colour(name: &str) -> RGBColor {
    known(name).map_or(UNKNOWN, |at| KNOWN[at].1)
}

/// The contestants of these cells, measured or failed, in the order of tables. The only schedulers are `sequential`,
/// `opara` and `tuned`; the [table of schedulers](crate::markdown::schedulers) has the others.
pub fn line_up<'a>(cells: impl Iterator<Item = &'a Cell>) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for Contestant { name, .. } in cells.flat_map(|cell| &cell.contestants) {
        let shown = known(name).is_some() || name.parse::<BuiltIn>().is_err();
        if shown && !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names.sort_by_key(|name| place(name));
    names
}

/// The position of the contestant called `name` in tables: candle, this library, PyTorch, ONNX Runtime, and unknown
/// ones last.
pub fn place(name: &str) -> (usize, usize) {
    let scheduler = BuiltIn::ALL.iter().position(|scheduler| scheduler.as_str() == name);
    let by = if scheduler.is_some() { BuiltIn::Sequential.as_str() } else { name };
    (known(by).unwrap_or(KNOWN.len()), scheduler.unwrap_or_default())
}

/// The position in [`KNOWN`].
fn known(name: &str) -> Option<usize> {
    KNOWN.iter().position(|(known, _)| *known == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{cell, measured};

    #[test]
    fn sides() {
        for ours in ["eager", "sequential", "critical-path", "tuned", "opara lent", "candle tuned", "candle accurate"] {
            assert_eq!(Side::of(ours), Side::Ours, "{ours}");
        }
        for peer in ["torch eager", "torch opara", "onnxruntime", "another graph", "candle graph", ""] {
            assert_eq!(Side::of(peer), Side::Peer, "{peer}");
        }
        assert_eq!(Side::of("candle"), Side::Candle);
    }

    #[test]
    fn unknown_contestants_come_last() {
        let names = ["torch graph", "another graph", "dag", "tuned", "sequential"];
        let cells = [cell("bert", "f32", 1, names.map(|name| measured(name, 1.))), cell("t5", "f32", 1, [])];
        assert_eq!(line_up(cells.iter()), ["sequential", "tuned", "torch graph", "another graph"]);
        assert_eq!(line_up([].iter()), [""; 0]);
    }

    #[test]
    fn schedulers_are_listed_together() {
        let mut names = ["torch graph", "another graph", "tuned", "dag", "eager", "sequential"];
        names.sort_by_key(|name| place(name));
        assert_eq!(names, ["eager", "sequential", "dag", "tuned", "torch graph", "another graph"]);
    }

    #[test]
    fn all_colours_differ() {
        for (at, (name, colour)) in KNOWN.iter().enumerate() {
            assert!(KNOWN[..at].iter().all(|(_, other)| other != colour), "{name}");
        }
    }
}
