//! The CUDA tracer: captures one forward pass, which is then read back as a trace.

use std::sync::Arc;

use candle::{Device, Tensor};
use parking_lot::Mutex;

use super::driver::kernels::module::Kernels;
use super::driver::{
    address_of, bytes_of, position, Broken, Captured, Launch, MemcpyNode, MemsetNode, Pointer, Stream,
};
use super::read::read;
use crate::backend::Function;
use crate::trace::{scope, Op, OpId, Trace};
use crate::{Error, Result};

/// A captured forward pass.
pub(super) struct Capture {
    pub trace: Trace,
    pub launches: Mutex<Launches>,
    /// First byte of each allocation from before the pass that it uses.
    pub external: Vec<u64>,
    /// First byte and size of those that it writes to.
    pub written: Vec<(u64, u64)>,
    /// Shapes and dtypes of the outputs.
    pub outputs: Vec<OutputSpec>,
}

impl Capture {
    /// Holds this capture against an earlier one of the same module, which is still there: so every buffer is elsewhere
    /// now. What only looked like a pointer is none from now on, if they agree.
    ///
    /// # Returns
    /// The first launch, if there is one, that differs in nothing but what a library's kernel is given. Bytes there may mean
    /// nothing and look like a pointer to a weight now and then: a further capture tells.
    ///
    /// # Errors
    /// [`Error::Unstable`] if they do not launch the same.
    pub fn confirm(&mut self, earlier: &Capture) -> Result<Option<OpId>> {
        if earlier.outputs.len() != self.outputs.len() {
            let (a, b) = (earlier.outputs.len(), self.outputs.len());
            let reason = format!("it returned {a} tensors at one call and {b} at the next");
            return Err(Error::stateful(reason));
        }
        let (a, b) = (&earlier.trace.ops, &self.trace.ops);
        for at in 0..a.len().max(b.len()) {
            let same = matches!((a.get(at), b.get(at)), (Some(a), Some(b)) if a.name == b.name && a.work == b.work);
            if !same {
                let name = |ops: &[Op]| ops.get(at).map_or("nothing".into(), |op| op.name.clone());
                return Err(Error::Unstable { at, first: name(a), second: name(b) });
            }
        }
        let mut suspect = None;
        let mut pointers = Vec::with_capacity(self.trace.ops.len());
        let (launches, earlier_launches) = (self.launches.get_mut(), earlier.launches.lock());
        for (at, (now, before)) in launches.of.iter().zip(&earlier_launches.of).enumerate() {
            let buffers = (&self.trace.buffers, &earlier.trace.buffers);
            let same = |p: &Pointer, q: &Pointer| {
                (p.word, p.delta, buffers.0[p.buffer]) == (q.word, q.delta, buffers.1[q.buffer])
            };
            // A number that looked like a pointer once does not look like one into the same buffer again.
            let kept = now.pointers.iter().filter(|p| before.pointers.iter().any(|q| same(p, q)));
            let kept: Vec<Pointer> = kept.copied().collect();
            let moved: Vec<usize> = kept.iter().map(|p| p.word).collect();
            if !now.repeats(before, &moved) {
                if !now.is_of_a_library {
                    return Err(self.unstable(at));
                }
                suspect = suspect.or(Some(at));
            }
            pointers.push(kept);
        }
        if suspect.is_none() {
            launches.of.iter_mut().zip(pointers).for_each(|(launch, pointers)| launch.pointers = pointers);
        }
        Ok(suspect)
    }

    /// The error that a launch is given other values at each call.
    pub fn unstable(&self, at: OpId) -> Error {
        let name = |what: &str| format!("{} {what}", self.trace.ops[at].name);
        Error::Unstable { at, first: name("as before"), second: name("on other values") }
    }
}

/// What ops launch.
pub(super) struct Launches {
    /// One entry an op.
    pub of: Vec<Recorded>,
    /// Own the nodes that attributes are copied from.
    pub graphs: Vec<Captured>,
    /// What some of them launch.
    pub kernels: Vec<Kernels>,
}

/// What an op launches.
pub(super) struct Recorded {
    pub launch: Launch,
    /// Pointers in it to buffers that may move.
    pub pointers: Vec<Pointer>,
    /// Places of pointers to memory that stays where it is.
    pub fixed: Vec<usize>,
    /// Whether a library launched it: its arguments may hold bytes that mean nothing.
    pub is_of_a_library: bool,
}

impl Recorded {
    /// A launch of this library's own.
    pub fn new(launch: Launch, pointers: Vec<Pointer>) -> Self {
        Self { launch, pointers, fixed: Vec::new(), is_of_a_library: false }
    }

    /// Places of all pointers, in order.
    pub fn words(&self) -> Vec<usize> {
        let mut words: Vec<usize> = self.pointers.iter().map(|p| p.word).chain(self.fixed.iter().copied()).collect();
        words.sort_unstable();
        words
    }

    /// Whether this launch does the same as one of an earlier capture, with buffers elsewhere. `moved` are the places of
    /// pointers to those.
    fn repeats(&self, earlier: &Recorded, moved: &[usize]) -> bool {
        match (&self.launch, &earlier.launch) {
            (Launch::Kernel(now), Launch::Kernel(before)) => {
                let compared =
                    |word: &usize| if self.is_of_a_library { self.fixed.contains(word) } else { !moved.contains(word) };
                let words = now.arguments.words().zip(before.arguments.words());
                self.fixed == earlier.fixed
                    && words.filter(|((word, _), _)| compared(word)).all(|((_, a), (_, b))| a == b)
            }
            (Launch::Memset(now), Launch::Memset(before)) => {
                let target = |m: &MemsetNode| self.fixed.contains(&0).then(|| m.address());
                now.value() == before.value() && target(now) == target(before)
            }
            (Launch::Memcpy(now), Launch::Memcpy(before)) => {
                let source = |m: &MemcpyNode| m.source().filter(|_| self.fixed.contains(&0));
                let target = |m: &MemcpyNode| self.fixed.contains(&1).then(|| m.target());
                now.bytes_on_host() == before.bytes_on_host()
                    && (source(now), target(now)) == (source(before), target(before))
            }
            _ => false,
        }
    }
}

/// One output of the captured pass.
pub(super) struct OutputSpec {
    pub shape: candle::Shape,
    pub dtype: candle::DType,
    pub address: u64,
    pub bytes: u64,
    /// Whether it is an allocation of its own, from first byte to last.
    pub whole: bool,
}

/// Captures `function` on the static `inputs`.
///
/// # Errors
/// [`Error::NotCapturable`] with what stood in the way.
pub(super) fn capture(stream: &Stream, device: &Device, function: &Function, inputs: &[Tensor]) -> Result<Capture> {
    // An output that is no whole allocation of its own (an input, a weight, a view) is copied inside the pass.
    let mut copied = Vec::new();
    loop {
        let (outputs, marks, graph) = run(stream, function, inputs, &copied)?;
        let capture = match read(stream, inputs, &outputs, &marks, &graph) {
            Ok(capture) => capture,
            Err(error) => {
                graph.settle()?;
                return Err(error);
            }
        };
        match capture {
            Ok((trace, of, external)) => {
                let is_written =
                    |id| trace.ops.iter().flat_map(|op| &op.accesses).any(|a| a.buffer == id && a.mode.writes());
                let written = external.iter().filter(|(_, id)| is_written(*id));
                let written = written.map(|&(start, id)| (start, trace.buffers[id].bytes)).collect();
                let external = external.into_iter().map(|(start, _)| start).collect();
                let launches = Mutex::new(Launches { of, graphs: vec![graph], kernels: Vec::new() });
                return Ok(Capture { trace, launches, external, written, outputs });
            }
            Err(again) if again.iter().all(|i| copied.contains(i)) => {
                let reason = format!("outputs {again:?} have no memory of their own on {:?}", device.location());
                return Err(Error::NotCapturable { reason });
            }
            Err(again) => copied.extend(again),
        }
    }
}

/// How many nodes come before each change of the labels, and the label from there on.
pub(super) type Marks = Vec<(usize, String)>;

/// What a pass returned, its spans, and its graph.
type Pass = (Vec<OutputSpec>, Marks, Captured);

/// Captures a pass; where the driver breaks off, a few times.
fn run(stream: &Stream, function: &Function, inputs: &[Tensor], copied: &[usize]) -> Result<Pass> {
    const ATTEMPTS: usize = 5;
    for _ in 1..ATTEMPTS {
        match run_once(stream, function, inputs, copied) {
            Err(broken) if broken.by_driver => {}
            result => return result.map_err(|broken| broken.error),
        }
    }
    run_once(stream, function, inputs, copied).map_err(|broken| broken.error)
}

fn run_once(
    stream: &Stream,
    function: &Function,
    inputs: &[Tensor],
    copied: &[usize],
) -> std::result::Result<Pass, Broken> {
    let forward = || {
        let mut outputs = function(inputs).map_err(|source| match Error::from(source) {
            lost @ Error::DeviceLost { .. } => lost,
            error => Error::FailsInCapture { source: error.into() },
        })?;
        for &i in copied {
            let fewer = || format!("it returned more than {i} tensors at one call and fewer at the next");
            let output = outputs.get_mut(i).ok_or_else(|| Error::stateful(fewer()))?;
            *output = output.force_contiguous()?;
        }
        // All are alive until here: none has the address of another.
        let mut specs = Vec::new();
        for output in &outputs {
            specs.push(OutputSpec {
                shape: output.shape().clone(),
                dtype: output.dtype(),
                address: address_of(output)?,
                bytes: bytes_of(output),
                whole: output.is_contiguous(),
            });
        }
        Ok(specs)
    };
    let (captured, marks) = scope::record(Some(Arc::new(position)), || stream.capture(forward));
    let (specs, graph) = captured?;
    let from = match graph.after(marks.iter().map(|(position, _)| *position)) {
        Ok(from) => from,
        Err(error) => {
            graph.settle()?;
            return Err(error.into());
        }
    };
    let marks = from.into_iter().zip(marks).map(|(from, (_, path))| (from, path)).collect();
    Ok((specs, marks, graph))
}
