//! Memory effects of the group norm kernels.

use crate::cuda::operator::effects::{
    writes, Effects,
    Extent::Elements,
    Factor::{Argument, Grid, Times},
};

/// The axis of the grid that goes over images. The first one goes over parts of an image, the second one over its channels.
const IMAGES: usize = 2;

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // group_norm.cu: groups, channels of each, pixels, units of a part, eps, silu, in, scale, shift, out
    writes("opara_group_norm_", 9, Elements(&[Grid(IMAGES), Argument(0), Argument(1), Argument(2)])),
    // group_norm.cu: groups, channels of each, pixels, units of a part, in, moments
    writes("opara_group_moments_", 5, Elements(&[Grid(0), Grid(IMAGES), Argument(0), Times(2)])).of_bytes(4),
    // group_norm.cu: groups, channels of each, pixels, units of a part, eps, silu, in, scale, shift, moments, out
    writes("opara_group_apply_", 10, Elements(&[Grid(IMAGES), Argument(0), Argument(1), Argument(2)])),
];
