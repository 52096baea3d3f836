//! Derivatives of functions of single elements. At ties, and at 0 of `max(x, 0)`, they are candle's.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use candle::{bail, Result, Tensor};

use super::super::elementwise::activation_of;
use super::order::Order;
use super::step::Step;
use crate::ops::{activation_gradient, in_sums};

/// Names of unary functions that have a derivative, but for those that are constant in pieces.
pub(super) const UNARY: [&str; 17] = [
    "sqr", "sqrt", "neg", "abs", "recip", "relu", "exp", "log", "sin", "cos", "tanh", "silu", "gelu", "gelu_erf",
    "sigmoid", "erf", "normcdf",
];

/// Names of binary functions that have a derivative.
pub(super) const BINARY: [&str; 6] = ["add", "sub", "mul", "div", "min", "max"];

/// The standard normal distribution's density.
fn density(x: &Tensor) -> Result<Tensor> {
    (x.sqr()? * -0.5)?.exp()? * (0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2)
}

pub(super) fn unary(step: &mut Step, name: &str) -> Result<()> {
    let elements = step.elements()?;
    if name == "relu" {
        // Of operators that one launch computes with those beside them, where launches are fused: 1 from 0 on, and of NaN, whose loss is none;
        // else 0.
        let is_open = elements.operand(0)?.sign()?.affine(1., 0.5)?.sign()?.affine(0.5, 0.5)?;
        let gradient = (&elements.gradient * is_open)?;
        return step.give_of(&elements, 0, gradient);
    }
    if matches!(name, "silu" | "gelu" | "gelu_erf") {
        let gradient = activation_gradient(&elements.operand(0)?, &elements.gradient, activation_of(name)?)?;
        return step.give_of(&elements, 0, gradient);
    }
    let (operands, g) = elements.in_sums()?;
    let [x] = &operands[..] else { bail!("{name} has one operand") };
    let gradient = match name {
        "neg" => g.neg()?,
        "sqr" => (g * (x * 2.)?)?,
        "abs" => (g * x.sign()?)?,
        "log" => (g / x)?,
        "sin" => (g * x.cos()?)?,
        "cos" => (g * x.sin()?.neg()?)?,
        "erf" => (g * (x.sqr()?.neg()?.exp()? * FRAC_2_SQRT_PI)?)?,
        "normcdf" => (g * density(x)?)?,
        _ => {
            let y = step.result_of(&elements)?;
            match name {
                "sqrt" => (g / (y * 2.)?)?,
                "recip" => (g * y.sqr()?.neg()?)?,
                "exp" => (g * y)?,
                "tanh" => (g * y.sqr()?.affine(-1., 1.)?)?,
                "sigmoid" => (g * (&y * y.affine(-1., 1.)?)?)?,
                _ => bail!("{name} has no derivative"),
            }
        }
    };
    step.give_of(&elements, 0, gradient)
}

pub(super) fn binary(step: &mut Step, name: &str) -> Result<()> {
    if matches!(name, "add" | "sub") {
        let g = step.whole_gradient();
        if step.needs(0) {
            step.give(0, g.clone())?;
        }
        if step.needs(1) {
            step.give(1, if name == "add" { g } else { scaled(&g, -1.)? })?;
        }
        return Ok(());
    }
    let elements = step.elements()?;
    let (operands, g) = elements.in_sums()?;
    let [a, b] = &operands[..] else { bail!("{name} has two operands") };
    // The larger one has the gradient, and half of it at ties. Without comparisons, this is one launch with what is around it.
    let of_larger = |a: &Tensor, b: &Tensor| &g * (a - b)?.sign()?.affine(0.5, 0.5)?;
    for (at, other) in [(0, b), (1, a)] {
        if !step.needs(at) {
            continue;
        }
        let gradient = match (name, at) {
            ("mul", _) => (&g * other)?,
            ("div", 0) => (&g / b)?,
            ("div", _) => ((&g * step.result_of(&elements)?)? / b)?.neg()?,
            ("max", _) => of_larger(&operands[at], other)?,
            ("min", _) => of_larger(other, &operands[at])?,
            _ => bail!("{name} has no derivative"),
        };
        step.give_of(&elements, at, gradient)?;
    }
    Ok(())
}

/// A gradient times a factor.
fn scaled(g: &Tensor, factor: f64) -> Result<Tensor> {
    let order = Order::of([g]);
    order.outside(in_sums(&order.inside(g)?)?.affine(factor, 0.)?)
}

/// Of `factor * x + summand`.
pub(super) fn affine(step: &mut Step, factor: f64) -> Result<()> {
    step.give(0, scaled(&step.whole_gradient(), factor)?)
}

pub(super) fn copy(step: &mut Step) -> Result<()> {
    step.give(0, step.whole_gradient())
}

pub(super) fn power(step: &mut Step, exponent: f64) -> Result<()> {
    let elements = step.elements()?;
    let (x, g) = elements.in_sums()?;
    step.give_of(&elements, 0, (g * (x[0].powf(exponent - 1.)? * exponent)?)?)
}

pub(super) fn elu(step: &mut Step, factor: f64) -> Result<()> {
    let elements = step.elements()?;
    let ((x, g), y) = (elements.in_sums()?, step.result_of(&elements)?);
    let slope = x[0].gt(0.)?.where_cond(&x[0].ones_like()?, &(y + factor)?)?;
    step.give_of(&elements, 0, (g * slope)?)
}

/// Of two operands of which integers, the first operand, choose. Of a filled one the second is none.
pub(super) fn chosen(step: &mut Step) -> Result<()> {
    let elements = step.elements()?;
    let condition = elements.operand(0)?.contiguous()?;
    let g = elements.gradient.contiguous()?;
    let nothing = g.zeros_like()?;
    let last = elements.count() - 1;
    if last == 2 && step.needs(1) {
        step.give_of(&elements, 1, condition.where_cond(&g, &nothing)?)?;
    }
    if step.needs(last) {
        step.give_of(&elements, last, condition.where_cond(&nothing, &g)?)?;
    }
    Ok(())
}
