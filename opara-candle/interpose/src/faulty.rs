//! For tests: further driver functions, interposed only to [inject failures](super::faults).

use std::ffi::{c_char, c_int, c_uint, c_ulonglong};

use cudarc::driver::sys::*;

const MISSING: CUresult = CUresult::CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;

/// Defines functions that only forward their calls.
macro_rules! faulty {
    ($(fn $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        super::interpose! {
            /// The driver's function.
            fn $name($($argument: $type),*) -> CUresult, missing MISSING;
            // SAFETY: the arguments are the caller's.
            |next| unsafe { next($($argument),*) }
        }
    )*};
}

faulty! {
    fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
    fn cuMemFree_v2(address: CUdeviceptr);
    fn cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const CUmemPoolProps);
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    fn cuStreamUpdateCaptureDependencies_v2(
        stream: CUstream, before: *mut CUgraphNode, edges: *const CUgraphEdgeData, count: usize, flags: c_uint
    );
    fn cuEventCreate(event: *mut CUevent, flags: c_uint);
    fn cuEventSynchronize(event: CUevent);
    fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    fn cuFuncGetAttribute(value: *mut c_int, attribute: CUfunction_attribute, function: CUfunction);
    fn cuGraphCreate(graph: *mut CUgraph, flags: c_uint);
    fn cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize);
    fn cuGraphNodeGetType(node: CUgraphNode, of: *mut CUgraphNodeType);
    fn cuGraphNodeGetDependencies_v2(
        node: CUgraphNode, before: *mut CUgraphNode, edges: *mut CUgraphEdgeData, count: *mut usize
    );
    fn cuGraphKernelNodeGetParams_v2(node: CUgraphNode, params: *mut CUDA_KERNEL_NODE_PARAMS);
    fn cuGraphAddKernelNode_v2(
        node: *mut CUgraphNode, graph: CUgraph, before: *const CUgraphNode, count: usize,
        params: *const CUDA_KERNEL_NODE_PARAMS
    );
    fn cuGraphAddMemsetNode(
        node: *mut CUgraphNode, graph: CUgraph, before: *const CUgraphNode, count: usize,
        params: *const CUDA_MEMSET_NODE_PARAMS, context: CUcontext
    );
    fn cuGraphAddMemcpyNode(
        node: *mut CUgraphNode, graph: CUgraph, before: *const CUgraphNode, count: usize,
        params: *const CUDA_MEMCPY3D, context: CUcontext
    );
    fn cuGraphAddEmptyNode(node: *mut CUgraphNode, graph: CUgraph, before: *const CUgraphNode, count: usize);
    fn cuGraphKernelNodeCopyAttributes(to: CUgraphNode, from: CUgraphNode);
    fn cuGraphInstantiateWithFlags(executable: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong);
    fn cuGraphExecKernelNodeSetParams_v2(
        executable: CUgraphExec, node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS
    );
    fn cuGraphExecMemcpyNodeSetParams(
        executable: CUgraphExec, node: CUgraphNode, params: *const CUDA_MEMCPY3D, context: CUcontext
    );
}
