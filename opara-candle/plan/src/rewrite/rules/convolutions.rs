//! Convolutions and what is around them: padding, bias, norm, residual and activation.

use super::channels::of_channels;
use super::concats::ends_in_relu;
use super::found::{self, Found};
use super::rule::{rule, Rule};
use super::{grouped_convolution, padding, transposed_convolution};
use crate::rewrite::compute::{Compute, Convolution, Step};
use crate::rewrite::graph::{Node, Operand};
use crate::trace::{Dim, Function};

pub(super) const RULES: [Rule; 12] = [
    // [conv(x1, w1) | .. | conv(xn, wn)] -> conv(x, w, groups = n)
    rule!("grouped-convolution": concat() => grouped_convolution::join_groups),
    // conv(x, w) -> the fastest library and algorithm, channels last, sums in f32
    rule!("convolution": any() => use_library),
    // conv(pad(x, 0), w) -> conv(x, w, padding)
    rule!("convolution-padding": convolution() => padding::take_padding),
    // max_pool(pad(x, -inf)) or max_pool(pad(x, edges)) -> max_pool(x, padding); mean_pool(pad(x, 0)) -> mean_pool(x, padding)
    rule!("pool-padding": any() => padding::pad_pool),
    // conv_transpose(x, w, stride s) + c -> interleave(conv(x, w')), w' with s * s times the channels
    rule!("transposed-convolution":
        any() => transposed_convolution::make_ordinary; add(y = transposed(), c) => transposed_convolution::take_bias),
    // upsample_nearest(x) -> the same, in the layout of its neighbours; candle's kernel writes planes whatever it reads
    rule!("upsampling": any() => upsample),
    // conv(x, w) + c -> conv(x, w, c)
    rule!("convolution-bias": add(y = convolution(), c) => take_bias),
    // (conv(x, w) - c1) / c2 * c3 + c4 -> conv(x, w', c')
    rule!("convolution-norm": step(y = convolution(), c) => take_step),
    // conv(x, w) + r -> conv(x, w, residual = r), unless `concat-sums` takes the sum
    rule!("convolution-residual": add(y = convolution(), r) => take_residual),
    // relu(conv(x, w)), and silu(conv(x, w)) where it is depthwise -> an epilogue
    rule!("convolution-activation":
        unary(y = convolution()) => take_activation; mul(y = convolution(), sigmoid(y)) => take_activation),
    // conv(relu(x), w), depthwise -> relu while the convolution reads
    rule!("convolution-of-relu": convolution(y = relu(x)) => take_relu),
    // conv(x, w) + c, images and kernel of one pixel -> x @ w^T + c: the weight is read once for all of them
    rule!("pixel-product": convolution() => multiply_pixels),
];

fn use_library(found: &Found) -> Option<Node> {
    let Function::Convolution(window) = *found.facts.recorded(found.at)? else { return None };
    let node = found.root();
    let [_, _, h, w] = node.operands.first()?.dims[..] else { return None };
    let compute = Compute::FusedConvolution(Convolution::new(window.square([h.len, w.len])?));
    node.element.is_float().then(|| found.replace_by(compute, node.operands.clone()))
}

fn upsample(found: &Found) -> Option<Node> {
    let Function::UpsampleNearest([rows, columns]) = *found.facts.recorded(found.at)? else { return None };
    let node = found.root();
    let [x] = &node.operands[..] else { return None };
    let [images, channels, _, _] = x.dims[..] else { return None };
    let len = images.len.checked_mul(channels.len)?.checked_mul(rows)?.checked_mul(columns)?;
    let fits = node.element.is_float() && found.facts.have_type_of(node, [x]) && node.len == len;
    fits.then(|| found.replace_by(Compute::UpsampleNearest([rows, columns]), vec![x.clone()]))
}

fn take_bias(found: &Found) -> Option<Node> {
    let (_, of) = find_bare(found)?;
    of.steps.iter().all(|step| *step == Step::Add).then(|| take_step(found))?
}

/// Something with one number a channel.
fn take_step(found: &Found) -> Option<Node> {
    let (before, of) = find_bare(found).filter(|(_, of)| !of.residual)?;
    let Function::Binary(name) = found.facts.recorded(found.at)? else { return None };
    let c = found.operand("c").filter(|c| found.facts.is_constant(c))?;
    let vector = of_channels(&before.operands, &of.window, c, before.len)?;
    let steps = of.steps.iter().copied().chain([Step::of(name)?]).collect();
    let compute = Compute::FusedConvolution(Convolution { steps, ..of.clone() });
    Some(found.replace_by(compute, [&before.operands[..], &[vector]].concat()))
}

fn take_residual(found: &Found) -> Option<Node> {
    let (before, of) = find_bare(found)?;
    let residual = found.operand("r").filter(|r| r.is_run_of(before.len))?;
    // Each group of one channel has a kernel of its own, which adds nothing. And a concatenation reads both summands in the launch that it
    // needs anyway.
    if of.residual || is_depthwise(before, of) || ends_in_relu(found.facts, found.at) {
        return None;
    }
    let compute = Compute::FusedConvolution(Convolution { residual: true, ..of.clone() });
    Some(found.replace_by(compute, [&before.operands[..], std::slice::from_ref(residual)].concat()))
}

fn take_activation(found: &Found) -> Option<Node> {
    let (before, of) = find_bare(found)?;
    let name = found::activation(found.root())?;
    let is_known = name == "relu" || (name == "silu" && is_depthwise(before, of));
    let compute = Compute::FusedConvolution(Convolution { activation: Some(name.into()), ..of.clone() });
    is_known.then(|| found.replace_by(compute, before.operands.clone()))
}

fn take_relu(found: &Found) -> Option<Node> {
    let node = found.root();
    let (Compute::FusedConvolution(of), [image, others @ ..]) = (&node.compute, &node.operands[..]) else {
        return None;
    };
    let x = found.operand("x").filter(|x| x.is_run_of(image.len()))?;
    let x = Operand { dims: image.dims.clone(), ..x.clone() };
    let compute = Compute::FusedConvolution(Convolution { of_relu: true, ..of.clone() });
    let fits = !of.of_relu && is_depthwise(node, of);
    fits.then(|| found.replace_by(compute, [&[x], others].concat()))
}

fn multiply_pixels(found: &Found) -> Option<Node> {
    let node = found.root();
    let (Compute::FusedConvolution(of), [x, weight, bias]) = (&node.compute, &node.operands[..]) else { return None };
    let [images, channels, h, w] = x.dims[..] else { return None };
    let has_bias = of.steps == [Step::Add] && !of.residual;
    let is_product = of.window.groups == 1 && of.window.kernel == [1; 2] && (h.len, w.len) == (1, 1);
    let is_padded = of.window.padding != [0; 2] || of.end != [0; 2];
    let out = weight.len().checked_div(channels.len)?;
    let is_matrix = weight.is_run_of(out * channels.len) && found.facts.is_constant(weight);
    if !has_bias || !is_product || is_padded || !is_matrix {
        return None;
    }
    let rows = vec![Dim { len: out, stride: channels.len }, Dim { len: channels.len, stride: 1 }];
    let x = Operand { dims: vec![images, channels], ..x.clone() };
    let operands = vec![x, Operand { dims: rows, ..weight.clone() }, bias.clone()];
    Some(found.replace_by(Compute::Linear { activation: of.activation.clone() }, operands))
}

/// The convolution `y`, if no activation follows it yet.
fn find_bare<'a>(found: &Found<'a>) -> Option<(&'a Node, &'a Convolution)> {
    let node = found.node("y")?;
    match &node.compute {
        Compute::FusedConvolution(of) if of.activation.is_none() => Some((node, of)),
        _ => None,
    }
}

/// Whether each group has one channel, and one result of each window.
fn is_depthwise(node: &Node, of: &Convolution) -> bool {
    let ([_, channels, ..], [rows, columns]) = (&node.operands[0].dims[..], of.window.kernel) else { return false };
    let groups = of.window.groups;
    groups > 1 && groups == channels.len && Some(node.operands[1].len()) == groups.checked_mul(rows * columns)
}
