//! Kernel times by family.

use std::collections::BTreeMap;

pub use opara_candle::plan::kernel_catalog::Family;
use opara_candle::plan::kernel_catalog::Kernel as Known;

use crate::results::Kernel;

/// The kernels of one family in one call.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Share {
    /// Number of launches.
    pub calls: f64,
    /// Microseconds of all launches together.
    pub us: f64,
}

/// Time and launches of these kernels, by family.
pub fn shares(kernels: &[Kernel]) -> BTreeMap<Family, Share> {
    let mut shares: BTreeMap<Family, Share> = BTreeMap::new();
    for kernel in kernels {
        let share = shares.entry(Known::of(&kernel.name).family).or_default();
        share.calls += kernel.calls;
        share.us += kernel.us;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::Family::{ElementWise, Layout};
    use super::*;

    #[test]
    fn times_of_a_family_are_summed() {
        let kernel = |name: &str, calls, us| Kernel { name: name.into(), calls, us };
        let found = shares(&[kernel("badd_f16", 2., 3.), kernel("bmul_f16", 1., 4.), kernel("memset", 1., 1.)]);
        let of_each = [(ElementWise, Share { calls: 3., us: 7. }), (Layout, Share { calls: 1., us: 1. })];
        assert_eq!(found, BTreeMap::from(of_each));
    }
}
