//! The CUDA tracer: captures one forward pass and reads it back as a trace.

use std::rc::Rc;

use candle::{Device, Tensor};
use hashbrown::HashMap;
use parking_lot::Mutex;

use super::driver::{address_of, AllocationTable, Captured, KernelNode, Launch, Node, Pointer, Stream};
use super::kernels::{effects, Effects};
use crate::backend::Function;
use crate::memory::aligned;
use crate::trace::{scope, Access, Buffer, BufferId, Mode, Op, Region, Role, Trace, Work};
use crate::{Error, Result};

/// A captured forward pass.
pub(super) struct Capture {
    pub trace: Trace,
    pub launches: Mutex<Launches>,
    /// Shapes and dtypes of the outputs.
    pub outputs: Vec<OutputSpec>,
}

impl Capture {
    /// Holds this capture against an earlier one of the same module, which is still there: so every buffer is elsewhere
    /// now.
    ///
    /// # Errors
    /// [`Error::Unstable`] if they do not launch the same.
    pub fn confirm(&mut self, earlier: Capture) -> Result<()> {
        let (a, b) = (&earlier.trace.ops, &self.trace.ops);
        for at in 0..a.len().max(b.len()) {
            let same = matches!((a.get(at), b.get(at)), (Some(a), Some(b)) if a.name == b.name && a.work == b.work);
            if !same {
                let name = |ops: &[Op]| ops.get(at).map_or("nothing".into(), |op| op.name.clone());
                return Err(Error::Unstable { at, first: name(a), second: name(b) });
            }
        }
        let earlier_launches = earlier.launches.into_inner();
        for ((_, pointers), (_, before)) in self.launches.get_mut().of.iter_mut().zip(&earlier_launches.of) {
            let buffers = (&self.trace.buffers, &earlier.trace.buffers);
            let same = |p: &Pointer, q: &Pointer| {
                (p.word, p.delta, buffers.0[p.buffer]) == (q.word, q.delta, buffers.1[q.buffer])
            };
            // A number that looked like a pointer once does not look like one into the same buffer again.
            pointers.retain(|p| before.iter().any(|q| same(p, q)));
        }
        Ok(())
    }
}

/// What ops launch.
pub(super) struct Launches {
    /// For each op its launch, with the pointers found in it.
    pub of: Vec<(Launch, Vec<Pointer>)>,
    /// Owns the nodes that attributes are copied from.
    _graph: Captured,
}

/// One output of the captured pass.
pub(super) struct OutputSpec {
    pub shape: candle::Shape,
    pub dtype: candle::DType,
    address: u64,
    bytes: u64,
    /// Whether it is an allocation of its own, from first byte to last.
    whole: bool,
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
        let capture = read(stream, inputs, outputs, &marks, graph)?;
        match capture {
            Ok(capture) => return Ok(capture),
            Err(again) if again.iter().all(|i| copied.contains(i)) => {
                let reason = format!("outputs {again:?} have no memory of their own on {:?}", device.location());
                return Err(Error::NotCapturable { reason });
            }
            Err(again) => copied.extend(again),
        }
    }
}

type Marks = Vec<(usize, String)>;

fn run(
    stream: &Stream,
    function: &Function,
    inputs: &[Tensor],
    copied: &[usize],
) -> Result<(Vec<OutputSpec>, Marks, Captured)> {
    let position = {
        let stream = stream.clone();
        Rc::new(move || stream.captured_nodes())
    };
    let forward = || {
        let mut outputs = function(inputs).map_err(|error| Error::NotCapturable { reason: error.to_string() })?;
        for &i in copied {
            outputs[i] = outputs[i].force_contiguous()?;
        }
        // All are alive until here: none has the address of another.
        let mut specs = Vec::new();
        for output in &outputs {
            specs.push(OutputSpec {
                shape: output.shape().clone(),
                dtype: output.dtype(),
                address: address_of(output)?,
                bytes: (output.elem_count() * output.dtype().size_in_bytes()) as u64,
                whole: output.is_contiguous(),
            });
        }
        Ok(specs)
    };
    let (captured, marks) = scope::record(Some(position), || stream.capture(forward));
    let (specs, graph) = captured?;
    Ok((specs, marks, graph))
}

/// A buffer of the pass, as far as libraries are concerned.
#[derive(Debug, Clone, Copy)]
enum Origin {
    /// Allocated by candle before the library call of this number, if not in it, and touched by no kernel of candle's.
    Fresh(usize),
    /// A tensor that holds something.
    Tensor,
    /// A library's own.
    Library,
}

/// Buffers by address, as allocations come and go.
struct Memory<'a> {
    stream: &'a Stream,
    buffers: Vec<Buffer>,
    origins: Vec<Origin>,
    /// First byte to buffer, of those alive.
    live: std::collections::BTreeMap<u64, BufferId>,
    external: HashMap<u64, BufferId>,
    allocations: AllocationTable,
    /// Library calls that are surely over. candle cannot act in the middle of one, so what it does ends them.
    calls: usize,
    /// Whether a library has launched something since.
    calling: bool,
    /// Bytes of candle's live allocations, and the most there were.
    bytes: u64,
    peak: u64,
}

impl<'a> Memory<'a> {
    fn new(stream: &'a Stream) -> Self {
        Self {
            stream,
            buffers: Vec::new(),
            origins: Vec::new(),
            live: Default::default(),
            external: HashMap::new(),
            allocations: AllocationTable::default(),
            calls: 0,
            calling: false,
            bytes: 0,
            peak: 0,
        }
    }

    fn add(&mut self, bytes: u64, role: Role, origin: Origin) -> BufferId {
        self.buffers.push(Buffer { bytes, role });
        self.origins.push(origin);
        self.buffers.len() - 1
    }

    fn allocate(&mut self, address: u64, bytes: u64, library: bool) -> BufferId {
        if !library {
            self.end_call();
        }
        let origin = if library { Origin::Library } else { Origin::Fresh(self.calls) };
        let id = self.add(bytes, if library { Role::Workspace } else { Role::Intermediate }, origin);
        self.live.insert(address, id);
        self.bytes += if library { 0 } else { aligned(bytes) };
        self.peak = self.peak.max(self.bytes);
        id
    }

    fn free(&mut self, address: u64) {
        if let Some(id) = self.live.remove(&address) {
            let library = matches!(self.origins[id], Origin::Library);
            self.bytes -= if library { 0 } else { aligned(self.buffers[id].bytes) };
        }
    }

    /// candle acts: whatever a library was called for is done.
    fn end_call(&mut self) {
        self.calls += usize::from(std::mem::take(&mut self.calling));
    }

    /// The buffer around an address, and how far it is from its start.
    fn find(&mut self, address: u64) -> Option<(BufferId, u64)> {
        let around = self.live.range(..=address).next_back().map(|(&start, &id)| (id, address - start));
        if let Some(found) = around.filter(|&(id, delta)| delta < self.buffers[id].bytes) {
            return Some(found);
        }
        let allocation = self.allocations.find(self.stream, address)?;
        let id = match self.external.get(&allocation.start) {
            Some(&id) => id,
            None => {
                let origin = if allocation.pooled { Origin::Tensor } else { Origin::Library };
                let id = self.add(allocation.bytes, Role::External, origin);
                self.external.insert(allocation.start, id);
                id
            }
        };
        Some((id, address - allocation.start))
    }

    fn whole(&self, buffer: BufferId, from: u64) -> Region {
        Region::contiguous(from, self.buffers[buffer].bytes - from)
    }
}

/// Reads a captured graph. `Err` lists the outputs that must be copied in another capture.
fn read(
    stream: &Stream,
    inputs: &[Tensor],
    outputs: Vec<OutputSpec>,
    marks: &Marks,
    graph: Captured,
) -> Result<Result<Capture, Vec<usize>>> {
    let mut memory = Memory::new(stream);
    for (i, input) in inputs.iter().enumerate() {
        let bytes = (input.elem_count() * input.dtype().size_in_bytes()) as u64;
        let id = memory.add(bytes, Role::Input(i), Origin::Tensor);
        if bytes > 0 {
            memory.live.insert(address_of(input)?, id);
        }
    }
    let mut trace = Trace { device: stream.device_spec()?, ..Default::default() };
    let mut launches = Vec::new();
    let mut unfreed: HashMap<u64, BufferId> = HashMap::new();
    let mut last_at: HashMap<u64, BufferId> = HashMap::new();
    let mut labels = marks.iter().peekable();
    let mut label = "";
    for (index, node) in graph.nodes()?.into_iter().enumerate() {
        while let Some((_, path)) = labels.next_if(|(from, _)| *from <= index) {
            label = path;
        }
        match node {
            Node::Alloc { address, bytes, library } => {
                let id = memory.allocate(address, bytes, library);
                unfreed.insert(address, id);
                last_at.insert(address, id);
            }
            Node::Free { address } => {
                memory.free(address);
                unfreed.remove(&address);
            }
            Node::Empty => {}
            Node::Unsupported(reason) => return Err(refused(reason, label)),
            Node::Launch(launch) => {
                if draws_random_numbers(&launch) {
                    return Err(refused("it draws random numbers, and a replay would draw them out of turn", label));
                }
                let (op, pointers) = recorded(&mut memory, &launch, label);
                trace.ops.push(op);
                launches.push((*launch, pointers));
            }
        }
    }
    if !unfreed.is_empty() {
        // The module holds these addresses: make them real before it uses them again.
        graph.run_once()?;
        let bytes: u64 = unfreed.values().map(|&id| memory.buffers[id].bytes).sum();
        let reason = format!(
            "the module keeps {} tensors ({bytes} bytes) that it made in `forward`, so its state changes from call to call",
            unfreed.len()
        );
        return Err(Error::NotCapturable { reason });
    }
    if let Some(error) = graph.failed() {
        let reason = format!("a tensor made before the forward pass was dropped in it, so it has state ({error})");
        return Err(Error::NotCapturable { reason });
    }
    let mut copy = Vec::new();
    for (i, output) in outputs.iter().enumerate() {
        let own = last_at.get(&output.address).copied().filter(|&id| {
            output.whole && memory.buffers[id] == Buffer { bytes: output.bytes, role: Role::Intermediate }
        });
        match own {
            Some(id) => memory.buffers[id].role = Role::Output(i),
            None if output.bytes == 0 => {}
            None => copy.push(i),
        }
    }
    if !copy.is_empty() {
        return Ok(Err(copy));
    }
    trace.buffers = memory.buffers;
    trace.peak_bytes = memory.peak;
    let launches = Mutex::new(Launches { of: launches, _graph: graph });
    Ok(Ok(Capture { trace, launches, outputs }))
}

fn refused(reason: &str, label: &str) -> Error {
    let place = if label.is_empty() { String::new() } else { format!(" (at `{label}`)") };
    Error::NotCapturable { reason: format!("{reason}{place}") }
}

/// Whether this is one of cuRAND's kernels, which candle draws random numbers with.
fn draws_random_numbers(launch: &Launch) -> bool {
    matches!(launch, Launch::Kernel(kernel) if kernel.name.contains("curand"))
}

/// One launch as an op, with the pointers to buffers that may move.
fn recorded(memory: &mut Memory, launch: &Launch, label: &str) -> (Op, Vec<Pointer>) {
    let (name, work, accesses, pointers) = match launch {
        Launch::Kernel(kernel) => {
            let (accesses, pointers) = kernel_accesses(memory, kernel);
            (kernel.name.to_string(), Work::Kernel(kernel.launch), accesses, pointers)
        }
        Launch::Memset(memset) => {
            let target = memory.find(memset.address());
            let pointers: Vec<Pointer> =
                target.map(|(buffer, delta)| Pointer { word: 0, buffer, delta }).into_iter().collect();
            let write = |p: &Pointer| {
                let region = Region::contiguous(p.delta, memset.bytes());
                Access { buffer: p.buffer, region, mode: Mode::Write }
            };
            ("memset".into(), Work::Memset(memset.bytes()), pointers.iter().map(write).collect(), pointers)
        }
        Launch::Memcpy(memcpy) => {
            let mut pointers = Vec::new();
            let mut accesses = Vec::new();
            for (word, address, mode) in [(0, memcpy.source(), Mode::Read), (1, Some(memcpy.target()), Mode::Write)] {
                if let Some((buffer, delta)) = address.and_then(|address| memory.find(address)) {
                    pointers.push(Pointer { word, buffer, delta });
                    accesses.push(Access { buffer, region: Region::contiguous(delta, memcpy.bytes()), mode });
                }
            }
            let name = if memcpy.source().is_some() { "memcpy" } else { "upload" };
            (name.into(), Work::Memcpy(memcpy.bytes()), accesses, pointers)
        }
    };
    (Op { name, label: label.to_string(), work, accesses }, pointers)
}

/// Every aligned word of the arguments that lies inside a buffer is a pointer to it; what the kernel does there depends
/// on who wrote it.
fn kernel_accesses(memory: &mut Memory, kernel: &KernelNode) -> (Vec<Access>, Vec<Pointer>) {
    let arguments = &kernel.arguments;
    let effects = effects(&kernel.name, arguments, &kernel.launch);
    if matches!(effects, Effects::Library) {
        memory.calling = true;
    } else {
        memory.end_call();
    }
    let mut accesses: Vec<Access> = Vec::new();
    let mut pointers = Vec::new();
    for (word, value) in arguments.words() {
        let Some((buffer, delta)) = memory.find(value) else { continue };
        let external = memory.buffers[buffer].role == Role::External;
        if !external {
            pointers.push(Pointer { word, buffer, delta });
        }
        let (region, mode) = match &effects {
            Effects::Candle(call) => call.access(arguments.argument_at(word), delta, memory.buffers[buffer].bytes),
            Effects::Library => (memory.whole(buffer, 0), library_mode(memory, buffer)),
            Effects::Unknown => (memory.whole(buffer, 0), Mode::ReadWrite),
        };
        accesses.push(Access { buffer, region, mode });
    }
    if !matches!(effects, Effects::Library) {
        for access in &accesses {
            if let origin @ Origin::Fresh(_) = &mut memory.origins[access.buffer] {
                *origin = Origin::Tensor;
            }
        }
    }
    (accesses, pointers)
}

/// What a library kernel does to a buffer.
///
/// candle allocates what a library call writes, its output and workspace, for that call, and never lets a library
/// accumulate into a tensor that held something. So during a call all that was allocated since the call before, and
/// that no kernel of candle's has touched, may still be under way (partial sums of split products, counters, results in
/// parts) and is taken as read and written; so is every library's own memory. All other memory is an operand: it is
/// read. A call of a library ends at the latest when candle allocates something or launches a kernel of its own, since
/// candle cannot act within it; a library's own allocations do not end it. Two calls that nothing separates count as
/// one, which is on the safe side. So the convolutions of a block's branches, each of which reads the block's input and
/// writes an output of its own, are free of each other.
///
/// The rule rests on what candle does. For code of others that calls a library on a tensor in place, every executor is
/// compared with eager execution when it is built.
fn library_mode(memory: &Memory, buffer: BufferId) -> Mode {
    match memory.origins[buffer] {
        Origin::Library => Mode::ReadWrite,
        Origin::Fresh(call) if call == memory.calls => Mode::ReadWrite,
        Origin::Fresh(_) | Origin::Tensor => Mode::Read,
    }
}
