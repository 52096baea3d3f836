//! Memory effects of the kernels that total errors.

use crate::cuda::operator::effects::{writes, Effects, Extent::Elements, Factor::Grid, Factor::Times};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // error_totals.cu: numel, reference, candle, other, out
    writes("opara_error_moments_", 4, Elements(&[Grid(0), Times(3)])).of_bytes(8),
    // error_totals.cu: numel, unit, moments, reference, candle, other, out
    writes("opara_error_totals_", 6, Elements(&[Grid(0), Times(4)])).of_bytes(8),
];
