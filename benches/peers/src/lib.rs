//! The results of the program `peers`: files, tables, plots, and comparisons.

pub mod contestants;
pub mod diff;
pub mod draw;
pub mod families;
pub mod markdown;
pub mod merge;
pub mod plots;
pub mod results;
pub mod stats;

#[cfg(test)]
mod tests;
