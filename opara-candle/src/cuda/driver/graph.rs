//! Builds a graph node by node, and launches its executable.

use std::any::Any;
use std::sync::Arc;

use candle::Tensor;
use cudarc::driver::sys;

use super::captured_graph::{MemcpyNode, MemsetNode};
use super::kernel::KernelNode;
use super::{check, Arguments, MemoryBlock, Relocation, Stream};
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

/// A node that reads inputs: its launch, and the places of the inputs' addresses in it.
struct Reader {
    node: sys::CUgraphNode,
    launch: ReaderLaunch,
    /// Offset of the address, index of the input, bytes from the input's start.
    inputs: Vec<(usize, usize, u64)>,
}

// SAFETY: a handle of the graph beside it, with copied parameters.
unsafe impl Send for Reader {}

enum ReaderLaunch {
    Kernel(Box<sys::CUDA_KERNEL_NODE_PARAMS>, Arguments),
    /// The source of the copy is the input.
    Memcpy(Box<sys::CUDA_MEMCPY3D>),
}

/// A graph under construction.
pub(in crate::cuda) struct GraphBuilder {
    graph: Graph,
    nodes: Vec<sys::CUgraphNode>,
    readers: Vec<Reader>,
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
        Ok(Self { graph, nodes: Vec::new(), readers: Vec::new(), relocation, uploads: Vec::new(), priorities: false })
    }

    fn moved(&self, buffer: usize, delta: u64, old: u64) -> u64 {
        self.relocation.target(buffer).map_or(old, |start| start + delta)
    }

    fn added(&mut self, node: sys::CUgraphNode) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    fn after(&self, after: &[usize]) -> Vec<sys::CUgraphNode> {
        after.iter().map(|&i| self.nodes[i]).collect()
    }

    /// Adds a kernel that depends on the nodes `after` (indices in the order of addition). Its pointers are relocated.
    pub fn kernel(&mut self, node: &KernelNode, pointers: &[Pointer], after: &[usize]) -> Result<usize> {
        let mut arguments = node.arguments.clone();
        for p in pointers {
            if let Some(start) = self.relocation.target(p.buffer) {
                arguments.set_word(p.word, start + p.delta);
            }
        }
        let dependencies = self.after(after);
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
        let input = |p: &Pointer| Some((p.word, self.relocation.input(p.buffer)?, p.delta));
        let inputs: Vec<_> = pointers.iter().filter_map(input).collect();
        if !inputs.is_empty() {
            let launch = ReaderLaunch::Kernel(Box::new(node.params), arguments);
            self.readers.push(Reader { node: new, launch, inputs });
        }
        Ok(self.added(new))
    }

    /// Adds a memset at byte `delta` of `buffer` that depends on the nodes `after`.
    pub fn memset(&mut self, node: &MemsetNode, pointer: Pointer, after: &[usize]) -> Result<usize> {
        let mut params = node.params;
        params.dst = self.moved(pointer.buffer, pointer.delta, params.dst);
        self.add_memset(&params, after)
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
        if from.is_some_and(|from| self.relocation.input(from.buffer).is_some()) {
            // The first launch sets the input's address; until then any memory of this size will do.
            params.srcDevice = params.dstDevice;
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
        if let Some((from, input)) = from.and_then(|from| Some((from, self.relocation.input(from.buffer)?))) {
            let launch = ReaderLaunch::Memcpy(Box::new(params));
            self.readers.push(Reader { node: new, launch, inputs: vec![(0, input, from.delta)] });
        }
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
            inputs: Vec::new(),
            readers: self.readers,
            moved: self.relocation,
            _uploads: self.uploads,
            _keep: keep,
        })
    }
}

fn current_context() -> Result<sys::CUcontext> {
    let mut context = std::ptr::null_mut();
    // SAFETY: `context` receives the handle.
    check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut context) })?;
    Ok(context)
}

/// A graph that can be launched. It owns all memory that its nodes point to, except for the inputs and the arenas,
/// which every launch passes.
pub(in crate::cuda) struct Executable {
    raw: sys::CUgraphExec,
    /// The nodes of `readers` belong to it.
    graph: Graph,
    /// The addresses of the inputs at the last launch.
    inputs: Vec<u64>,
    readers: Vec<Reader>,
    /// Owns the tensors that buffers were relocated into.
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
    /// Inputs whose sizes differ from the captured ones, arenas that differ from the relocation's, or a failed driver
    /// call.
    pub fn launch(&mut self, inputs: &[Tensor], arenas: &[&MemoryBlock]) -> Result<()> {
        let inputs = self.moved.launched_with(inputs, arenas)?;
        self.graph.stream.bind()?;
        if self.inputs != inputs {
            // If an update fails, the next launch sets all addresses again.
            self.inputs.clear();
            for reader in &mut self.readers {
                // SAFETY: the node belongs to the graph that this executable was made from, which is kept unchanged;
                // function, launch shape and size are the node's own; launches in flight keep their old parameters.
                unsafe { reader.read_from(self.raw, &inputs)? };
            }
            self.inputs = inputs;
        }
        // SAFETY: executable and stream exist. The nodes point to memory that is owned by this value, by the module
        // that it keeps, or to inputs and arenas. Those were checked against the captured ones, and the caller's memory
        // is freed in the order of this stream, or later.
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

impl Reader {
    /// Makes the node read inputs at these addresses from the next launch on.
    ///
    /// # Safety
    /// `executable` must be made from the node's graph, and the inputs must have the captured sizes.
    unsafe fn read_from(&mut self, executable: sys::CUgraphExec, inputs: &[u64]) -> Result<()> {
        let node = self.node;
        match &mut self.launch {
            ReaderLaunch::Kernel(params, arguments) => {
                for &(word, input, delta) in &self.inputs {
                    arguments.set_word(word, inputs[input] + delta);
                }
                let mut params = **params;
                arguments.with_raw(|kernel_params, extra| {
                    params.kernelParams = kernel_params;
                    params.extra = extra;
                    // SAFETY: node and executable are valid by the caller's promise; the call copies the arguments.
                    check("cuGraphExecKernelNodeSetParams", unsafe {
                        sys::cuGraphExecKernelNodeSetParams_v2(executable, node, &params)
                    })
                })
            }
            ReaderLaunch::Memcpy(params) => {
                for &(_, input, delta) in &self.inputs {
                    params.srcDevice = inputs[input] + delta;
                }
                // SAFETY: node and executable are valid by the caller's promise.
                check("cuGraphExecMemcpyNodeSetParams", unsafe {
                    sys::cuGraphExecMemcpyNodeSetParams(executable, node, &**params, current_context()?)
                })
            }
        }
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
