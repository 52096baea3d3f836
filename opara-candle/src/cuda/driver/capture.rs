//! A captured graph, read back node by node.

use std::ffi::{c_char, CStr};
use std::sync::Arc;

use cudarc::driver::sys;

use super::{check, Arguments, Stream};
use crate::trace::Launch;
use crate::{Error, Result};

/// The graph that a capture recorded. Its nodes are templates for the graph that is built from them.
pub(in crate::cuda) struct Captured {
    raw: sys::CUgraph,
    stream: Stream,
    /// Bytes of the uploads that memcpy nodes refer to.
    uploads: Vec<Arc<[u8]>>,
    /// A call that failed meanwhile where it could not return its error: in a destructor.
    failed: Option<Error>,
}

// SAFETY: the driver asks only that calls on one graph do not overlap. `Captured` is not `Sync`, and every use goes
// through a reference.
unsafe impl Send for Captured {}

/// One node of a captured graph.
pub(in crate::cuda) enum Node {
    /// A kernel launch.
    Kernel(KernelNode),
    /// A memset.
    Memset(MemsetNode),
    /// A copy.
    Memcpy(MemcpyNode),
    /// An allocation of the stream-ordered allocator.
    Alloc {
        /// First byte.
        address: u64,
        /// Size.
        bytes: u64,
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

/// A kernel launch with its arguments.
pub(in crate::cuda) struct KernelNode {
    pub name: String,
    pub launch: Launch,
    pub arguments: Arguments,
    /// Geometry and function; its argument pointers are null.
    pub(super) params: sys::CUDA_KERNEL_NODE_PARAMS,
    /// The node that attributes are copied from.
    pub(super) template: sys::CUgraphNode,
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

    /// Bytes copied.
    pub fn bytes(&self) -> u64 {
        self.params.WidthInBytes as u64
    }
}

impl Captured {
    /// Takes over a graph.
    ///
    /// # Safety
    /// `raw` must be null or a graph that nobody else destroys, captured on `stream`; host addresses in it are those of
    /// `uploads`.
    pub(super) unsafe fn from_raw(raw: sys::CUgraph, stream: Stream, uploads: Vec<Arc<[u8]>>) -> Option<Self> {
        let failed = stream.take_error();
        (!raw.is_null()).then_some(Self { raw, stream, uploads, failed })
    }

    /// The error of a destructor that ran during the capture: that of a tensor from before it, most likely.
    pub fn failed(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    fn raw_nodes(&self) -> Result<Vec<sys::CUgraphNode>> {
        let mut count = 0;
        // SAFETY: with null for nodes the driver writes only the count.
        check("cuGraphGetNodes", unsafe { sys::cuGraphGetNodes(self.raw, std::ptr::null_mut(), &mut count) })?;
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
        // SAFETY: the handles are nodes of this graph, which outlives the calls.
        raw.into_iter().map(|node| unsafe { self.read(node) }).collect()
    }

    /// Whether every edge leads forward in the given order, which the driver does not promise.
    fn in_order(&self, nodes: &[sys::CUgraphNode]) -> Result<bool> {
        let mut count = 0;
        let null = std::ptr::null_mut();
        // SAFETY: with null for edges the driver writes only the count.
        let status = unsafe { sys::cuGraphGetEdges_v2(self.raw, null, null, std::ptr::null_mut(), &mut count) };
        check("cuGraphGetEdges", status)?;
        let mut from = vec![std::ptr::null_mut(); count];
        let mut to = from.clone();
        // Edges between kernels launched with overlap carry data, which must be asked for.
        let mut data = vec![sys::CUgraphEdgeData_st { from_port: 0, to_port: 0, type_: 0, reserved: [0; 5] }; count];
        // SAFETY: the three arrays have room for `count` entries.
        let status = unsafe {
            sys::cuGraphGetEdges_v2(self.raw, from.as_mut_ptr(), to.as_mut_ptr(), data.as_mut_ptr(), &mut count)
        };
        check("cuGraphGetEdges", status)?;
        let position: hashbrown::HashMap<_, _> = nodes.iter().enumerate().map(|(i, n)| (*n, i)).collect();
        Ok(from.iter().zip(&to).all(|(a, b)| position.get(a) < position.get(b)))
    }

    /// Runs the graph once as it was captured, so that memory which it allocates and does not free exists.
    ///
    /// # Errors
    /// A call of the driver that failed.
    pub fn run_once(&self) -> Result<()> {
        self.stream.bind()?;
        let mut executable = std::ptr::null_mut();
        // SAFETY: the graph is whole; its pointers are those of a forward pass whose tensors the caller still holds.
        unsafe {
            check("cuGraphInstantiate", sys::cuGraphInstantiateWithFlags(&mut executable, self.raw, 0))?;
            let launched = check("cuGraphLaunch", sys::cuGraphLaunch(executable, self.stream.raw()));
            self.stream.synchronize_device()?;
            check("cuGraphExecDestroy", sys::cuGraphExecDestroy(executable))?;
            launched
        }
    }

    /// Reads one node.
    ///
    /// # Safety
    /// `node` must belong to this graph.
    unsafe fn read(&self, node: sys::CUgraphNode) -> Result<Node> {
        use sys::CUgraphNodeType::*;
        // SAFETY: the caller vouches for the node, and each call writes a whole structure of the type that it is given.
        unsafe {
            Ok(match get("cuGraphNodeGetType", |kind| sys::cuGraphNodeGetType(node, kind))? {
                CU_GRAPH_NODE_TYPE_KERNEL => {
                    let params = get("cuGraphKernelNodeGetParams", |p| sys::cuGraphKernelNodeGetParams_v2(node, p))?;
                    Node::Kernel(kernel(node, params)?)
                }
                CU_GRAPH_NODE_TYPE_MEMSET => Node::Memset(MemsetNode {
                    params: get("cuGraphMemsetNodeGetParams", |p| sys::cuGraphMemsetNodeGetParams(node, p))?,
                }),
                CU_GRAPH_NODE_TYPE_MEMCPY => {
                    self.memcpy(get("cuGraphMemcpyNodeGetParams", |p| sys::cuGraphMemcpyNodeGetParams(node, p))?)
                }
                CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
                    let params: sys::CUDA_MEM_ALLOC_NODE_PARAMS =
                        get("cuGraphMemAllocNodeGetParams", |p| sys::cuGraphMemAllocNodeGetParams(node, p))?;
                    Node::Alloc { address: params.dptr, bytes: params.bytesize as u64 }
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
        let host = params.srcHost.cast::<u8>();
        let upload = self.uploads.iter().find(|u| u.as_ptr() == host && u.len() == params.WidthInBytes).cloned();
        let from_host = params.srcMemoryType == CU_MEMORYTYPE_HOST && params.srcXInBytes == 0;
        if !on_device(params.dstMemoryType) || !(on_device(params.srcMemoryType) || from_host && upload.is_some()) {
            return Node::Unsupported("it copies between host and device in a way that cannot be repeated");
        }
        Node::Memcpy(MemcpyNode { params, upload: upload.filter(|_| from_host) })
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        if self.stream.bind().is_ok() {
            // SAFETY: this value owns the graph; executables made from its templates do not refer to it.
            unsafe { sys::cuGraphDestroy(self.raw) };
        }
    }
}

/// What a call of the driver writes through its out-parameter.
///
/// # Safety
/// `f` must initialise its argument whenever it succeeds.
unsafe fn get<T>(call: &'static str, f: impl FnOnce(*mut T) -> sys::CUresult) -> Result<T> {
    let mut value = std::mem::MaybeUninit::zeroed();
    check(call, f(value.as_mut_ptr()))?;
    // SAFETY: the call succeeded, so the value is whole.
    Ok(unsafe { value.assume_init() })
}

/// Name, attributes and arguments of a kernel node.
///
/// # Safety
/// `params` must be what the driver returned for `node`, which exists.
unsafe fn kernel(node: sys::CUgraphNode, mut params: sys::CUDA_KERNEL_NODE_PARAMS) -> Result<KernelNode> {
    use sys::CUfunction_attribute::*;
    // SAFETY: the caller vouches for the node, and so for its function; names are the driver's own strings.
    unsafe {
        if params.func.is_null() {
            check("cuKernelGetFunction", sys::cuKernelGetFunction(&mut params.func, params.kern))?;
        }
        let function = params.func;
        let name: *const c_char = get("cuFuncGetName", |name| sys::cuFuncGetName(name, function))?;
        let name = if name.is_null() { "unknown".into() } else { CStr::from_ptr(name).to_string_lossy().into_owned() };
        let attribute = |which| {
            get("cuFuncGetAttribute", |value| sys::cuFuncGetAttribute(value, which, function)).map(|v: i32| v as u32)
        };
        let block = [params.blockDimX, params.blockDimY, params.blockDimZ];
        let threads = block.iter().product::<u32>() as i32;
        let resident: i32 = get("cuOccupancyMaxActiveBlocksPerMultiprocessor", |blocks| {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, params.sharedMemBytes as usize)
        })?;
        let launch = Launch {
            grid: [params.gridDimX, params.gridDimY, params.gridDimZ],
            block,
            registers: attribute(CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            static_shared: attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            dynamic_shared: params.sharedMemBytes,
            resident_blocks: resident as u32,
        };
        let arguments = Arguments::read(function, &params)?;
        params.kernelParams = std::ptr::null_mut();
        params.extra = std::ptr::null_mut();
        params.kern = std::ptr::null_mut();
        Ok(KernelNode { name, launch, arguments, params, template: node })
    }
}

// SAFETY: a node is a handle and copied parameters; the graph that it belongs to is kept beside it and not changed.
unsafe impl Send for Node {}
