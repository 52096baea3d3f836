//! Operands beside those of a captured step, on which it is held against double precision, too.

use candle::{Result, Tensor};

use crate::cuda::{Place, WholePass};
use crate::rewrite::set::{nearby, NEARBY};

/// The fewest, and the most for a model of few logits.
const OTHERS: [usize; 2] = [7, 31];
/// As many logits tell errors apart: those of one token all follow from one vector.
const ENOUGH: usize = 4096;
/// The most numbers of other keys and values.
const MOST_OF_CACHES: usize = 1 << 24;

/// Other operands of a pass: a token of the example, behind other keys and values. `later` is a pass behind one more token, `inputs` are
/// the operands that `pass` had.
pub(super) fn others(
    [pass, later]: [&WholePass; 2],
    inputs: &[Tensor],
    example: &Tensor,
    logits: usize,
) -> Result<Vec<Vec<Tensor>>> {
    // The later pass does not read them, or this one overwrites a part of them.
    let is_overwritten = |at: usize| pass.overwritten.iter().any(|(input, _)| *input == at);
    let is_cache = |at: usize| is_overwritten(at) || later.places.get(at) != Some(&pass.places[at]);
    let is_kept =
        |&at: &usize| is_cache(at) && matches!(pass.places[at], Place::Memory(_)) && inputs[at].dtype().is_float();
    let caches: Vec<usize> = (0..inputs.len()).filter(is_kept).collect();
    let numbers: usize = caches.iter().map(|&at| inputs[at].elem_count()).sum();
    let affordable = MOST_OF_CACHES.checked_div(numbers).unwrap_or(0);
    let [fewest, most] = OTHERS;
    let count = ENOUGH.div_ceil(logits.max(1)).clamp(fewest, most);
    let other = |number: usize| -> Result<Vec<Tensor>> {
        let token = example.narrow(1, number % example.dim(1)?, 1)?.flatten_all()?;
        let mut other: Vec<Tensor> = inputs.to_vec();
        for (input, place) in other.iter_mut().zip(&pass.places) {
            if let Place::Argument(0) = place {
                input.clone_from(&token);
            }
        }
        for &at in caches.iter().filter(|_| number < affordable) {
            other[at] = nearby(&inputs[at], number + 1, NEARBY)?;
        }
        Ok(other)
    };
    (0..count).map(other).collect()
}
