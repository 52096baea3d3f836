//! Reads off the launches of a capture what they compute: candle's kernels by name and arguments, memsets and copies by what
//! they are. What calls of libraries compute was noted while they were made.

mod arguments;
mod kernels;
mod places;
mod quantized;

use hashbrown::HashMap;

use self::arguments::Arguments;
use super::driver::LaunchNode;
use super::kernels::is_known;
use super::launches::CapturedLaunch;
use crate::trace::{BufferId, Element, Function, Meaning, Op, Trace, View};

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
    // What does not lie in its buffers was misread.
    let buffers = &trace.buffers;
    let inside = |view: &View| view.end().is_some_and(|end| end <= buffers[view.buffer].bytes);
    for op in &mut trace.ops {
        op.meaning = op.meaning.take().filter(|meaning| meaning.views().all(inside));
    }
}

/// Says of launches one after the other which product with a quantised weight they compute: the last one has the meaning.
fn lift_products(trace: &mut Trace, launches: &[CapturedLaunch]) {
    let none = HashMap::new();
    let kernels = |ops: &[Op], at: usize| -> Option<(Arguments, String)> {
        let (op, recorded) = (ops.get(at)?, launches.get(at)?);
        let LaunchNode::Kernel(kernel) = &recorded.launch else { return None };
        let is_asked = op.meaning.is_none() && !recorded.is_of_a_library;
        let arguments = Arguments::of_parts(op, recorded, kernel, &none).filter(|_| is_asked)?;
        Some((arguments, op.name.to_string()))
    };
    let mut found = Vec::new();
    for at in 1..trace.ops.len() {
        let Some((before, name)) = kernels(&trace.ops, at - 1) else { continue };
        let Some(rounded) = before.rounded(&name) else { continue };
        let Some((product, name)) = kernels(&trace.ops, at) else { continue };
        if let Some(meaning) = product.product_of_few(&name, &rounded) {
            found.push((at - 1..at, meaning));
        } else if let Some(of) = product.product_of_many(&name, &rounded) {
            let next = kernels(&trace.ops, at + 1).filter(|(next, name)| next.completes(name, &of));
            found.push((at - 1..at + usize::from(next.is_some()), of.meaning));
        }
    }
    for (parts, meaning) in found {
        trace.ops[parts.end].meaning = Some(meaning.into());
        trace.ops[parts].iter_mut().for_each(|op| op.meaning = Some(Meaning::part().into()));
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
        LaunchNode::Kernel(kernel) => match Arguments::new(op, recorded, kernel, uploads) {
            Some(arguments) => arguments.meaning(&op.name),
            // Kernels that add to what they are given are known, too.
            None if is_known(kernel) => Arguments::of_parts(op, recorded, kernel, uploads)?.added(&op.name),
            None => None,
        },
    }
}
