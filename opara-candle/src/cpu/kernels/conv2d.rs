//! Convolution: which kernel computes it, and on how many threads.

use super::conv::Conv;
use super::depthwise::depthwise;
use super::element::Element;
use super::product::{Group, Product};
use super::{each, WORTH_A_THREAD};

/// Output channels of one input channel from which a matrix product is the better way.
const MANY: usize = 4;

/// The result for contiguous operands.
pub(crate) fn conv2d<T: Element>(conv: &Conv, x: &[T], weight: &[T], bias: Option<&[T]>) -> Vec<T> {
    let groups = conv.config.groups;
    let (channels, outs) = (conv.channels.0 / groups, conv.channels.1 / groups);
    let (k, n) = (channels * conv.window.0 * conv.window.1, conv.output.0 * conv.output.1);
    let mut y = vec![T::zero(); conv.batch * conv.channels.1 * n];
    if y.is_empty() {
        return y;
    }
    if channels == 1 && outs < MANY {
        depthwise(conv, x, weight, bias, &mut y);
        return y;
    }
    let product = Product::new(conv);
    let work = 2 * outs * k * n;
    let xs = x.chunks_exact(channels * conv.input.0 * conv.input.1);
    let tasks: Vec<_> = xs.zip(y.chunks_exact_mut(outs * n)).enumerate().collect();
    // Either the products have threads, or what one is made of.
    let many = tasks.len() >= 4 * rayon::current_num_threads() || work < WORTH_A_THREAD;
    let worth = tasks.len() * work > WORTH_A_THREAD;
    let run = || {
        each(many && worth, tasks, |(i, (x, y))| {
            let first = i % groups * outs;
            let (weight, bias) = (&weight[first * k..][..outs * k], bias.map(|bias| &bias[first..][..outs]));
            product.run(Group { x, weight, bias }, !many, y)
        })
    };
    match worth {
        // Once to the pool, not at each of the steps.
        true => rayon::scope(|_| run()),
        false => run(),
    }
    y
}
