//! The effects of all kernels that are compiled to PTX: candle's, by the catalogue, and this library's, by their declarations.

use std::sync::OnceLock;

use super::effects::of_declared;
use crate::cuda::driver::kernels::declared::Declared;
use crate::ops::DECLARED;
use opara_plan::kernel_catalog::{Effects, KernelEntry};

/// This library's kernels, with their effects.
fn own() -> &'static [(&'static Declared, Effects)] {
    static OWN: OnceLock<Vec<(&Declared, Effects)>> = OnceLock::new();
    OWN.get_or_init(|| DECLARED.iter().copied().flatten().map(|kernel| (kernel, of_declared(kernel))).collect())
}

/// What is declared of this library's kernel of this name, with its effects: by the longest prefix.
pub(super) fn declared(name: &str) -> Option<&'static (&'static Declared, Effects)> {
    own().iter().filter(|(kernel, _)| name.starts_with(kernel.prefix)).max_by_key(|(kernel, _)| kernel.prefix.len())
}

/// The effects of a kernel that is known to be candle's or this library's.
pub(super) fn effects_of(name: &str) -> Option<&'static Effects> {
    match declared(name) {
        Some((_, effects)) => Some(effects),
        None => KernelEntry::of(name).map(|row| &row.effects),
    }
}

/// The prefixes of all known kernels.
#[cfg(test)]
pub(super) fn prefixes() -> impl Iterator<Item = &'static str> {
    opara_plan::kernel_catalog::ENTRIES.iter().map(|row| row.prefix).chain(own().iter().map(|(of, _)| of.prefix))
}
