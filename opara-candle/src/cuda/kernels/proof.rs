//! Checks the table of effects against a kernel's PTX before the table is used.
//!
//! An address in PTX is a pointer parameter plus offsets. Data flow through sums and moves shows which parameters each
//! load and store goes through; the table must say the same.

use std::collections::{BTreeMap, BTreeSet};

use super::ptx::Entry;
use crate::cuda::operator::effects::{Before, Effects, Extent, Factor};

/// The parameters that a register's value is computed from, by index; `None` is a table of constants.
type Origins = BTreeSet<Option<usize>>;

/// `@%p1 st.global.f32 [%rd1+4], %f1`: the operation's parts and the operands.
struct Instruction<'a> {
    operation: Vec<&'a str>,
    operands: Vec<&'a str>,
}

impl<'a> Instruction<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let text = text.trim_matches(|c: char| c.is_whitespace() || "{}".contains(c));
        let text = if text.starts_with('@') { text.split_once(char::is_whitespace)?.1.trim() } else { text };
        let (operation, operands) = text.split_once(char::is_whitespace)?;
        let is_directive = operation.starts_with('.');
        (!is_directive).then(|| Self {
            operation: operation.split('.').collect(),
            operands: operands.split([',', '|', '{', '}']).map(str::trim).filter(|o| !o.is_empty()).collect(),
        })
    }

    /// The address register of a global memory access. A load or store without a state space counts as global.
    fn address(&self) -> Option<&'a str> {
        let elsewhere =
            self.operation.iter().any(|part| matches!(*part, "param" | "shared" | "shared::cluster" | "local"));
        let accesses = ["ld", "st", "atom", "red"].contains(&self.operation[0]);
        let mut brackets = self.operands.iter().filter_map(|operand| operand.strip_prefix('['));
        let bracket = match self.is_copy() {
            true => brackets.nth(1),
            false => brackets.next().filter(|_| accesses && !elsewhere),
        };
        bracket?.split(['+', ']']).next()
    }

    /// Whether it copies from global to shared memory, `cp.async.cg.shared.global [%r1], [%rd1], 16, %r2`.
    fn is_copy(&self) -> bool {
        matches!(self.operation.as_slice(), ["cp", "async", "ca" | "cg", "shared", "global", ..])
    }

    fn loads(&self) -> bool {
        self.operation[0] != "st"
    }

    fn stores(&self) -> bool {
        self.operation[0] != "ld" && !self.is_copy()
    }

    /// Splits the source operands in two: operands that carry no address into the result, such as factors and shifts
    /// (they make offsets), and operands that do.
    fn sources(&self) -> (&[&'a str], &[&'a str]) {
        let sources = self.operands.get(1..).unwrap_or_default();
        sources.split_at(match self.operation.as_slice() {
            ["ld", "param", "u64"] | ["add" | "sub" | "and" | "or" | "mov" | "selp" | "cvta", ..] => 0,
            ["mad", ..] => 2,
            _ => sources.len(),
        })
    }

    /// Bytes of one element; the element type is the last part of the operation. Copies are of 16 bytes.
    fn element(&self) -> Result<u64, String> {
        if self.is_copy() {
            return Ok(16);
        }
        let bits = self.operation.last().map(|element| element.trim_start_matches(char::is_alphabetic).parse::<u64>());
        Ok(bits.and_then(Result::ok).ok_or("an operation has no element type")? / 8)
    }
}

fn instructions(code: &str) -> Vec<Instruction<'_>> {
    // Device functions may lie between two kernels.
    let code = code.split(".func").next().unwrap_or_default();
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.flat_map(|line| line.split(';')).filter_map(Instruction::parse).collect()
}

/// The origins of all registers: a fixed point over the code in any order, since one register may be set in several
/// places.
fn origins<'a>(code: &[Instruction<'a>]) -> BTreeMap<&'a str, Origins> {
    let mut origins: BTreeMap<&str, Origins> = BTreeMap::new();
    loop {
        let before: usize = origins.values().map(BTreeSet::len).sum();
        for instruction in code {
            let found: Origins = instruction.sources().1.iter().flat_map(|source| origin(source, &origins)).collect();
            if !found.is_empty() {
                origins.entry(instruction.operands[0]).or_default().extend(found);
            }
        }
        if before == origins.values().map(BTreeSet::len).sum::<usize>() {
            return origins;
        }
    }
}

/// The origins of one operand.
fn origin(operand: &str, registers: &BTreeMap<&str, Origins>) -> Origins {
    let parameter = || operand.strip_prefix('[')?.strip_suffix(']')?.rsplit_once("_param_")?.1.parse().ok();
    match operand {
        _ if registers.contains_key(operand) => registers[operand].clone(),
        _ if operand.starts_with('[') => parameter().map(Some).into_iter().collect(),
        _ if operand.starts_with("__cudart_") => [None].into(),
        _ => Origins::new(),
    }
}

/// The memory accesses of a kernel through its parameters.
#[derive(Default)]
struct Uses {
    /// Parameters that are stored to, with the smallest element size in bytes.
    stored: BTreeMap<usize, u64>,
    /// Parameters that are loaded from, with the smallest element size in bytes.
    loaded: BTreeMap<usize, u64>,
    /// Parameters that are compared with null.
    tested: BTreeSet<usize>,
}

/// Notes an access of elements of `element` bytes.
fn note(uses: &mut BTreeMap<usize, u64>, parameters: impl IntoIterator<Item = usize>, element: u64) {
    for parameter in parameters {
        let smallest = uses.entry(parameter).or_insert(element);
        *smallest = element.min(*smallest);
    }
}

/// Analyses a kernel's code.
fn uses(code: &str) -> Result<Uses, String> {
    let code = instructions(code);
    let registers = origins(&code);
    let parameters = |operand: &str| origin(operand, &registers).into_iter().flatten().collect::<Vec<usize>>();
    let mut uses = Uses::default();
    let mut lost = BTreeSet::new();
    for instruction in &code {
        let values = instruction.sources().0.iter().filter(|source| !source.starts_with('['));
        let values = values.flat_map(|value| parameters(value));
        match instruction.operation.as_slice() {
            ["setp", ..] if instruction.operands.last() == Some(&"0") => uses.tested.extend(values),
            ["setp", ..] => {}
            // A called function may write to a pointer that it gets.
            ["st", "param", ..] => note(&mut uses.stored, values, 1),
            _ => lost.extend(values),
        }
        let Some(address) = instruction.address() else { continue };
        ensure(!origin(address, &registers).is_empty(), || format!("`{address}` does not come from a parameter"))?;
        if instruction.stores() {
            note(&mut uses.stored, parameters(address), instruction.element()?);
        }
        if instruction.loads() {
            note(&mut uses.loaded, parameters(address), instruction.element()?);
        }
    }
    let pointers = || uses.stored.keys().chain(uses.loaded.keys());
    ensure(pointers().all(|pointer| !lost.contains(pointer)), || "a pointer goes into an unknown operation".into())?;
    Ok(uses)
}

fn ensure(holds: bool, reason: impl FnOnce() -> String) -> Result<(), String> {
    if holds {
        Ok(())
    } else {
        Err(reason())
    }
}

/// Does a kernel do what the table says?
///
/// # Errors
/// The first difference.
pub(super) fn holds(kernel: &Entry, effects: &Effects) -> Result<(), String> {
    let Entry { name, parameters, code, .. } = *kernel;
    let uses_before_wait = kernel.before_wait().map(uses).transpose()?;
    if let Some(Uses { stored, loaded, .. }) = uses_before_wait {
        let early = stored.is_empty() && loaded.keys().all(|argument| effects.early.contains(argument));
        ensure(early, || format!("it reads {loaded:?} and writes {stored:?} before it waits"))?;
    }
    let uses = uses(code)?;
    let element = effects.written_element(name).ok_or("its name has no element type")?;
    let (mut stored, mut loaded) = (uses.stored, uses.loaded);
    let of_neighbours = [
        "_nhwc",
        "_cat_sums_",
        "_attention_",
        "_new_tokens_",
        "_norm_short_",
        "_group_",
        "_product_",
        "_convolution_",
        "_gemv_",
        "_dequantize_",
    ];
    if of_neighbours.iter().any(|part| name.contains(part)) {
        // Its threads take several neighbours, which the compiler loads and stores together.
        let sizes = stored.values_mut().chain(loaded.values_mut());
        sizes.filter(|size| **size % element == 0).for_each(|size| *size = element);
    }
    let written = effects.updated.into_iter().chain([effects.output]).map(|argument| (argument, element));
    ensure(stored == written.collect(), || format!("it writes {stored:?}: argument, bytes of an element"))?;
    for input in effects.inputs {
        let read = loaded.get(input).copied();
        ensure(read == effects.read_element(name), || format!("it reads elements of {read:?} bytes of input {input}"))?;
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
        ensure(uses.tested.contains(&argument), || format!("argument {argument} is not tested for null"))?;
    }
    let Extent::Elements(factors) = effects.extent else { return Ok(()) };
    for factor in factors {
        let Factor::Argument(count) = *factor else { continue };
        let is_number = count < parameters && !loaded.contains_key(&count);
        ensure(is_number, || format!("argument {count} is not a plain number"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::ptx;
    use super::super::table::{all, effects_of};
    use super::*;
    use opara_plan::kernel_catalog::ENTRIES;

    #[test]
    fn the_table_agrees_with_the_code_of_every_kernel() {
        let mut unused: BTreeSet<&str> = all().map(|effects| effects.name).collect();
        for kernel in ptx::entries() {
            let name = kernel.name;
            let effects = effects_of(name).unwrap_or_else(|| panic!("{name} is not in the table"));
            unused.remove(effects.name);
            assert_eq!(holds(&kernel, effects), Ok(()), "{name}");
        }
        assert!(unused.is_empty(), "entries without a kernel: {unused:?}");
    }

    #[test]
    fn every_row_of_the_catalogue_has_effects() {
        for row in ENTRIES.iter().filter(|row| row.prefix != "opara_chain") {
            assert!(all().any(|effects| effects.name == row.effects), "{row:?}");
        }
    }

    #[test]
    fn a_kernel_that_differs_from_the_table_is_rejected() {
        let kernel = ptx::entries().find(|kernel| kernel.name == "urelu_f32").expect("candle ships it");
        let effects = effects_of(kernel.name).expect("it is in the table");
        let elsewhere = effects_of("fill_f32").expect("it is in the table");
        assert_eq!(holds(&kernel, effects), Ok(()));
        assert!(holds(&kernel, elsewhere).is_err());
    }

    /// Tests the analysis itself, with one address of each kind.
    #[test]
    fn pointer_origins_are_tracked_through_arithmetic() {
        let code = "{
            ld.param.u64 %rd1, [k_param_0];
            ld.param.u64 %rd2, [k_param_1];
            ld.param.u64 %rd3, [k_param_2];
            ld.param.u64 %rd4, [k_param_3];
            cvta.to.global.u64 %rd5, %rd1;   // of %rd2: nothing
            setp.eq.s64 %p1, %rd1, 0;
            selp.b64 %rd6, %rd2, %rd5, %p1;
            mul.wide.u32 %rd7, %r1, 4;
            add.s64 %rd8, %rd6, %rd7;
            @%p1 ld.global.nc.v2.u64 {%rd9, %rd10}, [%rd8+16];
            ld.param.u64 %rd12, [k_param_4];
            cp.async.cg.shared.global [%r2], [%rd12], 16, %r3;
            mad.lo.s64 %rd11, %rd4, %rd9, %rd3;
            { atom.add.noftz.f16 %rs1,[%rd11],%rs2; }
        }";
        let uses = uses(code).expect("the analysis succeeds");
        assert_eq!(uses.loaded, [(0, 8), (1, 8), (2, 2), (4, 16)].into());
        assert_eq!(uses.stored, [(2, 2)].into());
        assert_eq!(uses.tested, [0].into());
    }
}
