//! Checks statements about kernels against their PTX before they are used: the table of candle's effects, and this library's declarations.

use super::effects::{element_size, read_element, written_element};
use super::ptx::Entry;
use super::uses::{uses, Access, Uses};
use crate::cuda::driver::kernels::declared::{Declared, Loads, Pointer, Role, Shape};
use crate::cuda::driver::kernels::matrix::Matrix;
use opara_plan::kernel_catalog::{Before, Effects, Extent, Factor};

fn ensure(holds: bool, reason: impl FnOnce() -> String) -> Result<(), String> {
    if holds {
        Ok(())
    } else {
        Err(reason())
    }
}

/// Does a kernel of candle's do what the table says?
///
/// # Errors
/// The first difference.
pub(super) fn holds(kernel: &Entry, effects: &Effects) -> Result<(), String> {
    let Entry { name, parameters, code, .. } = *kernel;
    let Uses { stored, loaded, tested } = uses(code)?;
    let element = written_element(effects, name).ok_or("its name has no element type")?;
    let sizes: Vec<_> = stored.iter().map(|(argument, access)| (*argument, access.element)).collect();
    ensure(sizes == [(effects.output, element)], || format!("it writes {sizes:?}: argument, bytes of an element"))?;
    for input in effects.inputs {
        let read = loaded.get(input).map(|access| access.element);
        ensure(read == read_element(effects, name), || {
            format!("it reads elements of {read:?} bytes of input {input}")
        })?;
    }
    let loads = loaded.contains_key(&effects.output);
    match effects.before {
        Before::ReadBack | Before::AddedTo => ensure(loads, || "its output is not read".into())?,
        Before::Overwritten | Before::PartlyKept | Before::KeptBetween(_) => {
            ensure(!loads, || "its output is read".into())?;
        }
        Before::InPlaceOf(_) => {}
    }
    let nullable = match effects.before {
        Before::InPlaceOf(argument) | Before::KeptBetween(argument) => Some(argument),
        _ => None,
    };
    for argument in nullable.into_iter().chain(effects.strides) {
        ensure(tested.contains(&argument), || format!("argument {argument} is not tested for null"))?;
    }
    let Extent::Elements(factors) = effects.extent else { return Ok(()) };
    for factor in factors {
        let Factor::Argument(count) = *factor else { continue };
        let is_number = count < parameters && !loaded.contains_key(&count);
        ensure(is_number, || format!("argument {count} is not a plain number"))?;
    }
    Ok(())
}

/// Does a kernel of this library do what its declaration says?
///
/// # Errors
/// The differences.
pub(super) fn agrees(kernel: &Entry, declared: &Declared) -> Result<(), String> {
    let shapes = declared.shapes();
    let width = |shape: &Shape| match shape {
        Shape::Number { bytes, .. } => *bytes,
        Shape::Table { count, .. } => 8 * count,
        Shape::Matrix { .. } => size_of::<Matrix>(),
        Shape::Pointer { .. } | Shape::Part { .. } => 8,
    };
    let (widths, of_code) = (shapes.iter().map(width).collect::<Vec<_>>(), kernel.widths());
    ensure(widths == of_code, || format!("its parameters have {of_code:?} bytes, and not {widths:?}"))?;
    let early = kernel.before_wait();
    let (all, early) = (uses(kernel.code)?, early.as_deref().map(uses).transpose()?);
    let mut differences = Vec::new();
    for (at, shape) in shapes.iter().enumerate() {
        let (stored, loaded) = (all.stored.get(&at), all.loaded.get(&at));
        let (parameter, pointer) = match *shape {
            Shape::Number { parameter, .. } => (parameter, None),
            Shape::Part { parameter } => (parameter, Some((Role::Guarded, kernel.element()))),
            Shape::Pointer { parameter, pointer }
            | Shape::Matrix { parameter, pointer }
            | Shape::Table { parameter, of: Some(pointer), .. } => {
                (parameter, Some((pointer.role, element(kernel, &pointer))))
            }
            Shape::Table { parameter, of: None, .. } => (parameter, None),
        };
        let mut hold = |holds: bool, difference: &str| {
            if !holds {
                differences.push(format!("`{}` {difference}", parameter.name));
            }
        };
        let Some((role, element)) = pointer else {
            hold(stored.or(loaded).is_none(), "is a number");
            continue;
        };
        hold(stored.is_some() == role.is_written(), "is written, or is not");
        hold(loaded.is_none() || !matches!(role, Role::Overwritten | Role::Kept), "is read");
        hold(loaded.is_some() || !matches!(role, Role::Read | Role::Added), "is not read");
        let is_tested = role == Role::Optional || parameter.is_tested;
        let is_read = loaded.is_some() && !matches!(role, Role::Guarded | Role::Cache);
        hold(!is_read || is_tested == all.tested.contains(&at), "is tested for null, or is not");
        if let Some(early) = &early {
            hold(!early.stored.contains_key(&at), "is written before the kernel waits");
            let is_early = early.loaded.contains_key(&at);
            hold(loaded.is_none() || is_early == parameter.is_early, "is read before the kernel waits, or is not");
        }
        let fits = |access: &Access| element.is_none_or(|element| access.least.is_multiple_of(element));
        hold(stored.into_iter().chain(loaded).all(fits), "has elements of another size");
        let is_one = |access: &Access| element.is_none_or(|element| access.most <= element);
        let is_one_of_many = matches!(shape, Shape::Part { .. } | Shape::Table { .. });
        let may_be_vectors = parameter.loads != Loads::Elements || role.is_written() || is_one_of_many;
        hold(may_be_vectors || loaded.is_none_or(is_one), "is loaded by vectors");
    }
    ensure(differences.is_empty(), || differences.join(", "))
}

/// Bytes of an element that a pointer points to, if its type is a number's or the last one in the kernel's name.
fn element(kernel: &Entry, pointer: &Pointer) -> Option<u64> {
    match pointer.element {
        "T" => kernel.element(),
        name => element_size(name),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::ptx;
    use super::super::table::{declared, effects_of, prefixes};
    use super::*;
    use crate::cuda::driver::kernels::capabilities::tests::of_build;
    use crate::cuda::driver::kernels::declared::Need;
    use crate::ops::DECLARED;
    use opara_plan::kernel_catalog::{Family, Kernel, KernelEntry};

    #[test]
    fn table_and_declarations_agree_with_the_code_of_every_kernel() {
        let mut unused: BTreeSet<&str> = prefixes().collect();
        let mut differ = Vec::new();
        for kernel in ptx::entries() {
            let name = kernel.name;
            let effects = effects_of(name).unwrap_or_else(|| panic!("{name} is not in the table"));
            let row = || KernelEntry::of(name).map(|row| row.prefix);
            unused.remove(declared(name).map(|(known, _)| known.prefix).or_else(row).unwrap_or_default());
            let proof = declared(name).map_or_else(|| holds(&kernel, effects), |(known, _)| agrees(&kernel, known));
            differ.extend(proof.err().map(|difference| format!("{name}: {difference}")));
        }
        assert!(differ.is_empty(), "{}", differ.join("\n"));
        assert!(unused.is_empty(), "entries without a kernel: {unused:?}");
    }

    #[test]
    fn every_aligned_operand_is_loaded_by_vectors() {
        for kernel in DECLARED.iter().copied().flatten() {
            let is_variant = |entry: &Entry| declared(entry.name).is_some_and(|(of, _)| of.prefix == kernel.prefix);
            let variants: Vec<_> = ptx::entries().filter(is_variant).collect();
            let uses: Vec<_> = variants.iter().map(|entry| uses(entry.code).expect("the analysis succeeds")).collect();
            for (at, shape) in kernel.shapes().iter().enumerate() {
                let Shape::Pointer { parameter, pointer } = shape else { continue };
                let are_vectors = variants.iter().zip(&uses).any(|(entry, uses)| {
                    let access = uses.loaded.get(&at).or(uses.stored.get(&at));
                    access.is_some_and(|access| element(entry, pointer).is_some_and(|one| access.most > one))
                });
                let is_aligned = parameter.loads != Loads::Elements;
                assert!(
                    pointer.role.is_written() || are_vectors == is_aligned,
                    "{}: `{}`",
                    kernel.prefix,
                    parameter.name
                );
            }
        }
    }

    #[test]
    fn variants_have_the_declared_types_and_needs() {
        for kernel in DECLARED.iter().copied().flatten() {
            let is_variant = |entry: &Entry| declared(entry.name).is_some_and(|(of, _)| of.prefix == kernel.prefix);
            let variants: Vec<_> = ptx::entries().filter(is_variant).collect();
            if variants.is_empty() {
                assert!(!kernel.needs.is_empty(), "{} has no variant", kernel.prefix);
                continue;
            }
            let last = |entry: &Entry| entry.name.rsplit('_').next().unwrap_or_default();
            let types: BTreeSet<&str> = variants.iter().map(last).collect();
            assert_eq!(types, kernel.elements.iter().copied().collect(), "{}", kernel.prefix);
            for (need, instruction) in [
                (Need::TensorCores, "mma.sync"),
                (Need::Warpgroups, "wgmma."),
                (Need::Boxes, "cp.async.bulk.tensor."),
                (Need::EightBitFloats, "e4m3x2"),
            ] {
                // Code for older devices lacks the instruction.
                let is_compiled = variants.iter().all(|entry| need.is_met(&of_build(entry.module)));
                let is_used = variants.iter().any(|entry| entry.code.contains(instruction));
                assert_eq!(is_used, is_compiled && kernel.needs.contains(&need), "{}: {need:?}", kernel.prefix);
            }
        }
    }

    #[test]
    fn names_say_what_kernels_do() {
        let family = |kernel: &Declared| Kernel::of(&format!("{}f32", kernel.prefix)).family;
        let others = DECLARED.iter().copied().flatten().filter(|kernel| family(kernel) == Family::Other);
        let others: Vec<_> = others.map(|kernel| kernel.prefix).collect();
        assert_eq!(others, ["opara_dequantize_", "opara_sample_", "opara_upsample_"]);
    }

    #[test]
    fn a_kernel_that_differs_from_the_table_is_rejected() {
        let kernel = ptx::entries().find(|kernel| kernel.name == "urelu_f32").expect("candle ships it");
        let effects = effects_of(kernel.name).expect("it is in the table");
        let elsewhere = effects_of("fill_f32").expect("it is in the table");
        assert_eq!(holds(&kernel, effects), Ok(()));
        assert!(holds(&kernel, elsewhere).is_err());
    }
}
