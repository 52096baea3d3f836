//! Reads off the launches of a capture what they compute: candle's kernels by name and arguments, memsets and copies by what
//! they are. What calls of libraries compute was noted while they were made.

mod arguments;
mod kernels;

use hashbrown::HashMap;

use self::arguments::Arguments;
use super::driver::LaunchNode;
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
    // What does not lie in its buffers was misread.
    let buffers = &trace.buffers;
    let inside = |view: &View| view.end().is_some_and(|end| end <= buffers[view.buffer].bytes);
    for op in &mut trace.ops {
        op.meaning = op.meaning.take().filter(|meaning| meaning.views().all(inside));
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
        LaunchNode::Kernel(kernel) => Arguments::new(op, recorded, kernel, uploads)?.meaning(&op.name),
    }
}
