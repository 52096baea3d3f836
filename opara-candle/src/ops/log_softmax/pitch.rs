//! Where rows lie.

use candle::Tensor;

/// Elements from one row to the next.
pub(super) fn pitch(x: &Tensor) -> usize {
    match (x.dims(), x.stride()) {
        (&[rows, columns], &[of_row, 1]) if rows > 1 && of_row > columns => of_row,
        (dims, _) => dims[dims.len() - 1],
    }
}
