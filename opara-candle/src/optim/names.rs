//! Choices of variables by their names.

use candle::{bail, Error, Result};

/// Chooses variables by their names in a `VarMap`: a pattern as of file names, such as `"encoder.*.bias"`, or a function of a name. In a
/// pattern `*` stands for any characters, dots among them, `?` for one, and `[0-5]` for one of these.
pub trait Names {
    /// For each name, whether it is chosen.
    ///
    /// # Errors
    /// A pattern that is none, or that chooses nothing.
    fn choose(&self, names: &[&str]) -> Result<Vec<bool>>;
}

impl Names for &str {
    fn choose(&self, names: &[&str]) -> Result<Vec<bool>> {
        let pattern = glob::Pattern::new(self).map_err(Error::wrap)?;
        let chosen: Vec<bool> = names.iter().map(|name| pattern.matches(name)).collect();
        match chosen.contains(&true) {
            true => Ok(chosen),
            false => bail!("no variable's name is like `{self}`; there are {}", names.join(", ")),
        }
    }
}

impl<F: Fn(&str) -> bool> Names for F {
    fn choose(&self, names: &[&str]) -> Result<Vec<bool>> {
        Ok(names.iter().map(|name| self(name)).collect())
    }
}
