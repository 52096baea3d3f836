//! A graph built node by node, and the executable made from it.

use std::any::Any;
use std::sync::Arc;

use candle::Tensor;
use cudarc::driver::sys;

use super::capture::{KernelNode, MemcpyNode, MemsetNode};
use super::{address_of, check, Relocation, Stream};
use crate::Result;

/// A pointer in a node's arguments: which buffer it points into, and how far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cuda) struct Pointer {
    /// Offset of the word among the arguments.
    pub word: usize,
    /// The buffer.
    pub buffer: usize,
    /// Bytes from the buffer's start.
    pub delta: u64,
}

/// A graph under construction.
pub(in crate::cuda) struct GraphBuilder {
    raw: sys::CUgraph,
    nodes: Vec<sys::CUgraphNode>,
    relocation: Relocation,
    /// Bytes on the host that memcpy nodes read.
    uploads: Vec<Arc<[u8]>>,
    stream: Stream,
}

impl GraphBuilder {
    /// An empty graph whose nodes' pointers move as `relocation` says.
    pub fn new(stream: &Stream, relocation: Relocation) -> Result<Self> {
        stream.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` receives the new graph.
        check("cuGraphCreate", unsafe { sys::cuGraphCreate(&mut raw, 0) })?;
        Ok(Self { raw, nodes: Vec::new(), relocation, uploads: Vec::new(), stream: stream.clone() })
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

    /// Adds a kernel behind the nodes `after`, given by the order in which they were added; pointers move.
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
            // SAFETY: the function is the captured node's, whose module candle's device or the library keeps loaded;
            // the arguments have its layout and are copied by the call. Every pointer among them either moved into a
            // tensor that the relocation owns and found large enough, or is one that the module's own forward pass
            // handed over, to memory that the module keeps (`Executable::new`). The template is a node of the captured
            // graph, which the caller holds.
            unsafe {
                check(
                    "cuGraphAddKernelNode",
                    sys::cuGraphAddKernelNode_v2(
                        &mut new,
                        self.raw,
                        dependencies.as_ptr(),
                        dependencies.len(),
                        &params,
                    ),
                )?;
                check("cuGraphKernelNodeCopyAttributes", sys::cuGraphKernelNodeCopyAttributes(new, node.template))
            }
        })?;
        Ok(self.added(new))
    }

    /// Adds a memset of the bytes `delta` into `buffer`, behind the nodes `after`.
    pub fn memset(&mut self, node: &MemsetNode, pointer: Pointer, after: &[usize]) -> Result<usize> {
        let mut params = node.params;
        params.dst = self.moved(pointer.buffer, pointer.delta, params.dst);
        self.add_memset(&params, after)
    }

    /// Fills a contiguous tensor, which the graph keeps, with one byte value, behind the nodes `after`.
    pub fn fill(&mut self, tensor: &Tensor, value: u8, after: &[usize]) -> Result<usize> {
        let width = tensor.elem_count() * tensor.dtype().size_in_bytes();
        self.relocation.keep(tensor);
        let (dst, value) = (address_of(tensor)?, value.into());
        self.add_memset(
            &sys::CUDA_MEMSET_NODE_PARAMS { dst, pitch: width, value, elementSize: 1, width, height: 1 },
            after,
        )
    }

    fn add_memset(&mut self, params: &sys::CUDA_MEMSET_NODE_PARAMS, after: &[usize]) -> Result<usize> {
        let dependencies = self.after(after);
        let mut new = std::ptr::null_mut();
        // SAFETY: the target moved into a tensor that the relocation owns, or is memory that the module keeps; the
        // context is the current one.
        check("cuGraphAddMemsetNode", unsafe {
            sys::cuGraphAddMemsetNode(
                &mut new,
                self.raw,
                dependencies.as_ptr(),
                dependencies.len(),
                params,
                current_context()?,
            )
        })?;
        Ok(self.added(new))
    }

    /// Adds a copy from `from`, or of the node's own bytes, to `to`, behind the nodes `after`.
    pub fn memcpy(&mut self, node: &MemcpyNode, from: Option<Pointer>, to: Pointer, after: &[usize]) -> Result<usize> {
        let mut params = node.params;
        if let (Some(from), Some(source)) = (from, node.source()) {
            params.srcDevice = self.moved(from.buffer, from.delta, source);
        }
        params.dstDevice = self.moved(to.buffer, to.delta, node.target());
        (params.srcXInBytes, params.dstXInBytes) = (0, 0);
        self.uploads.extend(node.upload.clone());
        let dependencies = self.after(after);
        let mut new = std::ptr::null_mut();
        // SAFETY: as for a memset, for both ends of the copy; bytes on the host are kept beside the graph.
        check("cuGraphAddMemcpyNode", unsafe {
            sys::cuGraphAddMemcpyNode(
                &mut new,
                self.raw,
                dependencies.as_ptr(),
                dependencies.len(),
                &params,
                current_context()?,
            )
        })?;
        Ok(self.added(new))
    }

    /// The executable, uploaded to the device. `keep` owns what pointers that did not move point at: the module.
    pub fn instantiate(mut self, keep: Box<dyn Any + Send + Sync>) -> Result<Executable> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the graph is whole and owned here; `raw` receives the executable.
        check("cuGraphInstantiate", unsafe { sys::cuGraphInstantiateWithFlags(&mut raw, self.raw, 0) })?;
        let uploads = std::mem::take(&mut self.uploads);
        let (stream, moved) = (self.stream.clone(), self.relocation.clone());
        let executable = Executable { raw, stream, _moved: moved, _uploads: uploads, _keep: keep };
        // SAFETY: executable and stream exist.
        check("cuGraphUpload", unsafe { sys::cuGraphUpload(raw, executable.stream.raw()) })?;
        Ok(executable)
    }
}

impl Drop for GraphBuilder {
    fn drop(&mut self) {
        if self.stream.bind().is_ok() {
            // SAFETY: this value owns the graph; an executable made from it holds a copy.
            unsafe { sys::cuGraphDestroy(self.raw) };
        }
    }
}

fn current_context() -> Result<sys::CUcontext> {
    let mut context = std::ptr::null_mut();
    // SAFETY: `context` receives the handle.
    check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut context) })?;
    Ok(context)
}

/// A graph that can be launched. It owns all that its nodes point at.
pub(in crate::cuda) struct Executable {
    raw: sys::CUgraphExec,
    stream: Stream,
    /// Owns the tensors that buffers moved into.
    _moved: Relocation,
    _uploads: Vec<Arc<[u8]>>,
    _keep: Box<dyn Any + Send + Sync>,
}

// SAFETY: handles may be used from any thread whose context is current, which `launch` and `drop` see to.
unsafe impl Send for Executable {}
// SAFETY: the driver wants calls on one executable not to overlap; `launch` is the only one by shared reference, and
// `GraphReplay` calls it under its lock.
unsafe impl Sync for Executable {}

impl Executable {
    /// Launches the graph on the device's stream.
    pub fn launch(&self) -> Result<()> {
        self.stream.bind()?;
        // SAFETY: executable and stream exist, and what the nodes point at is owned by this value or by the module that
        // it keeps.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.raw, self.stream.raw()) })
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        // A launch may still run; its memory is freed by stream order, but the executable itself must wait.
        if self.stream.bind().is_ok() && self.stream.synchronize_device().is_ok() {
            // SAFETY: this value owns the executable, and no launch of it is in flight.
            unsafe { sys::cuGraphExecDestroy(self.raw) };
        }
    }
}
