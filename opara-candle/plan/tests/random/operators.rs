//! The operators that rules put in.

use anyhow::{bail, ensure, Context, Result};
use opara_plan::rewrite::{Compute, Convolution, Mask, Node, Scores, Step};

use crate::interpreter::{lens, over, Interpreter};
use crate::recorded::{convolution, matmul, normed, pool, rows, softmax, transposed_convolution, unary, upsampled};

/// The results of an operator: its own, then those that come with it.
pub fn compute(of: &Interpreter, node: &Node) -> Result<Vec<Vec<f64>>> {
    if let Compute::FusedConvolution(convolution) = &node.compute {
        return Ok(vec![fused_convolution(of, node, convolution)?]);
    }
    let operands = match &node.compute {
        Compute::Attention(scores) => return Ok(vec![attention(of, node, scores)?]),
        _ => of.operands(node)?,
    };
    let first = &operands[0];
    let image = || lens(&node.operands[0]);
    Ok(vec![match &node.compute {
        Compute::Concat { rows, widths } => concatenated(&operands, *rows, widths)?,
        Compute::ConcatRelu { rows, widths, are_sums } => {
            let mut left = operands.iter();
            let mut parts = Vec::new();
            for is_sum in are_sums {
                let part = left.next().context("a part")?.clone();
                parts.push(if *is_sum { sum(&part, left.next().context("a summand")?) } else { part });
            }
            let relu = unary("relu")?;
            concatenated(&parts, *rows, widths)?.into_iter().map(relu).collect()
        }
        Compute::TransposedConvolution { window, output_padding } => {
            let y = transposed_convolution(first, image()?, &operands[1], window, *output_padding)?;
            let batch = image()?[0];
            match operands.get(2) {
                Some(bias) => each_channel(&y, batch, bias, |y, bias| y + bias),
                None => y,
            }
        }
        Compute::UpsampleNearest(size) => upsampled(first, image()?, *size),
        Compute::Pool { window, end, is_max } => pool(first, image()?, window, *end, *is_max),
        Compute::Linear { activation } => {
            let y = product(of, node, 0, 1, operands.get(2))?;
            activated(y, activation.as_deref())?
        }
        Compute::ProductConcat { have_bias } => {
            let parts = products(of, node, have_bias)?;
            let count = lens::<2>(&node.operands[0])?[0] as u64;
            let widths: Vec<u64> = parts.iter().map(|part| part.len() as u64 / count).collect();
            concatenated(&parts, count, &widths)?
        }
        Compute::ProductsOfOne { have_bias, .. } => return products(of, node, have_bias),
        Compute::Gated { activation, has_bias } => {
            let [gate, up] = &products(of, node, &[*has_bias; 2])?[..] else { bail!("two products") };
            let gate = activated(gate.clone(), Some(activation))?;
            gate.iter().zip(up).map(|(gate, up)| gate * up).collect()
        }
        Compute::RowMean { columns, factor } => {
            rows(first, *columns).map(|row| row.iter().sum::<f64>() * f64::from(*factor)).collect()
        }
        Compute::RowNorm { columns, epsilon, is_rms } => {
            normed(first, *columns, *epsilon, *is_rms, &operands[1], operands.get(2).map(Vec::as_slice))
        }
        Compute::NormOfSum { columns, epsilon, is_rms } => {
            let bias = operands.get(3).map(Vec::as_slice);
            normed(&sum(first, &operands[1]), *columns, *epsilon, *is_rms, &operands[2], bias)
        }
        Compute::SumBesideNorm { columns, epsilon, .. } => {
            let y = sum(first, &operands[1]);
            let norm = normed(&y, *columns, *epsilon, true, &operands[2], None);
            return Ok(vec![y, norm]);
        }
        Compute::GroupNorm { groups, epsilon, silu } => {
            let [images, channels, pixels] = lens(&node.operands[0])?;
            let columns = (channels / *groups as usize * pixels) as u64;
            let ones = vec![1.; columns as usize];
            let y = normed(first, columns, *epsilon, false, &ones, None);
            let y = each_channel(&y, images, &operands[1], |y, weight| y * weight);
            let y = each_channel(&y, images, &operands[2], |y, bias| y + bias);
            activated(y, silu.then_some("silu"))?
        }
        other => bail!("no rule puts in {other:?}"),
    }])
}

fn sum(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

fn activated(x: Vec<f64>, activation: Option<&str>) -> Result<Vec<f64>> {
    let Some(name) = activation else { return Ok(x) };
    let of = unary(name)?;
    Ok(x.into_iter().map(of).collect())
}

/// Row by row, `widths` elements of each part.
fn concatenated(parts: &[Vec<f64>], rows: u64, widths: &[u64]) -> Result<Vec<f64>> {
    let mut y = Vec::new();
    for row in 0..rows as usize {
        for (part, &width) in parts.iter().zip(widths) {
            let width = width as usize;
            y.extend(part.get(row * width..(row + 1) * width).context("a part is too short")?);
        }
    }
    Ok(y)
}

/// Changes elements of images by one number a channel.
fn each_channel(x: &[f64], images: usize, vector: &[f64], change: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    let pixels = x.len() / (images * vector.len());
    x.iter().enumerate().map(|(at, &x)| change(x, vector[at / pixels % vector.len()])).collect()
}

/// A product of an operand, `(rows, inner)`, with another one, `(columns, inner)`, and a bias.
fn product(of: &Interpreter, node: &Node, x: usize, weight: usize, bias: Option<&Vec<f64>>) -> Result<Vec<f64>> {
    let ([rows, inner], [columns, _]) = (lens(&node.operands[x])?, lens(&node.operands[weight])?);
    let mut across = node.operands[weight].clone();
    across.dims.swap(0, 1);
    let mut y = matmul(&of.operand(&node.operands[x])?, &of.operand(&across)?, [1, rows, inner, columns]);
    if let Some(bias) = bias {
        y.iter_mut().enumerate().for_each(|(at, y)| *y += bias[at % columns]);
    }
    Ok(y)
}

/// Products of the first operand with weights, each with its bias if it has one.
fn products(of: &Interpreter, node: &Node, have_bias: &[bool]) -> Result<Vec<Vec<f64>>> {
    let mut at = 1;
    let mut all = Vec::new();
    for &has_bias in have_bias {
        let bias = if has_bias { Some(of.operand(&node.operands[at + 1])?) } else { None };
        all.push(product(of, node, 0, at, bias.as_ref())?);
        at += 1 + usize::from(has_bias);
    }
    ensure!(at == node.operands.len(), "operands are left");
    Ok(all)
}

fn fused_convolution(of: &Interpreter, node: &Node, fused: &Convolution) -> Result<Vec<f64>> {
    let operands = of.operands(node)?;
    let image: [usize; 4] = lens(&node.operands[0])?;
    let x = activated(operands[0].clone(), fused.of_relu.then_some("relu"))?;
    let mut y = convolution(&x, image, &operands[1], &fused.window, fused.end);
    for (step, vector) in fused.steps.iter().zip(&operands[2..]) {
        let change: fn(f64, f64) -> f64 = match step {
            Step::Add => |y, by| y + by,
            Step::Sub => |y, by| y - by,
            Step::Mul => |y, by| y * by,
            Step::Div => |y, by| y / by,
        };
        y = each_channel(&y, image[0], vector, change);
    }
    if fused.residual {
        y = sum(&y, operands.last().context("a residual")?);
    }
    activated(y, fused.activation.as_deref())
}

fn attention(of: &Interpreter, node: &Node, scores: &Scores) -> Result<Vec<f64>> {
    let heads = |at: usize| -> Result<([usize; 4], Vec<f64>)> {
        let operand = &node.operands[at];
        let dims = match operand.dims.len() {
            3 => [vec![1], lens::<3>(operand)?.to_vec()].concat(),
            _ => lens::<4>(operand)?.to_vec(),
        };
        Ok((dims.try_into().map_err(|_| anyhow::anyhow!("heads"))?, of.operand(operand)?))
    };
    let (([batch, heads_of_q, queries, size], q), ([_, of_keys, keys, _], k), ([.., of_values], v)) =
        (heads(0)?, heads(1)?, heads(2)?);
    let shape = [batch, heads_of_q, queries, keys].map(|len| len as u64);
    let (factors, masks) = node.operands[3..].split_at(scores.are_divisors.len());
    let mut scale = f64::from(scores.scale);
    for (factor, is_divisor) in factors.iter().zip(&scores.are_divisors) {
        let factor = of.operand(factor)?[0];
        scale = if *is_divisor { scale / factor } else { scale * factor };
    }
    let masks = masks.iter().map(|mask| over(of, mask, &shape)).collect::<Result<Vec<_>>>()?;
    let mut y = Vec::new();
    for (head, query) in (0..batch * heads_of_q).flat_map(|head| (0..queries).map(move |query| (head, query))) {
        let shared = head / heads_of_q * of_keys + head % heads_of_q * of_keys / heads_of_q;
        let q = &q[(head * queries + query) * size..][..size];
        let row = |x: &'_ [f64], size: usize, key: usize| x[(shared * keys + key) * size..][..size].to_vec();
        let score = |key: usize| {
            let product: f64 = q.iter().zip(row(&k, size, key)).map(|(q, k)| q * k).sum::<f64>() * scale;
            let mut score = scores.cap.map_or(product, |cap| f64::from(cap) * product.tanh());
            let (at, mut left) = ((head * queries + query) * keys + key, masks.iter());
            for mask in &scores.masks {
                let own = left.next().map_or(f64::NAN, |mask| mask[at]);
                score = match *mask {
                    Mask::Added(factor) => score + own * f64::from(factor),
                    Mask::Filled { number, where_zero } if (own != 0.) != where_zero => number.into(),
                    Mask::Filled { .. } => score,
                    Mask::Replaced { where_zero } => {
                        let other = left.next().map_or(f64::NAN, |mask| mask[at]);
                        if (own != 0.) != where_zero {
                            other
                        } else {
                            score
                        }
                    }
                };
            }
            score
        };
        let weights = softmax(&(0..keys).map(score).collect::<Vec<_>>());
        let mut sums = vec![0.; of_values];
        for (key, weight) in weights.into_iter().enumerate() {
            sums.iter_mut().zip(row(&v, of_values, key)).for_each(|(sum, v)| *sum += weight * v);
        }
        y.extend(sums);
    }
    Ok(y)
}
