//! Captures one forward pass, and converts the captured graph to a trace.

use std::sync::Arc;

use candle::Device;
use parking_lot::Mutex;

use super::driver::{CapturePool, Pointer, Stream};
use super::graph_to_trace::{read, Read};
use super::launches::Launches;
use super::pass::{self, OutputSpec, Pass};
use crate::arguments::Rerun;
use crate::backend::Function;
use crate::trace::{BufferId, Op, OpId, Trace};
use crate::{Error, Result};

/// A captured forward pass.
pub(super) struct Capture {
    /// One op for each of `launches`.
    pub trace: Trace,
    pub launches: Mutex<Launches>,
    /// The number of inputs among the arguments; the others are state.
    pub inputs: usize,
    /// Address and buffer of each older allocation that the pass uses.
    pub external: Vec<(u64, BufferId)>,
    /// Address and buffer of each allocation that the module keeps, where it may.
    pub kept: Vec<(u64, BufferId)>,
    /// Address and size of each older allocation that the pass writes.
    pub written: Vec<(u64, u64)>,
    /// Shapes and dtypes of the outputs.
    pub outputs: Vec<OutputSpec>,
}

impl Capture {
    /// Compares this capture with an earlier one of the same module that still holds its memory, so that every buffer has
    /// another address now. If they agree, words that only looked like pointers are dropped.
    ///
    /// # Returns
    /// The first launch, if any, that differs only in the arguments of a library's kernel. These may hold arbitrary bytes that
    /// look like a pointer to a weight by chance; only a further capture can tell.
    ///
    /// # Errors
    /// [`Error::Unstable`] if their launches differ, [`Error::Stateful`] if they return different numbers of tensors.
    pub fn confirm(&mut self, earlier: &Capture) -> Result<Option<OpId>> {
        if earlier.outputs.len() != self.outputs.len() {
            let (a, b) = (earlier.outputs.len(), self.outputs.len());
            let reason = format!("it returns {a} tensors at one call and {b} at the next");
            return Err(Error::stateful(reason));
        }
        let (a, b) = (&earlier.trace.ops, &self.trace.ops);
        for at in 0..a.len().max(b.len()) {
            let same = matches!((a.get(at), b.get(at)), (Some(a), Some(b)) if a.name == b.name && a.work == b.work);
            if !same {
                let name = |ops: &[Op]| ops.get(at).map_or("nothing".into(), |op| op.name.to_string());
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
            // A number that looks like a pointer by chance does not point into the same buffer of both captures.
            let confirmed = now.pointers.iter().filter(|p| before.pointers.iter().any(|q| same(p, q)));
            let confirmed: Vec<Pointer> = confirmed.copied().collect();
            let moved: Vec<usize> = confirmed.iter().map(|p| p.word).collect();
            if !now.repeats(before, &moved) {
                if !now.is_of_a_library {
                    return Err(self.unstable(at));
                }
                suspect = suspect.or(Some(at));
            }
            pointers.push(confirmed);
        }
        if suspect.is_none() {
            launches.of.iter_mut().zip(pointers).for_each(|(launch, pointers)| launch.pointers = pointers);
        }
        Ok(suspect)
    }

    /// The same capture once more: what replaces launches of one leaves the other as it is.
    pub fn duplicate(&self) -> Self {
        let Self { trace, launches, inputs, external, kept, written, outputs } = self;
        let (trace, launches) = (trace.clone(), Mutex::new(launches.lock().clone()));
        let (external, kept, written, outputs) = (external.clone(), kept.clone(), written.clone(), outputs.clone());
        Self { trace, launches, inputs: *inputs, external, kept, written, outputs }
    }

    /// The address of each allocation from before the pass that it uses.
    pub fn external_addresses(&self) -> Vec<u64> {
        self.external.iter().map(|&(start, _)| start).collect()
    }

    /// The error of a launch that is given other values at each call.
    pub fn unstable(&self, at: OpId) -> Error {
        let name = |what: &str| format!("{} {what}", self.trace.ops[at].name);
        Error::Unstable { at, first: name("as before"), second: name("on other values") }
    }
}

/// Captures `function` on static arguments, in memory of `pool`, which says whether what it launches runs, too. The first of the
/// arguments are `inputs`, the others state.
///
/// # Errors
/// [`Error::NotCapturable`] with the reason.
pub(super) fn capture(
    stream: &Stream,
    device: &Device,
    pool: &CapturePool,
    function: &Function,
    arguments: &Rerun,
    inputs: usize,
) -> Result<Capture> {
    // An output without an allocation of its own (an input, a weight, a view) is copied inside the pass.
    let mut copied = Vec::new();
    loop {
        let pass = pass::run(stream, pool, function, arguments, &copied)?;
        match read(stream, arguments.arguments(), inputs, &pass)? {
            Ok(Read { trace, launches: of, external, kept }) => {
                if !kept.is_empty() && !pool.holds() {
                    let (count, bytes) = (kept.len(), kept.iter().map(|&(_, id)| trace.buffers[id].bytes).sum::<u64>());
                    return Err(Error::stateful(format!(
                        "the module keeps {count} tensors ({bytes} bytes) that it made in `forward`, so its state changes from call to call"
                    )));
                }
                let Pass { outputs, graph, .. } = pass;
                let is_written =
                    |id| trace.ops.iter().flat_map(|op| &op.accesses).any(|a| a.buffer == id && a.mode.writes());
                let written = external.iter().filter(|(_, id)| is_written(*id));
                let written = written.map(|&(start, id)| (start, trace.buffers[id].bytes)).collect();
                let launches =
                    Mutex::new(Launches { of, graphs: vec![Arc::new(Mutex::new(graph))], kernels: Vec::new() });
                return Ok(Capture { trace, launches, inputs, external, kept, written, outputs });
            }
            Err(again) if again.iter().all(|i| copied.contains(i)) => {
                let reason = format!("outputs {again:?} have no memory of their own on {:?}", device.location());
                return Err(Error::NotCapturable { reason });
            }
            Err(again) => copied.extend(again),
        }
    }
}
