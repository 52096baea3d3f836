//! Reads off the launches of a capture what they compute: candle's kernels by name and arguments, memsets and copies by what
//! they are. What calls of libraries compute was noted while they were made.

mod arguments;
mod attention;
mod experts;
mod folded;
mod images;
mod kernels;
mod places;
mod quantized;
mod rows;
#[cfg(test)]
mod tests;

use hashbrown::HashMap;

use self::arguments::Arguments;
use self::folded::lift_folded_products;
use super::driver::LaunchNode;
use super::kernels::entry_of;
use super::launches::CapturedLaunch;
use crate::trace::{BufferId, Element, Function, Meaning, Op, OpId, Trace, View};
use opara_plan::kernel_catalog::KernelEntry;

/// Says of each op of the trace what it computes, where that is known.
pub(super) fn lift(trace: &mut Trace, launches: &[CapturedLaunch]) {
    let mut uploads: HashMap<BufferId, &[u8]> = HashMap::new();
    for (op, recorded) in trace.ops.iter_mut().zip(launches) {
        if op.meaning.is_none() {
            op.meaning = meaning(op, recorded, &uploads).map(Box::new);
        }
        // The last upload counts. Any other write makes the bytes unknown.
        for access in op.accesses.iter().filter(|access| access.mode.writes()) {
            uploads.remove(&access.buffer);
        }
        if let (LaunchNode::Memcpy(upload), [pointer]) = (&recorded.launch, &recorded.pointers[..]) {
            let bytes = upload.bytes_on_host().filter(|_| pointer.delta == 0);
            bytes.and_then(|bytes| uploads.insert(pointer.buffer, bytes));
        }
    }
    lift_products(trace, launches);
    lift_folded_products(trace);
    // What does not lie in its buffers was misread.
    let buffers = &trace.buffers;
    let inside = |view: &View| view.end().is_some_and(|end| end <= buffers[view.buffer].bytes);
    for op in &mut trace.ops {
        op.meaning = op.meaning.take().filter(|meaning| meaning.views().all(inside));
    }
}

/// Says of launches one after the other which product with a quantised weight they compute: the last one has the meaning. Between them
/// memory may be zeroed, for the result.
fn lift_products(trace: &mut Trace, launches: &[CapturedLaunch]) {
    let none = HashMap::new();
    let kernels = |ops: &[Op], at: usize| -> Option<(&'static KernelEntry, Arguments, String)> {
        let (op, recorded) = (ops.get(at)?, launches.get(at)?);
        let LaunchNode::Kernel(kernel) = &recorded.launch else { return None };
        let entry = entry_of(kernel).filter(|_| op.meaning.is_none() && !recorded.is_of_a_library)?;
        Some((entry, Arguments::new(op, recorded, kernel, &none)?, op.name.to_string()))
    };
    let is_zeroing = |op: &Op| op.meaning.as_ref().is_some_and(|meaning| meaning.function == Function::Zeros);
    let mut found: Vec<(Vec<OpId>, OpId, Meaning)> = Vec::new();
    for at in 0..trace.ops.len() {
        let Some((entry, arguments, name)) = kernels(&trace.ops, at) else { continue };
        let Some(rounded) = arguments.rounded(entry, &name) else { continue };
        let Some(next) = (at + 1..trace.ops.len()).find(|&next| !is_zeroing(&trace.ops[next])) else { continue };
        let Some((entry, arguments, name)) = kernels(&trace.ops, next) else { continue };
        let Some(product) = arguments.product_of(entry, &name, &rounded) else { continue };
        let rest = kernels(&trace.ops, next + 1).filter(|(entry, rest, _)| rest.completes(entry, &product));
        match rest {
            Some(_) => found.push((vec![at, next], next + 1, product.meaning)),
            None => found.push((vec![at], next, product.meaning)),
        }
    }
    for (parts, last, meaning) in found {
        trace.ops[last].meaning = Some(meaning.into());
        parts.into_iter().for_each(|op| trace.ops[op].meaning = Some(Meaning::part().into()));
    }
}

fn meaning(op: &Op, recorded: &CapturedLaunch, uploads: &HashMap<BufferId, &[u8]>) -> Option<Meaning> {
    let bytes_of = |at: usize| {
        let access = op.accesses.get(at)?;
        Some(View::contiguous(access.buffer, Element::Byte, access.region.start(), access.region.bytes()))
    };
    match &recorded.launch {
        LaunchNode::Memset(memset) if memset.value().0 == 0 => {
            Some(Meaning { function: Function::Zeros, reads: Vec::new(), writes: Some(bytes_of(0)?) })
        }
        LaunchNode::Memset(_) => None,
        LaunchNode::Memcpy(memcpy) if memcpy.source().is_none() => {
            Some(Meaning { function: Function::Upload, reads: Vec::new(), writes: Some(bytes_of(0)?) })
        }
        LaunchNode::Memcpy(_) if op.accesses.len() == 2 => {
            Some(Meaning { function: Function::Copy, reads: vec![bytes_of(0)?], writes: Some(bytes_of(1)?) })
        }
        LaunchNode::Memcpy(_) => None,
        LaunchNode::Kernel(_) if recorded.is_of_a_library => None,
        LaunchNode::Kernel(kernel) => {
            let entry = entry_of(kernel)?;
            Arguments::new(op, recorded, kernel, uploads)?.meaning(entry, &op.name)
        }
    }
}
