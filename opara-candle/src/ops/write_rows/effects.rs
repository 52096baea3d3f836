//! Memory effects of the row copy kernels.

use crate::cuda::operator::effects::{
    writes,
    Before::PartlyKept,
    Effects,
    Extent::Elements,
    Factor::{Argument, Times},
};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // write_rows.cu: outer dimensions, rows of the buffer, units of a row, new rows, ..., new, positions, buffer
    writes("opara_write_rows_v128", 15, Elements(&[Argument(0), Argument(1), Argument(2), Times(4)]))
        .of_bytes(4)
        .before(PartlyKept),
    writes("opara_write_rows_", 15, Elements(&[Argument(0), Argument(1), Argument(2)])).before(PartlyKept),
];
