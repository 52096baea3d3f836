//! Shared parts of the CPU kernels.
//!
//! The bits of a result depend neither on the number of threads nor on the width of the machine's vectors: each element
//! is one chain of operations, in an order that follows from the shapes.

mod element;
mod functions;
mod panels;
mod softmax;
mod taps;

pub(crate) use element::{elements, is_wide, joined, lanes, sum_of_squares, supports, Element, Sum, WIDEST};
pub(crate) use panels::{multiply, rows_at_once, weight_vectors, PANEL, VECTORS, WIDE_PANEL, WIDE_VECTORS};
pub(crate) use softmax::softmax_in_place;
pub(crate) use taps::{larger, Taps, Windows};

use rayon::iter::{IntoParallelIterator, ParallelIterator};

/// With fewer operations than this, a second thread costs more than it saves: about 50 microseconds of one core.
pub(crate) const WORTH_A_THREAD: usize = 5_000_000;

/// Calls `f` with each task, in parallel if it is `worth` it.
pub(crate) fn each<T: Send>(worth: bool, tasks: Vec<T>, f: impl Fn(T) + Send + Sync) {
    match worth {
        true => tasks.into_par_iter().for_each(f),
        false => tasks.into_iter().for_each(f),
    }
}
