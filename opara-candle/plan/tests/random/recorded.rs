//! The functions that launches are recorded with.

use anyhow::{bail, ensure, Result};
use opara_plan::rewrite::Node;
use opara_plan::trace::{Function, Rotary, Window};

use crate::interpreter::{lens, Interpreter};

/// The results of a recorded function.
pub fn compute(of: &Interpreter, node: &Node, function: &Function) -> Result<Vec<f64>> {
    let operands = of.operands(node)?;
    let first = || operands.first().cloned().unwrap_or_default();
    Ok(match function {
        Function::Zeros => vec![0.; node.len as usize],
        Function::Fill(bits) => vec![node.element.number(*bits).unwrap_or(*bits as f64); node.len as usize],
        Function::Copy => first(),
        Function::Unary(name) => first().into_iter().map(unary(name)?).collect(),
        Function::Binary(name) => {
            ensure!(operands[0].len() == operands[1].len(), "operands of {name} are not alike");
            let of = binary(name)?;
            operands[0].iter().zip(&operands[1]).map(|(&a, &b)| of(a, b)).collect()
        }
        Function::Affine(factor, summand) => {
            first().into_iter().map(|x| x * f64::from(*factor) + f64::from(*summand)).collect()
        }
        Function::RowSum(columns) => rows(&first(), *columns).map(|row| row.iter().sum()).collect(),
        Function::RowMax(columns) => {
            rows(&first(), *columns).map(|row| row.iter().copied().fold(f64::NEG_INFINITY, f64::max)).collect()
        }
        Function::RowMin(columns) => {
            rows(&first(), *columns).map(|row| row.iter().copied().fold(f64::INFINITY, f64::min)).collect()
        }
        Function::Softmax(columns) => rows(&first(), *columns).flat_map(softmax).collect(),
        Function::LayerNorm(columns, epsilon) => {
            normed(&first(), *columns, *epsilon, false, &operands[1], operands.get(2).map(Vec::as_slice))
        }
        Function::RmsNorm(columns, epsilon) => normed(&first(), *columns, *epsilon, true, &operands[1], None),
        Function::Matmul => {
            let ([batch, m, inner], [_, _, n]) = (lens(&node.operands[0])?, lens(&node.operands[1])?);
            matmul(&operands[0], &operands[1], [batch, m, inner, n])
        }
        Function::Convolution(window) => {
            convolution(&first(), lens(&node.operands[0])?, &operands[1], window, window.padding)
        }
        Function::TransposedConvolution { window, output_padding } => {
            transposed_convolution(&first(), lens(&node.operands[0])?, &operands[1], window, *output_padding)?
        }
        Function::MaxPool(window) => pool(&first(), lens(&node.operands[0])?, window, [0; 2], true),
        Function::MeanPool(window) => pool(&first(), lens(&node.operands[0])?, window, [0; 2], false),
        Function::UpsampleNearest(size) => upsampled(&first(), lens(&node.operands[0])?, *size),
        Function::IndexSelect { left, from, right } => {
            let (left, from, right) = (*left as usize, *from as usize, *right as usize);
            let mut found = Vec::new();
            for outer in 0..left {
                for &id in &operands[1] {
                    let first = (outer * from + id as usize) * right;
                    found.extend_from_slice(&operands[0][first..first + right]);
                }
            }
            found
        }
        Function::Where => {
            let choose = |((&c, &a), &b): ((&f64, &f64), &f64)| if c != 0. { a } else { b };
            operands[0].iter().zip(&operands[1]).zip(&operands[2]).map(choose).collect()
        }
        Function::MaskedFill(bits) => {
            let number = node.element.number(*bits).unwrap_or(*bits as f64);
            operands[0].iter().zip(&operands[1]).map(|(&c, &x)| if c != 0. { number } else { x }).collect()
        }
        Function::Rotary(rotary) => rotated(&operands, rotary),
        other => bail!("no random module has {other:?}"),
    })
}

/// A function of one number by its name in the catalogue.
pub fn unary(name: &str) -> Result<fn(f64) -> f64> {
    Ok(match name {
        "sqr" => |x| x * x,
        "sqrt" => f64::sqrt,
        "neg" => |x| -x,
        "abs" => f64::abs,
        "recip" => f64::recip,
        "relu" => |x| if x > 0. { x } else { 0. },
        "exp" => f64::exp,
        "log" => f64::ln,
        "sin" => f64::sin,
        "cos" => f64::cos,
        "tanh" => f64::tanh,
        "sigmoid" => |x| 1. / (1. + (-x).exp()),
        "silu" => |x| x / (1. + (-x).exp()),
        "gelu" => |x| 0.5 * x * (1. + ((2. / std::f64::consts::PI).sqrt() * x * (1. + 0.044_715 * x * x)).tanh()),
        "gelu_erf" => |x| 0.5 * x * (1. + erf(x / std::f64::consts::SQRT_2)),
        _ => bail!("`{name}` is not known"),
    })
}

fn binary(name: &str) -> Result<fn(f64, f64) -> f64> {
    Ok(match name {
        "add" => |a, b| a + b,
        "sub" => |a, b| a - b,
        "mul" => |a, b| a * b,
        "div" => |a, b| a / b,
        "min" => f64::min,
        "max" => f64::max,
        "eq" => |a, b| f64::from(a == b),
        "ne" => |a, b| f64::from(a != b),
        "lt" => |a, b| f64::from(a < b),
        "le" => |a, b| f64::from(a <= b),
        "gt" => |a, b| f64::from(a > b),
        "ge" => |a, b| f64::from(a >= b),
        _ => bail!("`{name}` is not known"),
    })
}

/// By its series near zero, and by its continued fraction elsewhere (Abramowitz and Stegun, 7.1.6 and 7.1.14).
fn erf(x: f64) -> f64 {
    if x.abs() < 2.5 {
        let (mut term, mut sum) = (x, x);
        for n in 1..60 {
            term *= 2. * x * x / f64::from(2 * n + 1);
            sum += term;
        }
        return sum * (-x * x).exp() * 2. / std::f64::consts::PI.sqrt();
    }
    let fraction = (1..80).rev().fold(0., |below, n| f64::from(n) / 2. / (x.abs() + below));
    let rest = (-x * x).exp() / std::f64::consts::PI.sqrt() / (x.abs() + fraction);
    x.signum() * (1. - rest)
}

pub fn rows(x: &[f64], columns: u64) -> impl Iterator<Item = &[f64]> {
    x.chunks(columns as usize)
}

pub fn softmax(row: &[f64]) -> Vec<f64> {
    let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let e: Vec<f64> = row.iter().map(|x| (x - most).exp()).collect();
    let sum: f64 = e.iter().sum();
    e.into_iter().map(|e| e / sum).collect()
}

/// A norm of rows.
pub fn normed(x: &[f64], columns: u64, epsilon: f32, is_rms: bool, weight: &[f64], bias: Option<&[f64]>) -> Vec<f64> {
    let of_row = |row: &[f64]| {
        let mean = |of: &dyn Fn(f64) -> f64| row.iter().map(|&x| of(x)).sum::<f64>() / columns as f64;
        let center = if is_rms { 0. } else { mean(&|x| x) };
        let size = (mean(&|x| (x - center) * (x - center)) + f64::from(epsilon)).sqrt();
        let at = |(at, x): (usize, &f64)| (x - center) / size * weight[at] + bias.map_or(0., |bias| bias[at]);
        row.iter().enumerate().map(at).collect::<Vec<_>>()
    };
    rows(x, columns).flat_map(of_row).collect()
}

/// Products of matrices, `(batch, m, inner)` and `(batch, inner, n)`.
pub fn matmul(a: &[f64], b: &[f64], [batch, m, inner, n]: [usize; 4]) -> Vec<f64> {
    let mut y = vec![0.; batch * m * n];
    for item in 0..batch {
        for row in 0..m {
            let y = &mut y[(item * m + row) * n..][..n];
            for at in 0..inner {
                let x = a[(item * m + row) * inner + at];
                let b = &b[(item * inner + at) * n..][..n];
                y.iter_mut().zip(b).for_each(|(y, b)| *y += x * b);
            }
        }
    }
    y
}

/// The place of an element of a window in a plane, if it is there and not in the padding.
fn place(window: &Window, axis: usize, to: usize, of: usize, len: usize) -> Option<usize> {
    let at = to * window.stride[axis] as usize + of * window.dilation[axis] as usize;
    at.checked_sub(window.padding[axis] as usize).filter(|&at| at < len)
}

/// How many windows lie along an axis.
fn windows(window: &Window, axis: usize, len: usize, end: u64) -> usize {
    let all = len as u64 + window.padding[axis] + end;
    let reach = (window.kernel[axis] - 1) * window.dilation[axis] + 1;
    all.checked_sub(reach).map_or(0, |left| (left / window.stride[axis]) as usize + 1)
}

/// A convolution, with padding that may be another at the end.
pub fn convolution(
    x: &[f64],
    [batch, channels, h, w]: [usize; 4],
    weight: &[f64],
    window: &Window,
    end: [u64; 2],
) -> Vec<f64> {
    let (groups, [kh, kw]) = (window.groups as usize, window.kernel.map(|n| n as usize));
    let inner = channels / groups;
    let out = weight.len() / (inner * kh * kw);
    let (rows, columns) = (windows(window, 0, h, end[0]), windows(window, 1, w, end[1]));
    let mut y = Vec::with_capacity(batch * out * rows * columns);
    for (item, to) in (0..batch).flat_map(|item| (0..out).map(move |to| (item, to))) {
        let group = to / (out / groups);
        for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
            let mut sum = 0.;
            for (channel, i, j) in each([inner, kh, kw]) {
                if let (Some(r), Some(c)) = (place(window, 0, row, i, h), place(window, 1, column, j, w)) {
                    let from = x[((item * channels + group * inner + channel) * h + r) * w + c];
                    sum += from * weight[((to * inner + channel) * kh + i) * kw + j];
                }
            }
            y.push(sum);
        }
    }
    y
}

fn each([a, b, c]: [usize; 3]) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..a).flat_map(move |i| (0..b).flat_map(move |j| (0..c).map(move |k| (i, j, k))))
}

/// A transposed convolution: each element adds its multiple of the weight to a window.
pub fn transposed_convolution(
    x: &[f64],
    [batch, channels, h, w]: [usize; 4],
    weight: &[f64],
    window: &Window,
    output_padding: [u64; 2],
) -> Result<Vec<f64>> {
    ensure!(window.groups == 1, "a transposed convolution of groups");
    let [kh, kw] = window.kernel.map(|n| n as usize);
    let out = weight.len() / (channels * kh * kw);
    let Some([rows, columns]) = window.transposed([h as u64, w as u64], output_padding) else { bail!("no result") };
    let (rows, columns) = (rows as usize, columns as usize);
    let mut y = vec![0.; batch * out * rows * columns];
    for (item, channel, r) in each([batch, channels, h]) {
        for c in 0..w {
            let of = x[((item * channels + channel) * h + r) * w + c];
            for (to, i, j) in each([out, kh, kw]) {
                let (row, column) = (place(window, 0, r, i, rows), place(window, 1, c, j, columns));
                if let (Some(row), Some(column)) = (row, column) {
                    y[((item * out + to) * rows + row) * columns + column] +=
                        of * weight[((channel * out + to) * kh + i) * kw + j];
                }
            }
        }
    }
    Ok(y)
}

/// A pool whose padding counts as zeros, or as no maximum.
pub fn pool(x: &[f64], [batch, channels, h, w]: [usize; 4], window: &Window, end: [u64; 2], is_max: bool) -> Vec<f64> {
    let [kh, kw] = window.kernel.map(|n| n as usize);
    let (rows, columns) = (windows(window, 0, h, end[0]), windows(window, 1, w, end[1]));
    let mut y = Vec::new();
    for (plane, row, column) in each([batch * channels, rows, columns]) {
        let (mut most, mut sum) = (f64::NEG_INFINITY, 0.);
        for (_, i, j) in each([1, kh, kw]) {
            if let (Some(r), Some(c)) = (place(window, 0, row, i, h), place(window, 1, column, j, w)) {
                let of = x[(plane * h + r) * w + c];
                (most, sum) = (most.max(of), sum + of);
            }
        }
        y.push(if is_max { most } else { sum / (kh * kw) as f64 });
    }
    y
}

/// Each pixel of the result is the nearest one before it.
pub fn upsampled(x: &[f64], [batch, channels, h, w]: [usize; 4], [rows, columns]: [u64; 2]) -> Vec<f64> {
    let (rows, columns) = (rows as usize, columns as usize);
    let from = |at: usize, len: usize, of: usize| ((at as f64 * (len as f64 / of as f64)) as usize).min(len - 1);
    let pixels = each([batch * channels, rows, columns]);
    pixels.map(|(plane, row, column)| x[(plane * h + from(row, h, rows)) * w + from(column, w, columns)]).collect()
}

fn rotated(operands: &[Vec<f64>], rotary: &Rotary) -> Vec<f64> {
    let Rotary { outer, tokens, heads, size, is_of_neighbours, angles } = *rotary;
    let [outer, tokens, heads, size, angles] = [outer, tokens, heads, size, angles].map(|n| n as usize);
    let half = size / 2;
    let mut y = operands[0].clone();
    for (item, token, head) in each([outer, tokens, heads]) {
        let first = ((item * tokens + token) * heads + head) * size;
        let of = outer.checked_div(angles).map_or(0, |shared| item / shared);
        for pair in 0..half {
            let at = (of * tokens + token) * half + pair;
            let (cos, sin) = (operands[1][at], operands[2][at]);
            let (a, b) = match is_of_neighbours {
                true => (first + 2 * pair, first + 2 * pair + 1),
                false => (first + pair, first + half + pair),
            };
            let (x, z) = (operands[0][a], operands[0][b]);
            (y[a], y[b]) = (x * cos - z * sin, x * sin + z * cos);
        }
    }
    y
}
