//! A captured graph, read back node by node.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::sys;
use hashbrown::{HashMap, HashSet};

use super::interpose::{Call, LibraryCall, ThreadCapture};
use super::kernel::{Functions, KernelNode};
use super::{check, get, Stream};
use crate::{Error, Result};

/// The graph that a capture recorded. Its nodes are templates for the graph that is built from them.
pub(in crate::cuda) struct Captured {
    raw: sys::CUgraph,
    stream: Stream,
    /// Bytes of the uploads that memcpy nodes refer to, by their address.
    uploads: HashMap<usize, Arc<[u8]>>,
    /// Node and first byte of each allocation that Rust asked for, in order.
    allocations: Vec<(usize, u64)>,
    /// Calls of libraries, in order.
    library_calls: Vec<LibraryCall>,
    /// How many tensors from before the capture were dropped in it.
    dropped: usize,
    /// A call that failed meanwhile where it could not return its error: in a destructor.
    failed: Option<Error>,
}

// SAFETY: the driver asks only that calls on one graph do not overlap. `Captured` is not `Sync`, and every use goes
// through a reference.
unsafe impl Send for Captured {}

/// One node of a captured graph.
pub(in crate::cuda) enum Node {
    /// Work.
    Launch(Box<Launch>),
    /// An allocation of the stream-ordered allocator.
    Alloc {
        /// First byte.
        address: u64,
        /// Size.
        bytes: u64,
        /// Whether a library asked for it, and not Rust.
        library: bool,
    },
    /// The end of an allocation's life.
    Free {
        /// First byte.
        address: u64,
    },
    /// Nothing but an order.
    Empty,
    /// What a replay cannot repeat, and why.
    Unsupported(&'static str),
}

/// A node that does something on the device.
pub(in crate::cuda) enum Launch {
    /// A kernel.
    Kernel(KernelNode),
    /// A memset.
    Memset(MemsetNode),
    /// A copy.
    Memcpy(MemcpyNode),
}

impl Launch {
    /// Whether it touches no byte.
    pub fn is_empty(&self) -> bool {
        match self {
            Launch::Kernel(_) => false,
            Launch::Memset(memset) => memset.bytes() == 0,
            Launch::Memcpy(memcpy) => memcpy.bytes() == 0,
        }
    }
}

/// A memset.
pub(in crate::cuda) struct MemsetNode {
    pub(super) params: sys::CUDA_MEMSET_NODE_PARAMS,
}

impl MemsetNode {
    /// First byte written.
    pub fn address(&self) -> u64 {
        self.params.dst
    }

    /// What is written, as often as there is room.
    pub fn value(&self) -> (u32, u32) {
        (self.params.value, self.params.elementSize)
    }

    /// Distance from the first byte to one past the last.
    pub fn bytes(&self) -> u64 {
        let row = self.params.width * self.params.elementSize as usize;
        (self.params.height.saturating_sub(1) * self.params.pitch + row) as u64
    }
}

/// A copy from device to device, or of bytes that were on the host.
pub(in crate::cuda) struct MemcpyNode {
    pub(super) params: sys::CUDA_MEMCPY3D,
    /// The bytes, if they come from the host.
    pub(super) upload: Option<Arc<[u8]>>,
}

impl MemcpyNode {
    /// First byte read, if it is on the device.
    pub fn source(&self) -> Option<u64> {
        self.upload.is_none().then_some(self.params.srcDevice + self.params.srcXInBytes as u64)
    }

    /// First byte written.
    pub fn target(&self) -> u64 {
        self.params.dstDevice + self.params.dstXInBytes as u64
    }

    /// The bytes that are copied, if they come from the host.
    pub fn bytes_on_host(&self) -> Option<&[u8]> {
        self.upload.as_deref()
    }

    /// Bytes copied.
    pub fn bytes(&self) -> u64 {
        self.params.WidthInBytes as u64
    }
}

impl Captured {
    /// Takes over a graph.
    ///
    /// # Safety
    /// `raw` must be null or a graph that nobody else destroys, captured for `stream` while `calls` were noted.
    pub(super) unsafe fn from_raw(raw: sys::CUgraph, stream: Stream, calls: ThreadCapture) -> Option<Self> {
        let failed = stream.take_error();
        let uploads = calls.uploads.iter().map(|bytes| (bytes.as_ptr() as usize, bytes.clone())).collect();
        let ThreadCapture { allocations, library_calls, dropped, .. } = calls;
        let dropped = dropped.len();
        (!raw.is_null()).then_some(Self { raw, stream, uploads, allocations, library_calls, dropped, failed })
    }

    /// How many tensors from before the capture were dropped in it.
    pub fn dropped(&self) -> usize {
        self.dropped
    }

    /// Calls of libraries, each with the range of its nodes among [`nodes`](Self::nodes).
    ///
    /// # Errors
    /// A call of the driver that failed.
    pub fn library_calls(&self) -> Result<Vec<(Range<usize>, &Call)>> {
        let ends = self.after(self.library_calls.iter().flat_map(|call| call.nodes))?;
        let ranges = ends.chunks_exact(2).map(|ends| ends[0]..ends[1]);
        Ok(ranges.zip(self.library_calls.iter().map(|call| &call.call)).collect())
    }

    /// The error of a destructor that ran during the capture.
    pub fn failed(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    /// For each of these positions, which [`position`](super::position) gave during the capture, how many nodes come before it.
    ///
    /// # Errors
    /// A call of the driver that failed.
    pub fn after(&self, positions: impl Iterator<Item = usize>) -> Result<Vec<usize>> {
        let nodes = self.raw_nodes()?;
        let count: HashMap<usize, usize> = nodes.iter().enumerate().map(|(i, &node)| (node as usize, i + 1)).collect();
        Ok(positions.map(|position| count.get(&position).copied().unwrap_or(0)).collect())
    }

    fn raw_nodes(&self) -> Result<Vec<sys::CUgraphNode>> {
        let mut count = 0;
        // SAFETY: with null for nodes the driver writes only the count.
        check("cuGraphGetNodes", unsafe { sys::cuGraphGetNodes(self.raw, std::ptr::null_mut(), &mut count) })?;
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut nodes = vec![std::ptr::null_mut(); count];
        // SAFETY: `nodes` has room for `count` handles.
        check("cuGraphGetNodes", unsafe { sys::cuGraphGetNodes(self.raw, nodes.as_mut_ptr(), &mut count) })?;
        nodes.truncate(count);
        Ok(nodes)
    }

    /// The nodes in an order in which they may run: that of their launches.
    ///
    /// # Errors
    /// A call of the driver that failed.
    pub fn nodes(&self) -> Result<Vec<Node>> {
        self.stream.bind()?;
        let raw = self.raw_nodes()?;
        if !self.in_order(&raw)? {
            return Err(Error::NotCapturable { reason: "the driver lists captured nodes out of order".into() });
        }
        let handles: Vec<usize> = raw.iter().map(|&node| node as usize).collect();
        let mut functions = Functions::default();
        // SAFETY: the handles are nodes of this graph, which outlives the calls.
        let nodes = raw.into_iter().map(|node| unsafe { self.read(node, &mut functions) });
        let mut nodes: Vec<Node> = nodes.collect::<Result<_>>()?;
        let addresses = nodes.iter().map(|node| match node {
            Node::Alloc { address, .. } => Some(*address),
            _ => None,
        });
        let asked: Vec<bool> = asked_for(handles.into_iter().zip(addresses), &self.allocations);
        for (node, asked) in nodes.iter_mut().zip(asked) {
            if let Node::Alloc { library, .. } = node {
                *library = !asked;
            }
        }
        Ok(nodes)
    }

    /// Whether every node comes behind those that it depends on, which the driver does not promise.
    ///
    /// Asked node by node: the driver lists all edges in a time that grows with their square (1.8 s for 145,000 of them,
    /// driver 580).
    fn in_order(&self, nodes: &[sys::CUgraphNode]) -> Result<bool> {
        let mut earlier: HashSet<sys::CUgraphNode> = HashSet::with_capacity(nodes.len());
        let mut before = Vec::new();
        // Edges between kernels launched with overlap carry data, which must be asked for.
        let mut data = Vec::new();
        for &node in nodes {
            let mut count = 0;
            let null = std::ptr::null_mut();
            // SAFETY: the node is one of this graph; with null for nodes the driver writes only the count.
            let status = unsafe { sys::cuGraphNodeGetDependencies_v2(node, null, std::ptr::null_mut(), &mut count) };
            check("cuGraphNodeGetDependencies", status)?;
            before.resize(count, std::ptr::null_mut());
            data.resize(count, sys::CUgraphEdgeData_st { from_port: 0, to_port: 0, type_: 0, reserved: [0; 5] });
            if count > 0 {
                // SAFETY: both arrays have room for `count` entries.
                let status = unsafe {
                    sys::cuGraphNodeGetDependencies_v2(node, before.as_mut_ptr(), data.as_mut_ptr(), &mut count)
                };
                check("cuGraphNodeGetDependencies", status)?;
            }
            if !before.iter().all(|before| earlier.contains(before)) {
                return Ok(false);
            }
            earlier.insert(node);
        }
        Ok(true)
    }

    /// For a capture that nobody will replay: if the module keeps memory that it allocated in it, runs the graph once,
    /// so that this memory exists.
    ///
    /// # Errors
    /// A call of the driver that failed: the module may then hold tensors without memory, and cannot run eagerly either. So
    /// this is never [`Error::OutOfMemory`].
    pub fn settle(&self) -> Result<()> {
        self.run_for_what_is_kept().map_err(|error| match error {
            Error::OutOfMemory { source } => *source,
            error => error,
        })
    }

    fn run_for_what_is_kept(&self) -> Result<()> {
        let mut kept = 0;
        for node in self.raw_nodes()? {
            // SAFETY: the node belongs to this graph, and the call writes its type.
            match unsafe { get("cuGraphNodeGetType", |kind| sys::cuGraphNodeGetType(node, kind))? } {
                sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC => kept += 1,
                sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE => kept -= 1,
                _ => {}
            }
        }
        if kept == 0 {
            return Ok(());
        }
        self.stream.bind()?;
        let mut executable = std::ptr::null_mut();
        // SAFETY: the graph is whole; its pointers are those of a forward pass whose tensors the caller still holds.
        unsafe {
            check("cuGraphInstantiate", sys::cuGraphInstantiateWithFlags(&mut executable, self.raw, 0))?;
            let launched = check("cuGraphLaunch", sys::cuGraphLaunch(executable, self.stream.raw()));
            let ended = self.stream.wait_for_all();
            let destroyed = check("cuGraphExecDestroy", sys::cuGraphExecDestroy(executable));
            launched.and(ended).and(destroyed)
        }
    }

    /// Reads one node.
    ///
    /// # Safety
    /// `node` must belong to this graph.
    unsafe fn read(&self, node: sys::CUgraphNode, functions: &mut Functions) -> Result<Node> {
        use sys::CUgraphNodeType::*;
        // SAFETY: the caller vouches for the node, and each call writes a whole structure of the type that it is given.
        unsafe {
            Ok(match get("cuGraphNodeGetType", |kind| sys::cuGraphNodeGetType(node, kind))? {
                CU_GRAPH_NODE_TYPE_KERNEL => {
                    let params = get("cuGraphKernelNodeGetParams", |p| sys::cuGraphKernelNodeGetParams_v2(node, p))?;
                    Node::Launch(Box::new(Launch::Kernel(functions.kernel(node, params)?)))
                }
                CU_GRAPH_NODE_TYPE_MEMSET => Node::Launch(Box::new(Launch::Memset(MemsetNode {
                    params: get("cuGraphMemsetNodeGetParams", |p| sys::cuGraphMemsetNodeGetParams(node, p))?,
                }))),
                CU_GRAPH_NODE_TYPE_MEMCPY => {
                    self.memcpy(get("cuGraphMemcpyNodeGetParams", |p| sys::cuGraphMemcpyNodeGetParams(node, p))?)
                }
                CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
                    let params: sys::CUDA_MEM_ALLOC_NODE_PARAMS =
                        get("cuGraphMemAllocNodeGetParams", |p| sys::cuGraphMemAllocNodeGetParams(node, p))?;
                    Node::Alloc { address: params.dptr, bytes: params.bytesize as u64, library: true }
                }
                CU_GRAPH_NODE_TYPE_MEM_FREE => Node::Free {
                    address: get("cuGraphMemFreeNodeGetParams", |p| sys::cuGraphMemFreeNodeGetParams(node, p))?,
                },
                CU_GRAPH_NODE_TYPE_EMPTY => Node::Empty,
                CU_GRAPH_NODE_TYPE_HOST => Node::Unsupported("it calls a function on the host"),
                CU_GRAPH_NODE_TYPE_GRAPH => Node::Unsupported("it launches a graph of its own"),
                _ => Node::Unsupported("it waits for or signals something outside itself"),
            })
        }
    }

    fn memcpy(&self, params: sys::CUDA_MEMCPY3D) -> Node {
        use sys::CUmemorytype::*;
        // The driver reports device pointers of linear copies as unified addresses, too.
        let on_device = |kind| matches!(kind, CU_MEMORYTYPE_DEVICE | CU_MEMORYTYPE_UNIFIED);
        let offsets = [params.srcY, params.srcZ, params.dstY, params.dstZ];
        if offsets != [0; 4] || params.Height > 1 || params.Depth > 1 {
            return Node::Unsupported("it copies in more than one dimension");
        }
        let upload = self.uploads.get(&(params.srcHost as usize));
        let upload = upload.filter(|bytes| bytes.len() == params.WidthInBytes).cloned();
        let from_host = params.srcMemoryType == CU_MEMORYTYPE_HOST && params.srcXInBytes == 0;
        if !on_device(params.dstMemoryType) || !(on_device(params.srcMemoryType) || from_host && upload.is_some()) {
            return Node::Unsupported("it copies between host and device in a way that cannot be repeated");
        }
        Node::Launch(Box::new(Launch::Memcpy(MemcpyNode { params, upload: upload.filter(|_| from_host) })))
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        if self.stream.bind_to_drop() {
            // SAFETY: this value owns the graph; executables made from its templates do not refer to it.
            unsafe { sys::cuGraphDestroy(self.raw) };
        }
    }
}

// SAFETY: a launch is a handle and copied parameters; the graph that it belongs to is kept beside it and not changed.
unsafe impl Send for Launch {}

/// For each node, given with the address if it allocates, whether it is one of the allocations that were `asked` for:
/// by its handle, or, should the driver not have told that, by the order of addresses.
fn asked_for(nodes: impl Iterator<Item = (usize, Option<u64>)> + Clone, asked: &[(usize, u64)]) -> Vec<bool> {
    let handles: HashSet<usize> = asked.iter().map(|&(handle, _)| handle).collect();
    let found: Vec<bool> = nodes.clone().map(|(handle, a)| a.is_some() && handles.contains(&handle)).collect();
    if found.iter().filter(|&&found| found).count() == asked.len() {
        return found;
    }
    let mut rest = asked.iter().peekable();
    nodes.map(|(_, address)| rest.next_if(|&&(_, next)| address == Some(next)).is_some()).collect()
}

#[cfg(test)]
mod tests {
    use super::asked_for;

    #[test]
    fn allocations_of_a_library_stand_between_those_of_rust() {
        // A kernel, then allocations of Rust's, of a library at the same address later, and of Rust's again.
        let nodes = [(1, None), (2, Some(10)), (3, Some(20)), (4, Some(10)), (5, Some(10))];
        let asked = |asked: &[(usize, u64)]| asked_for(nodes.into_iter(), asked);
        assert_eq!(asked(&[(2, 10), (5, 10)]), [false, true, false, false, true]);
        assert_eq!(asked(&[(0, 10), (0, 10)]), [false, true, false, true, false], "by the order of addresses");
        assert_eq!(asked(&[]), [false; 5]);
    }
}
