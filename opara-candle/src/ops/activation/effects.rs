//! Memory effects of the bias and activation kernels.

use crate::cuda::operator::effects::{writes, Effects, Extent::Elements, Factor::Argument};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // activation.cu: numel, columns, activation, in, bias, out; the bias may be null
    writes("opara_bias_act_", 5, Elements(&[Argument(0)])).reads(&[3]),
];
