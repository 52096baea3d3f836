//! Memory effects of the concatenation kernels.

use crate::cuda::operator::effects::{
    writes, Effects,
    Extent::Elements,
    Factor::{Argument, Times},
};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // cat.cu, sums: elements, elements per row, relu, out; then eight times a part, its summand and its elements per row
    writes("opara_cat_sums_", 3, Elements(&[Argument(0)])),
    // cat.cu: units, units per row, out; then eight times a part and its units per row
    writes("opara_cat_v128", 2, Elements(&[Argument(0), Times(4)])).of_bytes(4),
    writes("opara_cat_", 2, Elements(&[Argument(0)])),
];
