//! The CUDA tracer: captures one forward pass and reads it back as a trace.

use std::rc::Rc;

use candle::{Device, Tensor};
use hashbrown::HashMap;

use super::driver::{address_of, AllocationTable, Captured, Node, Pointer, Stream};
use super::kernels::{effects, Effects};
use crate::backend::Function;
use crate::trace::{scope, Access, Buffer, BufferId, Launch, Mode, Op, Region, Role, Trace, Work};
use crate::{Error, Result};

/// A captured forward pass: the trace, and for each op its node with the pointers found in it.
pub(super) struct Capture {
    pub trace: Trace,
    pub launches: Vec<(Node, Vec<Pointer>)>,
    /// Owns the nodes that attributes are copied from.
    _graph: Captured,
    /// Shapes and dtypes of the outputs.
    pub outputs: Vec<OutputSpec>,
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

/// Buffers by address, as allocations come and go.
struct Memory<'a> {
    stream: &'a Stream,
    buffers: Vec<Buffer>,
    /// First byte to buffer, of those alive.
    live: std::collections::BTreeMap<u64, BufferId>,
    external: HashMap<u64, BufferId>,
    allocations: AllocationTable,
    /// What library kernels may still write: touched by nothing else since it was allocated.
    unsettled: Vec<bool>,
    pooled: Vec<bool>,
}

impl Memory<'_> {
    fn add(&mut self, bytes: u64, role: Role, pooled: bool) -> BufferId {
        self.buffers.push(Buffer { bytes, role });
        self.unsettled.push(role == Role::Intermediate);
        self.pooled.push(pooled);
        self.buffers.len() - 1
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
                let id = self.add(allocation.bytes, Role::External, allocation.pooled);
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
    let mut memory = Memory {
        stream,
        buffers: Vec::new(),
        live: Default::default(),
        external: HashMap::new(),
        allocations: AllocationTable::default(),
        unsettled: Vec::new(),
        pooled: Vec::new(),
    };
    for (i, input) in inputs.iter().enumerate() {
        let bytes = (input.elem_count() * input.dtype().size_in_bytes()) as u64;
        let id = memory.add(bytes, Role::Input(i), true);
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
            Node::Alloc { address, bytes } => {
                let id = memory.add(bytes, Role::Intermediate, true);
                memory.live.insert(address, id);
                unfreed.insert(address, id);
                last_at.insert(address, id);
            }
            Node::Free { address } => {
                memory.live.remove(&address);
                unfreed.remove(&address);
            }
            Node::Empty => {}
            Node::Unsupported(reason) => {
                let place = if label.is_empty() { String::new() } else { format!(" (at `{label}`)") };
                return Err(Error::NotCapturable { reason: format!("{reason}{place}") });
            }
            node => {
                let (op, pointers) = launch(&mut memory, &node, label);
                trace.ops.push(op);
                launches.push((node, pointers));
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
    Ok(Ok(Capture { trace, launches, _graph: graph, outputs }))
}

/// One launch as an op, with the pointers to buffers that may move.
fn launch(memory: &mut Memory, node: &Node, label: &str) -> (Op, Vec<Pointer>) {
    let (name, work, accesses, pointers) = match node {
        Node::Kernel(kernel) => {
            let (accesses, pointers) = kernel_accesses(memory, &kernel.name, &kernel.arguments, &kernel.launch);
            (kernel.name.clone(), Work::Kernel(kernel.launch), accesses, pointers)
        }
        Node::Memset(memset) => {
            let target = memory.find(memset.address());
            let pointers: Vec<Pointer> =
                target.map(|(buffer, delta)| Pointer { word: 0, buffer, delta }).into_iter().collect();
            let write = |p: &Pointer| {
                let region = Region::contiguous(p.delta, memset.bytes());
                Access { buffer: p.buffer, region, mode: Mode::Write }
            };
            ("memset".into(), Work::Memset(memset.bytes()), pointers.iter().map(write).collect(), pointers)
        }
        Node::Memcpy(memcpy) => {
            let mut pointers = Vec::new();
            let mut accesses = Vec::new();
            for (word, address, mode) in [(0, memcpy.source(), Mode::Read), (1, Some(memcpy.target()), Mode::Write)] {
                if let Some((buffer, delta)) = address.and_then(|address| memory.find(address)) {
                    pointers.push(Pointer { word, buffer, delta });
                    accesses.push(Access { buffer, region: Region::contiguous(delta, memcpy.bytes()), mode });
                }
            }
            (
                if memcpy.source().is_some() { "memcpy" } else { "upload" }.into(),
                Work::Memcpy(memcpy.bytes()),
                accesses,
                pointers,
            )
        }
        Node::Alloc { .. } | Node::Free { .. } | Node::Empty | Node::Unsupported(_) => {
            ("nothing".into(), Work::Memset(0), Vec::new(), Vec::new())
        }
    };
    (Op { name, label: label.to_string(), work, accesses }, pointers)
}

/// Every aligned word of the arguments that lies inside a buffer is a pointer to it; what the kernel does there depends
/// on who wrote it.
fn kernel_accesses(
    memory: &mut Memory,
    name: &str,
    arguments: &super::driver::Arguments,
    launch: &Launch,
) -> (Vec<Access>, Vec<Pointer>) {
    let effects = effects(name, arguments, launch);
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
        accesses.iter().for_each(|a| memory.unsettled[a.buffer] = false);
    }
    (accesses, pointers)
}

/// What a library kernel does to a buffer.
///
/// candle allocates what a library call writes (its output and workspace) for that call, and never lets a library
/// accumulate into a tensor that another kernel has used. So a buffer that only library kernels, memsets and copies
/// have touched since its allocation may still be under way (split-K partial sums, counters, a workspace) and is taken
/// as read and written; one that a candle kernel has touched is an operand. Memory from before the pass is an operand
/// where it comes from the pool that candle's tensors come from, and else the library's own workspace.
fn library_mode(memory: &Memory, buffer: BufferId) -> Mode {
    match memory.buffers[buffer].role {
        Role::External if !memory.pooled[buffer] => Mode::ReadWrite,
        Role::Intermediate if memory.unsettled[buffer] => Mode::ReadWrite,
        _ => Mode::Read,
    }
}
