//! Memory effects of the norm kernels.

use crate::cuda::operator::effects::{
    writes, Effects,
    Extent::Elements,
    Factor::{Argument, Times},
};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // norm.cu: rows, columns, eps, in, bias, residual, scale, shift, out; bias and residual may be null
    writes("opara_layer_norm_", 8, Elements(&[Argument(0), Argument(1)])).reads(&[3, 5]),
    // norm.cu: rows, columns, eps, in, scale, out
    writes("opara_rms_norm_", 5, Elements(&[Argument(0), Argument(1)])).reads(&[3]),
    // norm.cu: rows, columns, eps, in, residual, scale, out; out holds the sums and then the normalised
    // sums
    writes("opara_add_rms_norm_", 6, Elements(&[Argument(0), Argument(1), Times(2)])),
];
