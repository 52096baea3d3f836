//! Launches without a meaning, as far as a pass shows what they do: they fill a buffer that is new, and read others.

use candle::DType;
use hashbrown::{HashMap, HashSet};
use opara_plan::rewrite::Opaque;

use super::capture::Capture;
use super::driver::{opaque_launch, HeldLaunch, KernelNode, LaunchNode};
use super::kernels::known;
use super::launches::CapturedLaunch;
use crate::trace::{AccessMode, BufferId, Element, Function, Op, OpId, Role};
use crate::Result;

/// The launches of a pass that have no meaning.
#[derive(Default)]
pub(super) struct OpaqueLaunches {
    pub known: HashMap<OpId, Opaque>,
    /// Who reads their numbers keeps these.
    pub held: Vec<HeldLaunch>,
    /// Why others are not known so far.
    pub refused: HashMap<OpId, &'static str>,
}

/// Launches without a meaning. Each of which it is known what it writes no longer counts as writing what it reads.
///
/// # Errors
/// A failed driver call.
pub(super) fn opaque_launches(captured: &mut Capture) -> Result<OpaqueLaunches> {
    let Capture { trace, launches, external, outputs, .. } = captured;
    let external: HashMap<BufferId, u64> = external.iter().map(|&(address, buffer)| (buffer, address)).collect();
    let mut found = OpaqueLaunches::default();
    let mut written: HashSet<BufferId> = HashSet::new();
    for (at, (op, recorded)) in trace.ops.iter_mut().zip(&launches.get_mut().of).enumerate() {
        if let (None, LaunchNode::Kernel(kernel), false) = (&op.meaning, &recorded.launch, recorded.is_of_a_library) {
            let is_new = |buffer: BufferId| {
                matches!(trace.buffers[buffer].role, Role::Intermediate | Role::Output(_)) && !written.contains(&buffer)
            };
            // What the catalogue knows of a kernel's effects stays so.
            let has_effects = known(&kernel.name, &kernel.arguments, &kernel.launch, kernel.code).is_some();
            match result_of(op, recorded, has_effects, is_new) {
                Ok(result) => match opaque(op, recorded, kernel, result, &external)? {
                    Some((mut opaque, held)) => {
                        found.held.push(held);
                        if let Role::Output(i) = trace.buffers[opaque.writes].role {
                            opaque.element = outputs.get(i).and_then(|output| element_of(output.dtype));
                        }
                        let accesses = op.accesses.iter_mut().enumerate();
                        accesses.filter(|_| !has_effects).for_each(|(at, access)| {
                            access.mode = if at == result { AccessMode::Write } else { AccessMode::Read };
                        });
                        found.known.insert(at, opaque);
                    }
                    None => drop(
                        found.refused.insert(at, "its blocks depend on each other, or it reads no tensor's memory"),
                    ),
                },
                Err(why) => drop(found.refused.insert(at, why)),
            }
        }
        // Zeros are new, too.
        let is_zeroing = op.meaning.as_ref().is_some_and(|meaning| meaning.function == Function::Zeros);
        let writes = op.accesses.iter().filter(|access| access.mode.writes() && !is_zeroing);
        written.extend(writes.map(|access| access.buffer));
    }
    Ok(found)
}

/// The access that is the result of a launch: the only one to a buffer that nothing has written before. If the kernel's effects are known, the
/// only one that writes, to such a buffer.
fn result_of(
    op: &Op,
    recorded: &CapturedLaunch,
    has_effects: bool,
    is_new: impl Fn(BufferId) -> bool,
) -> std::result::Result<usize, &'static str> {
    if recorded.words().len() != op.accesses.len() {
        return Err("which of its arguments are pointers is not known");
    }
    let may_be = |at: &usize| match has_effects {
        true => op.accesses[*at].mode.writes(),
        false => is_new(op.accesses[*at].buffer),
    };
    let results: Vec<usize> = (0..op.accesses.len()).filter(may_be).collect();
    match results[..] {
        [at] if op.accesses[at].mode.writes() && is_new(op.accesses[at].buffer) => Ok(at),
        [] | [_] => Err("it writes to a tensor that was written before: let it write to a new one"),
        _ if has_effects => Err("it writes to several tensors: let it write to one"),
        _ => Err("which of several new tensors is its result is not known: let it write to one"),
    }
}

/// A launch whose result is that of one of its accesses.
fn opaque(
    op: &Op,
    recorded: &CapturedLaunch,
    kernel: &KernelNode,
    result: usize,
    external: &HashMap<BufferId, u64>,
) -> Result<Option<(Opaque, HeldLaunch)>> {
    let words = recorded.words();
    let values: HashMap<usize, u64> = kernel.arguments.words().collect();
    // Bytes from a buffer's start.
    let delta = |at: usize| {
        let own = recorded.pointers.iter().find(|pointer| pointer.word == words[at]).map(|pointer| pointer.delta);
        let of_module = || values.get(&words[at])?.checked_sub(*external.get(&op.accesses[at].buffer)?);
        own.or_else(of_module)
    };
    let others = || (0..words.len()).filter(|at| *at != result);
    let reads = others().map(|at| Some((op.accesses[at].buffer, delta(at)?))).collect::<Option<Vec<_>>>();
    let (Some(reads), Some(0)) = (reads, delta(result)) else { return Ok(None) };
    let of_reads: Vec<usize> = others().map(|at| words[at]).collect();
    let number = opaque_launch(kernel, &of_reads, words[result])?;
    let writes = op.accesses[result].buffer;
    Ok(number.map(|(number, held)| (Opaque { number, reads, writes, element: None }, held)))
}

/// The type of elements of candle's.
fn element_of(dtype: DType) -> Option<Element> {
    Some(match dtype {
        DType::U8 => Element::U8,
        DType::U32 => Element::U32,
        DType::I64 => Element::I64,
        DType::F16 => Element::F16,
        DType::BF16 => Element::Bf16,
        DType::F32 => Element::F32,
        DType::F64 => Element::F64,
        _ => return None,
    })
}
