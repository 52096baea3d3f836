//! Norms that are folded into convolutions: weights of 16 bits round once more with the norm's factors, and whether that is seen
//! depends on what the convolution reads.

use candle::{DType, Result, Tensor};
use opara_plan::rewrite::{Changes, Compute, Convolution, Graph, Node, Step};

use super::accuracy::compare;
use super::evaluate::{Arithmetic, Numbers};
use super::evaluation::Evaluation;
use super::operators::{compute, folded};
use super::set::{waves, Set};
use super::settling::Settling;

/// Windows that a convolution is judged on, and their means, in units of what they differ by. A weight's errors add up over a mean as its
/// elements do not where these cancel each other.
const WINDOWS: usize = 64;
const MEANS: [f64; 3] = [0., 1., 8.];

/// Changes without the norms whose folding is less accurate than candle's launches on windows of any of these means, and notes.
pub(super) fn settled_folds(graph: &Graph, without: &[&str], sets: &[Set]) -> Result<(Changes, Vec<String>)> {
    let Some(set) = sets.first() else { return Ok(Default::default()) };
    let constant = graph.constant();
    let mut said_against = |changed: &Graph, at: usize| {
        let node = &changed.nodes[at];
        let Compute::FusedConvolution(convolution) = &node.compute else { return Ok(None) };
        let is_scaled = convolution.steps.iter().any(|step| matches!(step, Step::Mul | Step::Div));
        let is_judged = is_scaled
            && matches!(Arithmetic::Typed.dtype(node.element), DType::F16 | DType::BF16)
            && node.operands[1..2 + convolution.steps.len()].iter().all(|of| graph.is_constant(of.value, &constant));
        if !is_judged {
            return Ok(None);
        }
        let of = &mut Evaluation::new(changed, set.inputs(), Arithmetic::Typed, Numbers::All, compute);
        said_against_fold(of, node, convolution)
    };
    let mut settling = Settling::new(graph, without, Changes::default());
    let failed = settling.climb(&mut said_against)?;
    settling.leave_out(failed, &mut said_against)?;
    Ok((settling.changes.clone(), settling.notes()))
}

/// Holds a convolution with its steps against double precision, window by window.
fn said_against_fold(of: &mut Evaluation, node: &Node, convolution: &Convolution) -> Result<Option<String>> {
    let [x, weight, vectors @ ..] = &node.operands[..] else { return Ok(None) };
    let [_, channels, _, _] = x.dims[..] else { return Ok(None) };
    let [rows, columns] = convolution.window.kernel.map(|n| n as usize);
    let inner = (channels.len / convolution.window.groups.max(1)) as usize;
    let elements = inner * rows * columns;
    let out = weight.len() as usize / elements.max(1);
    let own = of.operand(weight, &[out, inner, rows, columns])?;
    let (changed, shift) = folded(of, node, convolution, own.clone())?;
    let (dtype, wide) = (own.dtype(), |x: &Tensor| x.to_dtype(DType::F32)?.to_dtype(DType::F64));
    let narrow = |x: &Tensor| x.to_dtype(DType::F32)?.to_dtype(dtype);
    let matrix = |x: &Tensor| wide(&x.contiguous()?.reshape((out, elements))?);
    let (own, changed) = (matrix(&own)?, matrix(&changed)?);
    let vectors = vectors.iter().zip(&convolution.steps);
    let vectors = vectors.map(|(by, step)| Ok((step, of.operand(by, &[out])?.reshape((out, 1))?)));
    let vectors = vectors.collect::<Result<Vec<_>>>()?;
    for mean in MEANS {
        let windows = (waves(elements * WINDOWS, 1, own.device())? + mean)?.reshape((elements, WINDOWS))?;
        let windows = wide(&narrow(&windows)?)?;
        let mut reference = own.matmul(&windows)?;
        let mut candle = narrow(&reference)?;
        for (step, by) in &vectors {
            let stepped = |x: &Tensor, by: &Tensor| match step {
                Step::Add => x.broadcast_add(by),
                Step::Sub => x.broadcast_sub(by),
                Step::Mul => x.broadcast_mul(by),
                Step::Div => x.broadcast_div(by),
            };
            (reference, candle) = (stepped(&reference, &wide(by)?)?, stepped(&candle, by)?);
        }
        let other = changed.matmul(&windows)?;
        let other = match &shift {
            Some(shift) => other.broadcast_add(&wide(shift)?.reshape((out, 1))?)?,
            None => other,
        };
        // Where candle's own results are no use, they are no measure.
        if compare(&reference, &candle, &candle)?.is_err() {
            continue;
        }
        if let Err(reason) = compare(&reference, &candle, &narrow(&other)?)? {
            return Ok(Some(format!("on windows of mean {mean} {reason}")));
        }
    }
    Ok(None)
}
