//! Convolutions, pools and softmax on the CPU.
//!
//! The bits of a result do not depend on the number of threads, nor on the width of the machine's vectors: each element
//! is one chain of operations, in an order that follows from the shapes.

mod conv;
mod conv2d;
mod depthwise;
mod element;
mod pool;
mod product;
mod softmax;
mod taps;

pub(crate) use conv::Conv;
pub(crate) use conv2d::conv2d;
pub(crate) use element::{elements, supports};
pub(crate) use pool::pool2d;
pub(crate) use softmax::softmax;

use rayon::iter::{IntoParallelIterator, ParallelIterator};

/// Operations below which a second thread costs more than it saves: some 50 microseconds of one core.
const WORTH_A_THREAD: usize = 5_000_000;

/// Calls `f` with each task, on several threads if that is `worth` it.
fn each<T: Send>(worth: bool, tasks: Vec<T>, f: impl Fn(T) + Send + Sync) {
    match worth {
        true => tasks.into_par_iter().for_each(f),
        false => tasks.into_iter().for_each(f),
    }
}
