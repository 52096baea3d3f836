//! Maxima and means over windows.

use candle::{Result, WithDType};

use super::{Element, Sum};
use crate::ops::{PoolConfig, PoolKind};

/// The result for planes of `size`, one behind the other.
///
/// # Errors
/// A window that does not fit.
pub(crate) fn pool2d<T: Element>(kind: PoolKind, config: &PoolConfig, size: (usize, usize), x: &[T]) -> Result<Vec<T>> {
    let (h, w) = size;
    let (oh, ow) = config.output(size)?;
    let p = config.padding;
    // What a window covers of the input.
    let span = |index: usize, before: usize, size: usize| {
        let start = index * config.stride;
        start.saturating_sub(before)..(start + config.kernel - before).min(size)
    };
    let mut y = Vec::with_capacity(x.len() / (h * w) * oh * ow);
    for plane in x.chunks_exact(h * w) {
        for i in 0..oh * ow {
            let (rows, columns) = (span(i / ow, p.top, h), span(i % ow, p.left, w));
            let values = rows.flat_map(|row| &plane[row * w..][columns.clone()]).map(|x| x.widen());
            y.push(T::narrow(match kind {
                PoolKind::Max => values.reduce(|a, b| if a >= b || a != a { a } else { b }).unwrap_or(T::Sum::ZERO),
                PoolKind::Mean => {
                    let count = config.counted(i / ow, h, p.top, p.bottom) * config.counted(i % ow, w, p.left, p.right);
                    values.fold(T::Sum::ZERO, |a, b| a + b) / T::Sum::from_f64(count as f64)
                }
            }));
        }
    }
    Ok(y)
}
