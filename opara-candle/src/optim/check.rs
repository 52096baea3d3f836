//! Checks the variables and settings of an optimizer.

use std::collections::HashMap;

use candle::{bail, Device, Result, Var};

use crate::ops::optimizer::rule::Rule;

/// The prefix of the names that a checkpoint gives moments, sums and averages.
const RESERVED: &str = "opara.";

/// The variables of floats, and their device.
///
/// # Errors
/// Variables on several devices, a variable that is listed twice, and a name that is listed twice or that checkpoints use.
pub(super) fn floats(variables: Vec<(String, Var)>) -> Result<(Vec<(String, Var)>, Device)> {
    let floats: Vec<_> = variables.into_iter().filter(|(_, variable)| variable.dtype().is_float()).collect();
    let device = floats.first().map_or(Device::Cpu, |(_, variable)| variable.device().clone());
    let (mut names, mut by_id) = (HashMap::new(), HashMap::new());
    for (name, variable) in &floats {
        if !variable.device().same_device(&device) {
            bail!("`{name}` is on another device than the optimizer's first variable")
        }
        if let Some(other) = by_id.insert(variable.id(), name) {
            bail!("`{other}` and `{name}` are one variable, which a step would update twice: list it once")
        }
        if names.insert(name, ()).is_some() {
            bail!("two variables have the name `{name}`: a checkpoint could not tell them apart")
        }
        if name.starts_with(RESERVED) {
            bail!("`{name}` begins with `{RESERVED}`, as the names of moments in a checkpoint do: take another name")
        }
    }
    Ok((floats, device))
}

/// # Errors
/// Settings that make values NaN.
pub(super) fn check(rule: Rule, rate: f64, decay: f64) -> Result<()> {
    finite("learning rate", rate)?;
    finite("weight decay", decay)?;
    match rule {
        Rule::Descent => Ok(()),
        Rule::Momentum { momentum, .. } => finite("momentum", momentum),
        Rule::Adam { beta1, beta2, eps, .. } => {
            part("beta1", beta1)?;
            part("beta2", beta2)?;
            match eps >= 0. && eps.is_finite() {
                true => Ok(()),
                false => bail!("`eps` is added to a root: it is not {eps}"),
            }
        }
        Rule::Lion { beta1, beta2 } => part("beta1", beta1).and_then(|()| part("beta2", beta2)),
    }
}

/// # Errors
/// A number that is infinite or NaN.
pub(super) fn finite(name: &str, number: f64) -> Result<()> {
    match number.is_finite() {
        true => Ok(()),
        false => bail!("a {name} is a finite number, not {number}"),
    }
}

/// # Errors
/// A number that is not the part of a mean which stays at a step.
pub(super) fn part(name: &str, number: f64) -> Result<()> {
    match (0. ..1.).contains(&number) {
        true => Ok(()),
        false => bail!("`{name}` is at least 0 and below 1, not {number}"),
    }
}
