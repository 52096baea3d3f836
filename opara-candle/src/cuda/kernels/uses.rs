//! The accesses of a kernel through its parameters, from its PTX.
//!
//! An address in PTX is a pointer parameter plus offsets. Data flow through sums and moves shows which parameters each load and store
//! goes through.

use std::collections::{BTreeMap, BTreeSet};

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

    /// Whether it copies from global to shared memory, `cp.async.cg.shared.global [%r1], [%rd1], 16, %r2`, or a box of a matrix.
    fn is_copy(&self) -> bool {
        self.is_copy_of_box()
            || matches!(self.operation.as_slice(), ["cp", "async", "ca" | "cg", "shared", "global", ..])
    }

    /// Whether it is `cp.async.bulk.tensor.2d.shared::cluster.global... [%r1], [%rd1, {%r2, %r3}], [%r4]`. `%rd1` leads to the matrix.
    fn is_copy_of_box(&self) -> bool {
        matches!(self.operation.as_slice(), ["cp", "async", "bulk", "tensor", _, "shared::cluster", "global", ..])
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

    /// Bytes of one element, and how many are accessed at once. The element type is the last part of the operation. Copies say how
    /// many bytes.
    fn element(&self) -> Result<(u64, u64), String> {
        // Boxes begin at multiples of 16 bytes, as rows of the matrix do.
        if self.is_copy_of_box() {
            return Ok((16, 1));
        }
        if self.is_copy() {
            let bytes = self.operands.get(2).and_then(|bytes| bytes.parse().ok());
            return Ok((bytes.ok_or("a copy has no size")?, 1));
        }
        let count = self.operation.iter().find_map(|part| part.strip_prefix('v')?.parse().ok()).unwrap_or(1);
        let bits = self.operation.last().map(|element| element.trim_start_matches(char::is_alphabetic).parse::<u64>());
        Ok((bits.and_then(Result::ok).ok_or("an operation has no element type")? / 8, count))
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
    // A table among the parameters is loaded from by its address.
    let place = operand.trim_start_matches('[').split(['+', ']']).next().unwrap_or_default();
    let parameter = || place.rsplit_once("_param_")?.1.parse().ok();
    match operand {
        _ if registers.contains_key(place) => registers[place].clone(),
        _ if place.contains("_param_") => parameter().map(Some).into_iter().collect(),
        _ if operand.starts_with("__cudart_") => [None].into(),
        _ => Origins::new(),
    }
}

/// The accesses through a parameter, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Access {
    /// Of the smallest element.
    pub element: u64,
    /// At once, at least and at most.
    pub least: u64,
    pub most: u64,
}

/// The memory accesses of a kernel through its parameters.
#[derive(Default)]
pub(super) struct Uses {
    /// Parameters that are stored to.
    pub stored: BTreeMap<usize, Access>,
    /// Parameters that are loaded from.
    pub loaded: BTreeMap<usize, Access>,
    /// Parameters that are compared with null.
    pub tested: BTreeSet<usize>,
}

/// Notes an access of so many elements of `element` bytes.
fn note(uses: &mut BTreeMap<usize, Access>, parameters: impl IntoIterator<Item = usize>, (element, count): (u64, u64)) {
    let bytes = element * count;
    for parameter in parameters {
        let access = uses.entry(parameter).or_insert(Access { element, least: bytes, most: bytes });
        access.element = access.element.min(element);
        (access.least, access.most) = (access.least.min(bytes), access.most.max(bytes));
    }
}

/// Analyses a kernel's code.
///
/// # Errors
/// Code that the analysis does not follow.
pub(super) fn uses(code: &str) -> Result<Uses, String> {
    let code = instructions(code);
    let registers = origins(&code);
    let parameters = |operand: &str| origin(operand, &registers).into_iter().flatten().collect::<Vec<usize>>();
    let mut uses = Uses::default();
    let mut lost = BTreeSet::new();
    // Bits of an address that is looked at for its alignment.
    let masked = code.iter().filter(|instruction| instruction.operation[0] == "and");
    let masked: BTreeSet<_> = masked.filter_map(|instruction| instruction.operands.first()).collect();
    for instruction in &code {
        let is_test = instruction.operation[0] == "setp";
        let values = instruction.sources().0.iter().filter(|source| !source.starts_with('['));
        let values = values.filter(|source| !(is_test && masked.contains(source)));
        let values = values.flat_map(|value| parameters(value));
        match instruction.operation.as_slice() {
            ["setp", ..] if instruction.operands.last() == Some(&"0") => uses.tested.extend(values),
            ["setp", ..] => {}
            // A called function may write to a pointer that it gets.
            ["st", "param", ..] => note(&mut uses.stored, values, (1, 1)),
            _ => lost.extend(values),
        }
        let Some(address) = instruction.address() else { continue };
        if origin(address, &registers).is_empty() {
            return Err(format!("`{address}` does not come from a parameter"));
        }
        if instruction.stores() {
            note(&mut uses.stored, parameters(address), instruction.element()?);
        }
        if instruction.loads() {
            note(&mut uses.loaded, parameters(address), instruction.element()?);
        }
    }
    match uses.stored.keys().chain(uses.loaded.keys()).find(|pointer| lost.contains(pointer)) {
        Some(pointer) => Err(format!("pointer {pointer} goes into an unknown operation")),
        None => Ok(uses),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            mov.b64 %rd13, k_param_5;       // a table
            add.s64 %rd14, %rd13, %rd7;
            ld.param.u64 %rd15, [%rd14];
            st.global.f32 [%rd15], %f2;
            mov.b64 %rd16, k_param_6;       // a matrix
            cvta.param.u64 %rd17, %rd16;
            cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%rd17, {%r5, %r6}], [%r7];
        }";
        let uses = uses(code).expect("the analysis succeeds");
        let access = |element, count| Access { element, least: element * count, most: element * count };
        let loaded = [(0, access(8, 2)), (1, access(8, 2)), (2, access(2, 1)), (4, access(16, 1)), (6, access(16, 1))];
        assert_eq!((uses.loaded, uses.stored), (loaded.into(), [(2, access(2, 1)), (5, access(4, 1))].into()));
        assert_eq!(uses.tested, [0].into());
    }
}
