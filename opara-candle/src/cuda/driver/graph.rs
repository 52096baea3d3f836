//! Builds a graph node by node, and launches its executable.

use std::any::Any;
use std::sync::Arc;

use candle::Tensor;
use cudarc::driver::sys;

use super::bound::{current_context, Bound, BoundLaunch};
use super::captured_graph::{MemcpyNode, MemsetNode};
use super::kernel::KernelNode;
use super::{check, MemoryBlock, Relocation, Stream};
use crate::Result;

/// A pointer in a node's arguments, as a buffer and an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cuda) struct Pointer {
    /// Offset of the word in the arguments.
    pub word: usize,
    /// The buffer.
    pub buffer: usize,
    /// Bytes from the buffer's start.
    pub delta: u64,
}

/// Owns a graph.
struct Graph {
    raw: sys::CUgraph,
    stream: Stream,
}

// SAFETY: handles may be used from any thread whose context is current; every use makes it current. No two uses
// overlap, since they go through an exclusive reference to the owner.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.stream.make_current() {
            // SAFETY: this value owns the graph.
            unsafe { sys::cuGraphDestroy(self.raw) };
        }
    }
}

/// A graph under construction.
pub(in crate::cuda) struct GraphBuilder {
    graph: Graph,
    nodes: Vec<sys::CUgraphNode>,
    /// For each node: is it a kernel?
    kernels: Vec<bool>,
    bound: Vec<Bound>,
    relocation: Relocation,
    /// Host bytes that memcpy nodes read.
    uploads: Vec<Arc<[u8]>>,
    /// Do nodes differ in priority?
    priorities: bool,
}

impl GraphBuilder {
    /// An empty graph whose nodes' pointers are rewritten by `relocation`.
    pub fn new(stream: &Stream, relocation: Relocation) -> Result<Self> {
        stream.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` receives the new graph.
        check("cuGraphCreate", unsafe { sys::cuGraphCreate(&mut raw, 0) })?;
        let graph = Graph { raw, stream: stream.clone() };
        Ok(Self {
            graph,
            nodes: Vec::new(),
            kernels: Vec::new(),
            bound: Vec::new(),
            relocation,
            uploads: Vec::new(),
            priorities: false,
        })
    }

    fn moved(&self, buffer: usize, delta: u64, old: u64) -> u64 {
        self.relocation.target(buffer).map_or(old, |start| start + delta)
    }

    /// Notes a node if it accesses arguments of the module, or has numbers by the length of a text. `pointers` are its pointers with their positions.
    fn bind(&mut self, node: sys::CUgraphNode, launch: BoundLaunch, pointers: impl Iterator<Item = (usize, Pointer)>) {
        let place = |(place, p): (usize, Pointer)| Some((place, self.relocation.argument(p.buffer)?, p.delta));
        let places: Vec<_> = pointers.filter_map(place).collect();
        let bound = Bound { node, launch, places, set_for: None };
        if !bound.places.is_empty() || bound.is_late() {
            self.bound.push(bound);
        }
    }

    /// A placeholder address for an argument of the module, until the first launch sets the real one: a block of this many bytes,
    /// which the graph keeps.
    fn stand_in(&mut self, bytes: usize) -> Result<u64> {
        let block = MemoryBlock::outside_pool(&self.graph.stream, bytes.max(1) as u64)?;
        self.relocation.keep(&block);
        Ok(block.address())
    }

    fn added(&mut self, node: sys::CUgraphNode) -> usize {
        self.nodes.push(node);
        self.kernels.push(false);
        self.nodes.len() - 1
    }

    fn after(&self, after: &[usize]) -> Vec<sys::CUgraphNode> {
        after.iter().map(|&i| self.nodes[i]).collect()
    }

    /// Adds a kernel behind the nodes `after`, given by the order in which they were added; pointers move. One that `waits` by
    /// itself may begin while a kernel before it still runs.
    pub fn kernel(&mut self, node: &KernelNode, pointers: &[Pointer], after: &[usize], waits: bool) -> Result<usize> {
        let mut arguments = node.arguments.clone();
        for p in pointers {
            if let Some(start) = self.relocation.target(p.buffer) {
                arguments.set_word(p.word, start + p.delta);
            }
        }
        let is_early = waits && matches!(after, [only] if self.kernels[*only]);
        let dependencies = if is_early { Vec::new() } else { self.after(after) };
        let mut params = node.params;
        let mut new = std::ptr::null_mut();
        arguments.with_raw(|kernel_params, extra| {
            params.kernelParams = kernel_params;
            params.extra = extra;
            // SAFETY: the function belongs to the captured node, whose module stays loaded by candle's device or by the
            // library. The arguments have its layout and are copied by the call. Every pointer in them is either
            // relocated into a tensor that the relocation owns and that is large enough, or comes from the module's own
            // forward pass and points to memory that the module keeps alive (`Executable::new`). The template is a node
            // of the captured graph, which the caller holds.
            unsafe {
                check(
                    "cuGraphAddKernelNode",
                    sys::cuGraphAddKernelNode_v2(
                        &mut new,
                        self.graph.raw,
                        dependencies.as_ptr(),
                        dependencies.len(),
                        &params,
                    ),
                )?;
                check("cuGraphKernelNodeCopyAttributes", sys::cuGraphKernelNodeCopyAttributes(new, node.template))
            }
        })?;
        let launch = BoundLaunch::Kernel(Box::new(node.params), arguments, node.by_length.clone());
        self.bind(new, launch, pointers.iter().map(|p| (p.word, *p)));
        if is_early {
            self.begin_early(self.nodes[after[0]], new)?;
        }
        let added = self.added(new);
        self.kernels[added] = true;
        Ok(added)
    }

    /// Has a kernel begin as soon as the one before it lets it.
    fn begin_early(&self, before: sys::CUgraphNode, kernel: sys::CUgraphNode) -> Result<()> {
        let edge = sys::CUgraphEdgeData {
            from_port: sys::CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC as u8,
            to_port: 0,
            type_: sys::CUgraphDependencyType::CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC as u8,
            reserved: [0; 5],
        };
        // SAFETY: both nodes are kernels of the graph that is owned here, and the call copies the edge. The kernel waits by itself
        // for what the other writes.
        check("cuGraphAddDependencies", unsafe {
            sys::cuGraphAddDependencies_v2(self.graph.raw, &before, &kernel, &edge, 1)
        })
    }

    /// Adds a memset at byte `delta` of `buffer` that depends on the nodes `after`.
    pub fn memset(&mut self, node: &MemsetNode, pointer: Pointer, after: &[usize]) -> Result<usize> {
        let mut params = node.params;
        params.dst = self.moved(pointer.buffer, pointer.delta, params.dst);
        if self.relocation.argument(pointer.buffer).is_some() {
            params.dst = self.stand_in(node.bytes() as usize)?;
        }
        let added = self.add_memset(&params, after)?;
        self.bind(self.nodes[added], BoundLaunch::Memset(Box::new(params)), [(0, pointer)].into_iter());
        Ok(added)
    }

    /// Fills a block, which the graph keeps alive, with a byte value, after the nodes `after`.
    pub fn fill(&mut self, block: &MemoryBlock, value: u8, after: &[usize]) -> Result<usize> {
        let (dst, width, value) = (block.address(), block.bytes() as usize, value.into());
        self.relocation.keep(block);
        self.add_memset(
            &sys::CUDA_MEMSET_NODE_PARAMS { dst, pitch: width, value, elementSize: 1, width, height: 1 },
            after,
        )
    }

    fn add_memset(&mut self, params: &sys::CUDA_MEMSET_NODE_PARAMS, after: &[usize]) -> Result<usize> {
        let dependencies = self.after(after);
        let mut new = std::ptr::null_mut();
        // SAFETY: the target is relocated into a tensor that the relocation owns, or is memory that the module keeps
        // alive; the context is the current one.
        check("cuGraphAddMemsetNode", unsafe {
            sys::cuGraphAddMemsetNode(
                &mut new,
                self.graph.raw,
                dependencies.as_ptr(),
                dependencies.len(),
                params,
                current_context()?,
            )
        })?;
        Ok(self.added(new))
    }

    /// Adds a copy from `from`, or from the node's own host bytes, to `to`, after the nodes `after`.
    pub fn memcpy(&mut self, node: &MemcpyNode, from: Option<Pointer>, to: Pointer, after: &[usize]) -> Result<usize> {
        let mut params = node.params;
        if let (Some(from), Some(source)) = (from, node.source()) {
            params.srcDevice = self.moved(from.buffer, from.delta, source);
        }
        params.dstDevice = self.moved(to.buffer, to.delta, node.target());
        // The first launch says where an argument is; until then any memory of this size will do.
        let is_argument = |pointer: Pointer| self.relocation.argument(pointer.buffer).is_some();
        match (from.is_some_and(is_argument), is_argument(to)) {
            (false, false) => {}
            (true, false) => params.srcDevice = params.dstDevice,
            (false, true) if from.is_some() => params.dstDevice = params.srcDevice,
            (both, true) => {
                params.dstDevice = self.stand_in(params.WidthInBytes)?;
                if both {
                    params.srcDevice = params.dstDevice;
                }
            }
        }
        (params.srcXInBytes, params.dstXInBytes) = (0, 0);
        self.uploads.extend(node.upload.clone());
        let dependencies = self.after(after);
        let mut new = std::ptr::null_mut();
        // SAFETY: as for a memset, for both ends of the copy; host bytes are kept alive beside the graph.
        check("cuGraphAddMemcpyNode", unsafe {
            sys::cuGraphAddMemcpyNode(
                &mut new,
                self.graph.raw,
                dependencies.as_ptr(),
                dependencies.len(),
                &params,
                current_context()?,
            )
        })?;
        let pointers = from.map(|from| (0, from)).into_iter().chain([(1, to)]);
        self.bind(new, BoundLaunch::Memcpy(Box::new(params)), pointers);
        Ok(self.added(new))
    }

    /// Gives a kernel node the device's highest priority.
    pub fn hurry(&mut self, kernel: usize) -> Result<()> {
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: both out-pointers are valid.
        check("cuCtxGetStreamPriorityRange", unsafe { sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest) })?;
        let value = sys::CUkernelNodeAttrValue { priority: greatest };
        let attribute = sys::CUkernelNodeAttrID::CU_LAUNCH_ATTRIBUTE_PRIORITY;
        self.priorities = true;
        // SAFETY: the node belongs to the graph that is owned here; the driver rejects nodes that are no kernels; the
        // value has the attribute's type.
        check("cuGraphKernelNodeSetAttribute", unsafe {
            sys::cuGraphKernelNodeSetAttribute(self.nodes[kernel], attribute, &value)
        })
    }

    /// Adds an empty node that depends on the nodes `after`.
    pub fn join(&mut self, after: &[usize]) -> Result<usize> {
        let dependencies = self.after(after);
        let mut new = std::ptr::null_mut();
        // SAFETY: the graph is owned here, and the dependencies are its nodes; `new` receives the node.
        check("cuGraphAddEmptyNode", unsafe {
            sys::cuGraphAddEmptyNode(&mut new, self.graph.raw, dependencies.as_ptr(), dependencies.len())
        })?;
        Ok(self.added(new))
    }

    /// Instantiates the graph. `keep` owns the memory behind pointers that were not relocated: the module.
    ///
    /// The first launch uploads the executable to the device. `cuGraphUpload` could do it now; but while an executable
    /// is uploaded and not yet launched, every other graph of the process takes about 0.25 us per node longer (H200,
    /// driver 580). If it is destroyed before its first launch, that slowdown stays.
    pub fn instantiate(self, keep: Box<dyn Any + Send + Sync>) -> Result<Executable> {
        let mut raw = std::ptr::null_mut();
        let by_node = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
        let flags = if self.priorities { by_node.0 as u64 } else { 0 };
        // SAFETY: the graph is complete and owned here; `raw` receives the executable.
        check("cuGraphInstantiate", unsafe { sys::cuGraphInstantiateWithFlags(&mut raw, self.graph.raw, flags) })?;
        Ok(Executable {
            raw,
            graph: self.graph,
            arguments: Vec::new(),
            bound: self.bound,
            moved: self.relocation,
            _uploads: self.uploads,
            _keep: keep,
        })
    }
}

/// A graph that can be launched. It owns the memory that its nodes access, except the module's arguments and the arenas, which
/// are passed to every launch.
pub(in crate::cuda) struct Executable {
    raw: sys::CUgraphExec,
    /// The nodes of `bound` are its own.
    graph: Graph,
    /// Addresses of the module's arguments at the last launch.
    arguments: Vec<u64>,
    bound: Vec<Bound>,
    /// Owns the tensors that buffers moved into.
    moved: Relocation,
    _uploads: Vec<Arc<[u8]>>,
    _keep: Box<dyn Any + Send + Sync>,
}

// SAFETY: handles may be used from any thread whose context is current; `launch` and `drop` make it current, and have
// exclusive access to the executable.
unsafe impl Send for Executable {}

impl Executable {
    /// Launches the graph on the device's stream.
    ///
    /// # Errors
    /// Arguments of other sizes than the captured ones, other arenas than the relocation's, or a failed driver call.
    pub fn launch(&mut self, arguments: &[Tensor], arenas: &[&MemoryBlock]) -> Result<()> {
        let arguments = self.moved.launched_with(arguments, arenas)?;
        self.graph.stream.bind()?;
        if self.arguments != arguments || self.bound.iter().any(Bound::is_late) {
            // Cleared first: if a call below fails, the next launch sets all addresses again.
            let before = std::mem::take(&mut self.arguments);
            for bound in self.bound.iter_mut().filter(|bound| bound.moves(&before, &arguments)) {
                // SAFETY: the node belongs to the graph that this executable was made from, which is kept unchanged;
                // function and size are the node's own, and so is the geometry, or it is that of the text's length, as the module
                // launched the kernel; launches in flight keep what they were given.
                unsafe { bound.bind_to(self.raw, &arguments)? };
            }
            self.arguments = arguments;
        }
        // SAFETY: executable and stream exist. The nodes' memory is owned by this value or by the module that it keeps, or it is
        // an argument or an arena. Arguments and arenas were checked to be like the captured ones, and the caller's memory is
        // freed in the order of this stream, or after it.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.raw, self.graph.stream.raw()) })
    }
}

impl Executable {
    /// The ids of this graph in CUPTI's records.
    ///
    /// # Errors
    /// CUPTI is not in use.
    pub fn ids(&self) -> Result<[u32; 2]> {
        // SAFETY: this value owns both handles.
        unsafe { super::cupti::graph_ids(self.graph.raw, self.raw) }
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        if self.graph.stream.make_current() {
            // A launch may still run; its memory is freed in stream order.
            self.graph.stream.wait_to_drop();
            // SAFETY: this value owns the executable. If a launch is still in flight because waiting failed, the driver
            // postpones the destruction.
            unsafe { sys::cuGraphExecDestroy(self.raw) };
        }
    }
}
