//! Reads a captured graph node by node.

use std::iter::{from_fn, Peekable};
use std::ops::Range;
use std::slice::Iter;
use std::sync::Arc;

use cudarc::driver::sys;
use hashbrown::{HashMap, HashSet};
use opara_interpose::{Call, Held, LibraryCall, MemoryEvent, MemoryEventKind, Recorded};

use super::kernel::{Functions, KernelNode};
use super::{check, get, Stream};
use crate::{Error, Result};

/// The graph that a capture recorded. Its nodes are the templates for the graph that is built from it.
pub(in crate::cuda) struct CapturedGraph {
    raw: sys::CUgraph,
    /// Tensors whose frees are put off until this is dropped: before the stream, on which they are freed.
    _held: Held,
    stream: Stream,
    /// Bytes of the uploads that memcpy nodes refer to, by host address.
    uploads: HashMap<usize, Arc<[u8]>>,
    /// Allocations and frees in order. Allocations of libraries are nodes of the graph instead.
    memory: Vec<MemoryEvent>,
    /// Library calls in order.
    library_calls: Vec<LibraryCall>,
    /// Number of tensors from before the capture that were dropped during it.
    dropped: usize,
}

// SAFETY: the driver only requires that calls on one graph do not overlap. `CapturedGraph` is not `Sync`, and every use
// goes through a reference.
unsafe impl Send for CapturedGraph {}

/// One node of a captured graph.
pub(in crate::cuda) enum Node {
    /// Work on the device.
    Launch(Box<LaunchNode>),
    /// An allocation of the stream-ordered allocator.
    Alloc {
        /// First byte.
        address: u64,
        /// Size.
        bytes: u64,
        /// Did a library allocate it, and not Rust code?
        library: bool,
    },
    /// The end of an allocation's life.
    Free {
        /// First byte.
        address: u64,
    },
    /// A node that only orders others.
    Empty,
    /// A node that a replay cannot repeat, with the reason.
    Unsupported(&'static str),
}

/// A node that does work on the device.
#[derive(Clone)]
pub(in crate::cuda) enum LaunchNode {
    /// A kernel.
    Kernel(KernelNode),
    /// A memset.
    Memset(MemsetNode),
    /// A copy.
    Memcpy(MemcpyNode),
}

impl LaunchNode {
    /// Does it write no byte?
    pub fn is_empty(&self) -> bool {
        match self {
            LaunchNode::Kernel(_) => false,
            LaunchNode::Memset(memset) => memset.bytes() == 0,
            LaunchNode::Memcpy(memcpy) => memcpy.bytes() == 0,
        }
    }
}

impl LaunchNode {
    /// Sets the pointer at an offset of the arguments, as in [`Pointer`](super::Pointer), to this address.
    pub fn point(&mut self, word: usize, address: u64) {
        match self {
            LaunchNode::Kernel(kernel) => kernel.arguments.set_word(word, address),
            LaunchNode::Memset(memset) => memset.params.dst = address,
            LaunchNode::Memcpy(memcpy) if word == 0 && memcpy.upload.is_none() => {
                (memcpy.params.srcDevice, memcpy.params.srcXInBytes) = (address, 0);
            }
            LaunchNode::Memcpy(memcpy) => (memcpy.params.dstDevice, memcpy.params.dstXInBytes) = (address, 0),
        }
    }
}

/// A memset.
#[derive(Clone)]
pub(in crate::cuda) struct MemsetNode {
    pub(super) params: sys::CUDA_MEMSET_NODE_PARAMS,
}

impl MemsetNode {
    /// First byte written.
    pub fn address(&self) -> u64 {
        self.params.dst
    }

    /// The repeated value, and its size in bytes.
    pub fn value(&self) -> (u32, u32) {
        (self.params.value, self.params.elementSize)
    }

    /// Bytes from the first to the last byte written.
    pub fn bytes(&self) -> u64 {
        let row = self.params.width * self.params.elementSize as usize;
        (self.params.height.saturating_sub(1) * self.params.pitch + row) as u64
    }
}

/// A copy from device to device, or from bytes that were on the host.
#[derive(Clone)]
pub(in crate::cuda) struct MemcpyNode {
    pub(super) params: sys::CUDA_MEMCPY3D,
    /// The bytes, for a copy from the host.
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

    /// The copied bytes, for a copy from the host.
    pub fn bytes_on_host(&self) -> Option<&[u8]> {
        self.upload.as_deref()
    }

    /// Bytes copied.
    pub fn bytes(&self) -> u64 {
        self.params.WidthInBytes as u64
    }
}

impl CapturedGraph {
    /// Takes ownership of a graph.
    ///
    /// # Safety
    /// `raw` must be null, or a graph that nothing else destroys and that was captured for `stream` while `calls` were
    /// recorded.
    pub(super) unsafe fn from_raw(raw: sys::CUgraph, stream: Stream, calls: Recorded) -> Option<Self> {
        let uploads = calls.uploads.iter().map(|bytes| (bytes.as_ptr() as usize, bytes.clone())).collect();
        let Recorded { memory, library_calls, dropped, held, .. } = calls;
        (!raw.is_null()).then_some(Self { raw, stream, uploads, memory, library_calls, dropped, _held: held })
    }

    /// Number of tensors from before the capture that were dropped during it.
    pub fn dropped(&self) -> usize {
        self.dropped
    }

    /// Library calls, each with the range of its nodes in [`nodes`](Self::nodes).
    ///
    /// # Errors
    /// A failed driver call.
    pub fn library_calls(&self) -> Result<Vec<(Range<usize>, &Call)>> {
        let ends = self.after(self.library_calls.iter().flat_map(|call| call.nodes))?;
        let ranges = ends.chunks_exact(2).map(|ends| ends[0]..ends[1]);
        Ok(ranges.zip(self.library_calls.iter().map(|call| &call.call)).collect())
    }

    /// For each position, which [`position`](super::position) gave during the capture: the number of
    /// [`nodes`](Self::nodes) before it.
    ///
    /// # Errors
    /// A failed driver call.
    pub fn after(&self, positions: impl Iterator<Item = usize>) -> Result<Vec<usize>> {
        let mut events = self.memory.iter().peekable();
        let mut before = events_after(0, &mut events).count();
        let mut count: HashMap<usize, usize> = HashMap::new();
        for node in self.raw_nodes()? {
            before += 1;
            count.insert(node as usize, before);
            before += events_after(node as usize, &mut events).count();
        }
        Ok(positions.map(|position| count.get(&position).copied().unwrap_or(0)).collect())
    }

    fn raw_nodes(&self) -> Result<Vec<sys::CUgraphNode>> {
        let mut count = 0;
        // SAFETY: with a null array the driver only writes the count.
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

    /// The nodes in launch order, which is a valid execution order.
    ///
    /// # Errors
    /// A failed driver call.
    pub fn nodes(&self) -> Result<Vec<Node>> {
        self.stream.bind()?;
        let raw = self.raw_nodes()?;
        if !self.in_order(&raw)? {
            return Err(Error::NotCapturable { reason: "the driver lists captured nodes out of order".into() });
        }
        let mut functions = Functions::default();
        let mut events = self.memory.iter().peekable();
        let mut nodes = Vec::with_capacity(raw.len() + self.memory.len());
        let mut previous = 0;
        for node in raw {
            nodes.extend(events_after(previous, &mut events));
            // SAFETY: the handle is a node of this graph, which outlives the call.
            nodes.push(unsafe { self.read(node, &mut functions)? });
            previous = node as usize;
        }
        nodes.extend(events_after(previous, &mut events));
        match events.next() {
            None => Ok(nodes),
            Some(_) => {
                let message =
                    "an allocation or a free belongs to a node that the captured graph does not contain".into();
                Err(Error::Internal { message })
            }
        }
    }

    /// Does every node come after its dependencies? The driver does not promise that.
    ///
    /// Queries each node by itself: listing all edges at once takes the driver quadratic time (1.8 s for 145,000 edges,
    /// driver 580).
    fn in_order(&self, nodes: &[sys::CUgraphNode]) -> Result<bool> {
        let mut earlier: HashSet<sys::CUgraphNode> = HashSet::with_capacity(nodes.len());
        let mut before = Vec::new();
        // Edges between kernels with programmatic overlap carry data; the query fails unless it asks for that data.
        let mut data = Vec::new();
        for &node in nodes {
            let mut count = 0;
            let null = std::ptr::null_mut();
            // SAFETY: the node belongs to this graph; with null arrays the driver only writes the count.
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

    /// Reads one node.
    ///
    /// # Safety
    /// `node` must belong to this graph.
    unsafe fn read(&self, node: sys::CUgraphNode, functions: &mut Functions) -> Result<Node> {
        use sys::CUgraphNodeType::*;
        // SAFETY: the node belongs to this graph by the caller's promise, and each call writes a whole structure of the
        // given type.
        unsafe {
            Ok(match get("cuGraphNodeGetType", |kind| sys::cuGraphNodeGetType(node, kind))? {
                CU_GRAPH_NODE_TYPE_KERNEL => {
                    let params = get("cuGraphKernelNodeGetParams", |p| sys::cuGraphKernelNodeGetParams_v2(node, p))?;
                    Node::Launch(Box::new(LaunchNode::Kernel(functions.kernel(node, params)?)))
                }
                CU_GRAPH_NODE_TYPE_MEMSET => Node::Launch(Box::new(LaunchNode::Memset(MemsetNode {
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
                CU_GRAPH_NODE_TYPE_HOST => Node::Unsupported("it calls a host function"),
                CU_GRAPH_NODE_TYPE_GRAPH => Node::Unsupported("it launches a child graph"),
                _ => Node::Unsupported("it waits for or signals an event outside the graph"),
            })
        }
    }

    fn memcpy(&self, params: sys::CUDA_MEMCPY3D) -> Node {
        use sys::CUmemorytype::*;
        // For linear copies the driver also reports device pointers as unified addresses.
        let on_device = |kind| matches!(kind, CU_MEMORYTYPE_DEVICE | CU_MEMORYTYPE_UNIFIED);
        let offsets = [params.srcY, params.srcZ, params.dstY, params.dstZ];
        if offsets != [0; 4] || params.Height > 1 || params.Depth > 1 {
            return Node::Unsupported("it copies in more than one dimension");
        }
        let upload = self.uploads.get(&(params.srcHost as usize));
        let upload = upload.filter(|bytes| bytes.len() == params.WidthInBytes).cloned();
        let from_host = params.srcMemoryType == CU_MEMORYTYPE_HOST && params.srcXInBytes == 0;
        if !on_device(params.dstMemoryType) || !(on_device(params.srcMemoryType) || from_host && upload.is_some()) {
            return Node::Unsupported("it copies between host and device, other than an upload of known bytes");
        }
        Node::Launch(Box::new(LaunchNode::Memcpy(MemcpyNode { params, upload: upload.filter(|_| from_host) })))
    }
}

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        if self.stream.make_current() {
            // SAFETY: this value owns the graph; executables made from its nodes do not refer to it.
            unsafe { sys::cuGraphDestroy(self.raw) };
        }
    }
}

// SAFETY: a launch is a handle and copied parameters; the graph that owns the handle is kept beside it, unchanged.
unsafe impl Send for LaunchNode {}

/// Takes the events between this node and the next one.
fn events_after<'e, 'a>(
    node: usize,
    events: &'e mut Peekable<Iter<'a, MemoryEvent>>,
) -> impl Iterator<Item = Node> + use<'e, 'a> {
    from_fn(move || {
        let MemoryEvent { address, kind, .. } = *events.next_if(|event| event.after == node)?;
        Some(match kind {
            MemoryEventKind::Allocated { bytes, library } => Node::Alloc { address, bytes: bytes as u64, library },
            MemoryEventKind::Freed => Node::Free { address },
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_and_frees_follow_their_node() {
        let allocated = |after, address| MemoryEvent {
            after,
            address,
            kind: MemoryEventKind::Allocated { bytes: 4, library: false },
        };
        let events =
            [allocated(0, 1), allocated(7, 2), MemoryEvent { after: 7, address: 1, kind: MemoryEventKind::Freed }];
        let mut events = events.iter().peekable();
        let mut after = |node| -> Vec<(bool, u64)> {
            events_after(node, &mut events)
                .filter_map(|node| match node {
                    Node::Alloc { address, .. } => Some((true, address)),
                    Node::Free { address } => Some((false, address)),
                    _ => None,
                })
                .collect()
        };
        assert_eq!([after(0), after(5), after(7)], [vec![(true, 1)], vec![], vec![(true, 2), (false, 1)]]);
        assert!(events.next().is_none());
    }
}
