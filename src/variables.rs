//! The variables of a map in one order.

use candle::{bail, Result, Var};
use candle_nn::VarMap;

/// The variables in the order of their names; a map's own order differs from process to process.
///
/// # Errors
/// A thread that panicked while it held the map.
pub fn variables(weights: &VarMap) -> Result<Vec<(String, Var)>> {
    let Ok(data) = weights.data().lock() else { bail!("a thread panicked while it held the map of variables") };
    let mut all: Vec<_> = data.iter().map(|(name, variable)| (name.clone(), variable.clone())).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(all)
}
