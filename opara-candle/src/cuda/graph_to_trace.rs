//! Converts a captured graph to a trace: its buffers, its launches, and which bytes each launch reads and writes.

use candle::Tensor;
use hashbrown::HashMap;

use super::buffers::{Latest, Memory, Owner};
use super::driver::{address_of, bytes_of, Call, KernelNode, LaunchNode, Node, Placed, Pointer, Stream};
use super::kernels::known;
use super::launches::CapturedLaunch;
use super::pass::Pass;
use crate::trace::{Access, AccessMode, Buffer, BufferId, Meaning, Op, Region, Role, Trace, View, Work};
use crate::{Error, Result};
use opara_plan::kernel_catalog::KernelName;

/// What a captured graph is.
pub(super) struct Read {
    pub trace: Trace,
    /// The launch of each op.
    pub launches: Vec<CapturedLaunch>,
    /// Address and buffer of each allocation from before the pass.
    pub external: Vec<(u64, BufferId)>,
    /// Address and buffer of each allocation that the module keeps.
    pub kept: Vec<(u64, BufferId)>,
}

/// Converts a captured graph of a pass on these arguments, of which the first are `inputs`, the others state. The inner `Err` lists outputs that another capture must copy, since they have no allocation of
/// their own.
pub(super) fn read(
    stream: &Stream,
    arguments: &[Tensor],
    inputs: usize,
    pass: &Pass,
) -> Result<std::result::Result<Read, Vec<usize>>> {
    let Pass { outputs, marks, noted, graph } = pass;
    let mut memory = Memory::new(stream);
    for (i, argument) in arguments.iter().enumerate() {
        let bytes = bytes_of(argument);
        let role = i.checked_sub(inputs).map_or(Role::Input(i), Role::State);
        let id = memory.add(bytes, role, Owner::Tensor);
        if bytes > 0 {
            memory.live.insert(address_of(argument)?, id);
        }
    }
    let mut trace = Trace { device: stream.device_spec()?, ..Default::default() };
    let mut launches = Vec::new();
    let mut unfreed: HashMap<u64, BufferId> = HashMap::new();
    let mut latest = Latest::default();
    let mut labels = marks.iter().peekable();
    let mut label = "";
    // The start of the library call that the last launch is part of.
    let mut of_last = None;
    let calls = graph.library_calls()?;
    calls.iter().for_each(|(nodes, call)| tracing::trace!(?nodes, %call, "captured"));
    let mut calls = calls.iter().peekable();
    for (index, node) in graph.nodes()?.into_iter().enumerate() {
        while let Some((_, path)) = labels.next_if(|(from, _)| *from <= index) {
            label = path;
        }
        while calls.next_if(|(nodes, _)| nodes.end <= index).is_some() {}
        let found = calls.peek().filter(|(nodes, _)| nodes.contains(&index));
        let call = found.map(|(_, call)| *call);
        match node {
            Node::Alloc { address, bytes, library } => {
                let id = memory.allocate(address, bytes, library);
                unfreed.insert(address, id);
                latest.insert(address, bytes, id);
            }
            Node::Free { address } => {
                memory.free(address);
                unfreed.remove(&address);
            }
            Node::Empty => {}
            Node::Unsupported(reason) => return Err(refused(reason, label)),
            // Launches on empty tensors do nothing.
            Node::Launch(launch) if launch.is_empty() => {}
            Node::Launch(mut launch) => {
                if let LaunchNode::Kernel(kernel) = &mut *launch {
                    noted.tell(kernel);
                }
                let (mut op, recorded) = record(&mut memory, *launch, call, label);
                op.meaning = call.and_then(|call| meaning(&mut memory, call)).map(Box::new);
                let from = found.map(|(nodes, _)| nodes.start);
                if let Some(before) = trace.ops.last_mut().filter(|_| from.is_some() && from == of_last) {
                    // The last launch of a call represents the whole call.
                    before.meaning = op.meaning.is_some().then(|| Meaning::part().into());
                }
                of_last = from;
                trace.ops.push(op);
                launches.push(recorded);
                if memory.writes_input {
                    return Err(refused("it writes to a tensor that it is called with", label));
                }
            }
        }
    }
    // A module that keeps a new tensor in the place of an older one is refused for that one.
    if graph.dropped() > 0 && unfreed.is_empty() {
        // Another thread may have replaced a tensor that the module was using.
        let reason = format!("{} tensors from before the forward pass are dropped in it", graph.dropped());
        return Err(Error::NotCapturable { reason });
    }
    let mut copy = Vec::new();
    for (i, output) in outputs.iter().enumerate() {
        let own = latest.at(output.address).filter(|&id| {
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
    Ok(Ok(Read {
        trace,
        launches,
        external: memory.external.into_iter().collect(),
        kept: unfreed.into_iter().collect(),
    }))
}

fn refused(reason: &str, label: &str) -> Error {
    let place = if label.is_empty() { String::new() } else { format!(" (at `{label}`)") };
    Error::NotCapturable { reason: format!("{reason}{place}") }
}

/// Converts one launch to an op.
fn record(memory: &mut Memory, launch: LaunchNode, call: Option<&Call>, label: &str) -> (Op, CapturedLaunch) {
    let mut unnamed = Vec::new();
    let (name, work, accesses, pointers) = match &launch {
        LaunchNode::Kernel(kernel) => {
            let (accesses, pointers, others) = kernel_accesses(memory, kernel, call);
            unnamed = others;
            (KernelName::from(&*kernel.name), Work::Kernel(kernel.launch), accesses, pointers)
        }
        LaunchNode::Memset(memset) => {
            let target = memory.find(memset.address());
            let pointers: Vec<Pointer> =
                target.map(|(buffer, delta)| Pointer { word: 0, buffer, delta }).into_iter().collect();
            let write = |p: &Pointer| {
                let region = Region::contiguous(p.delta, memset.bytes());
                Access { buffer: p.buffer, region, mode: AccessMode::Write }
            };
            memory.writes_input |= pointers.iter().any(|p| memory.is_input(p.buffer));
            ("memset".into(), Work::Memset(memset.bytes()), pointers.iter().map(write).collect(), pointers)
        }
        LaunchNode::Memcpy(memcpy) => {
            let mut pointers = Vec::new();
            let mut accesses = Vec::new();
            for (word, address, mode) in
                [(0, memcpy.source(), AccessMode::Read), (1, Some(memcpy.target()), AccessMode::Write)]
            {
                if let Some((buffer, delta)) = address.and_then(|address| memory.find(address)) {
                    pointers.push(Pointer { word, buffer, delta });
                    accesses.push(Access { buffer, region: Region::contiguous(delta, memcpy.bytes()), mode });
                    memory.writes_input |= mode.writes() && memory.is_input(buffer);
                }
            }
            let name = if memcpy.source().is_some() { "memcpy" } else { "upload" };
            (name.into(), Work::Memcpy(memcpy.bytes()), accesses, pointers)
        }
    };
    let external = |p: &Pointer| memory.buffers[p.buffer].role == Role::External;
    let fixed = pointers.iter().filter(|p| external(p)).map(|p| p.word).collect();
    // A copy keeps both pointers. A kernel keeps only pointers to buffers that may move.
    let kernel = matches!(launch, LaunchNode::Kernel(_));
    let pointers = pointers.into_iter().filter(|p| !kernel || !external(p)).collect();
    let is_of_a_library = kernel && call.is_some();
    let op = Op { name, label: label.to_string(), work, accesses, nanos: None, meaning: None };
    (op, CapturedLaunch { launch, pointers, fixed, unnamed, is_of_a_library })
}

/// The meaning of a library call. `None` if an operand is not aligned to its elements within its buffer.
fn meaning(memory: &mut Memory, call: &Call) -> Option<Meaning> {
    let computed = call.computes.as_ref()?;
    let mut view = |Placed { address, element, dims }: &Placed| {
        let (buffer, delta) = memory.find(*address)?;
        let first = delta.is_multiple_of(element.bytes()).then_some(delta / element.bytes())?;
        Some(View { buffer, element: *element, first, dims: dims.clone() })
    };
    let reads = computed.reads.iter().map(&mut view).collect::<Option<_>>()?;
    Some(Meaning { function: computed.function.clone(), reads, writes: Some(view(&computed.writes)?) })
}

/// The accesses and pointers of a kernel, and which of these lead to tensors that its call does not name. Every aligned word of the
/// arguments that is an address inside a buffer counts as a pointer. What the kernel does to that buffer is known from the library
/// call that launched it, or from its code.
fn kernel_accesses(
    memory: &mut Memory,
    kernel: &KernelNode,
    call: Option<&Call>,
) -> (Vec<Access>, Vec<Pointer>, Vec<usize>) {
    let arguments = &kernel.arguments;
    let known = known(&kernel.name, arguments, &kernel.launch, kernel.code);
    let operands = call.map(|call| operands(memory, call));
    let mut accesses: Vec<Access> = Vec::new();
    let (mut pointers, mut unnamed) = (Vec::new(), Vec::new());
    let has_address = |&(word, _): &(usize, u64)| known.as_ref().is_none_or(|known| known.has_address(word));
    for (word, value) in arguments.pointer_words().filter(has_address) {
        // Padding may hold the address of a tensor of an earlier call, which is freed before long: the pass does not use it.
        if matches!(&operands, Some(Some(of)) if memory.is_foreign(value, |id| of.contains_key(&id))) {
            unnamed.push(word);
            continue;
        }
        let Some((buffer, delta)) = memory.find(value) else { continue };
        pointers.push(Pointer { word, buffer, delta });
        let (region, mode) = match (&operands, &known) {
            (Some(operands), _) => {
                let mode = library_mode(memory, operands.as_ref(), buffer);
                unnamed.extend(mode.is_none().then_some(word));
                // It counts as read: at worst the launch waits for what writes to that buffer.
                (memory.whole(buffer, 0), mode.unwrap_or(AccessMode::Read))
            }
            (None, Some(known)) => known.access(arguments.argument_at(word), delta, memory.buffers[buffer].bytes),
            (None, None) => (memory.whole(buffer, 0), AccessMode::ReadWrite),
        };
        accesses.push(Access { buffer, region, mode });
    }
    if operands.is_some() || known.is_some() {
        memory.writes_input |= accesses.iter().any(|a| a.mode.writes() && memory.is_input(a.buffer));
    }
    (accesses, pointers, unnamed)
}

/// The access modes of a library call's operands, by buffer; `None` if the operands are not known.
fn operands(memory: &mut Memory, call: &Call) -> Option<HashMap<BufferId, AccessMode>> {
    let mut modes: HashMap<BufferId, AccessMode> = HashMap::new();
    for operand in call.operands.as_ref()? {
        if let Some((buffer, _)) = memory.find(operand.address) {
            // A call may launch several kernels, one of which reads what another has written.
            let mode = if operand.mode.writes() { AccessMode::ReadWrite } else { AccessMode::Read };
            let known = modes.entry(buffer).or_insert(mode);
            if mode == AccessMode::ReadWrite {
                *known = mode;
            }
        }
    }
    Some(modes)
}

/// How a library's kernel accesses a buffer. An operand: as the call does. The library's own memory, such as a workspace, or any
/// buffer if the call's operands are not known: reads and writes. `None` of any other buffer: its address is a number or padding by
/// chance.
fn library_mode(
    memory: &Memory,
    operands: Option<&HashMap<BufferId, AccessMode>>,
    buffer: BufferId,
) -> Option<AccessMode> {
    match operands.map(|operands| operands.get(&buffer)) {
        Some(Some(&mode)) => Some(mode),
        Some(None) if memory.owners[buffer] == Owner::Tensor => None,
        Some(None) | None => Some(AccessMode::ReadWrite),
    }
}
