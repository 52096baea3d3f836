//! Group norms, and the SiLU that follows them in diffusion models.

use super::normalised::Normalised;
use super::{Facts, Replacement};
use crate::rewrite::graph::{strides_over, Compute, Node, Operand};
use crate::trace::Dim;

/// Lets a group norm be one operator, and the activation behind it part of that.
pub(super) fn at(facts: &Facts, at: usize) -> Option<Replacement> {
    norm(facts, at).or_else(|| silu(facts, at))
}

/// Normalised groups, times one number a channel, plus another one.
fn norm(facts: &Facts, at: usize) -> Option<Replacement> {
    let node = facts.node(at);
    let [a, b] = facts.binary(at, "add")?;
    let orders = |[a, b]: [&'_ Operand; 2]| [(a.clone(), b.clone()), (b.clone(), a.clone())];
    orders([a, b]).into_iter().find_map(|(scaled, shift)| {
        let product = facts.only(&scaled)?;
        orders(facts.binary(product, "mul")?).into_iter().find_map(|(of, scale)| {
            let norm = Normalised::of(facts, &of).filter(|norm| !norm.is_rms && norm.x.is_run_of(node.len))?;
            let Channels { images, channels, plane } = Channels::of(&scale, node.len)?;
            let groups = (node.len / norm.columns).checked_div(images)?;
            let are_whole = groups > 0 && channels % groups == 0 && channels / groups * plane == norm.columns;
            let shape = [images, channels, plane];
            let vector = |operand: &Operand| {
                let [0, stride, 0] = strides_over(&operand.dims, &shape)?[..] else { return None };
                Some(Operand { dims: vec![Dim { len: channels, stride }], ..operand.clone() })
            };
            let vectors = [vector(&scale)?, vector(&shift)?];
            let fits = are_whole && facts.have_type_of(node, [&norm.x, &scale, &shift]);
            let strides = [channels * plane, plane, 1];
            let dims = shape.into_iter().zip(strides).map(|(len, stride)| Dim { len, stride }).collect();
            let saved = norm.parts.iter().chain([&product]).map(|&part| facts.node(part).launches).sum();
            let operands = std::iter::once(Operand { dims, ..norm.x }).chain(vectors).collect();
            let compute = Compute::GroupNorm { groups, epsilon: norm.epsilon, silu: false };
            let node = Node { compute, operands, launches: node.launches + saved, ..node.clone() };
            fits.then_some(Replacement { node, saved })
        })
    })
}

/// `x * sigmoid(x)` behind a group norm.
fn silu(facts: &Facts, at: usize) -> Option<Replacement> {
    let node = facts.node(at);
    let before = facts.node(facts.only(facts.unary(at, "silu")?)?);
    let Compute::GroupNorm { groups, epsilon, silu: false } = before.compute else { return None };
    let compute = Compute::GroupNorm { groups, epsilon, silu: true };
    let launches = node.launches + before.launches;
    (before.element == node.element)
        .then(|| Replacement { node: Node { compute, launches, ..before.clone() }, saved: 1 })
}

/// The sizes of a tensor that is scaled by one number a channel.
struct Channels {
    images: u64,
    channels: u64,
    /// Pixels of an image.
    plane: u64,
}

impl Channels {
    fn of(scale: &Operand, len: u64) -> Option<Self> {
        let mut dims = scale.dims.iter().filter(|dim| dim.len != 1);
        let before = dims.clone().take_while(|dim| dim.stride == 0).count();
        let channels = dims.nth(before).map(|dim| dim.len)?;
        let plane = dims.map(|dim| dim.len).product::<u64>();
        Some(Self { images: len.checked_div(channels * plane)?, channels, plane })
    }
}
