//! Graph nodes whose parameters may change at every launch: addresses of the module's arguments, and numbers by the length of a text.

use std::sync::Arc;

use cudarc::driver::sys;

use super::by_length::ByLength;
use super::{check, Arguments};
use crate::Result;

/// A node that reads or writes arguments of the module, or has numbers by the length of a text, with its parameters and the positions of
/// the addresses in them.
pub(super) struct Bound {
    pub node: sys::CUgraphNode,
    pub launch: BoundLaunch,
    /// Position of the address, number of the argument, and byte offset into it.
    pub places: Vec<(usize, usize, u64)>,
    /// The length that a kernel's numbers are set for.
    pub set_for: Option<u64>,
}

// SAFETY: `node` is a handle of a graph that its owner keeps, and the parameters are copies.
unsafe impl Send for Bound {}

pub(super) enum BoundLaunch {
    Kernel(Box<sys::CUDA_KERNEL_NODE_PARAMS>, Arguments, Option<Arc<ByLength>>),
    /// Position 0 is the source, 1 the target.
    Memcpy(Box<sys::CUDA_MEMCPY3D>),
    Memset(Box<sys::CUDA_MEMSET_NODE_PARAMS>),
}

impl Bound {
    /// Has the address of one of its arguments changed, or the length of the text?
    pub fn moves(&self, before: &[u64], arguments: &[u64]) -> bool {
        self.places.iter().any(|&(_, argument, _)| before.get(argument) != Some(&arguments[argument])) || self.is_late()
    }

    /// Is the text of another length than its numbers are set for?
    pub fn is_late(&self) -> bool {
        matches!(&self.launch, BoundLaunch::Kernel(.., Some(of)) if !of.is_set_for(self.set_for))
    }

    /// Sets these addresses of the arguments, and the numbers of the text's length, from the next launch on.
    ///
    /// # Safety
    /// `executable` must have been made from the node's graph, and the arguments must be like the captured ones.
    pub unsafe fn bind_to(&mut self, executable: sys::CUgraphExec, addresses: &[u64]) -> Result<()> {
        let (node, mut set_for) = (self.node, None);
        match &mut self.launch {
            BoundLaunch::Kernel(params, arguments, by_length) => {
                for &(word, argument, delta) in &self.places {
                    arguments.set_word(word, addresses[argument] + delta);
                }
                let mut params = **params;
                if let Some(of) = by_length {
                    let mut grid = [params.gridDimX, params.gridDimY, params.gridDimZ];
                    let threads = [params.blockDimX, params.blockDimY, params.blockDimZ];
                    set_for = Some(of.set(arguments, &mut grid, threads));
                    [params.gridDimX, params.gridDimY, params.gridDimZ] = grid;
                }
                arguments.with_raw(|kernel_params, extra| {
                    params.kernelParams = kernel_params;
                    params.extra = extra;
                    // SAFETY: the caller vouches for node and executable; the arguments are copied by the call.
                    check("cuGraphExecKernelNodeSetParams", unsafe {
                        sys::cuGraphExecKernelNodeSetParams_v2(executable, node, &params)
                    })
                })?;
                self.set_for = set_for;
                Ok(())
            }
            BoundLaunch::Memcpy(params) => {
                for &(place, argument, delta) in &self.places {
                    let end = if place == 0 { &mut params.srcDevice } else { &mut params.dstDevice };
                    *end = addresses[argument] + delta;
                }
                // SAFETY: the caller vouches for node and executable.
                check("cuGraphExecMemcpyNodeSetParams", unsafe {
                    sys::cuGraphExecMemcpyNodeSetParams(executable, node, &**params, current_context()?)
                })
            }
            BoundLaunch::Memset(params) => {
                for &(_, argument, delta) in &self.places {
                    params.dst = addresses[argument] + delta;
                }
                // SAFETY: the caller vouches for node and executable.
                check("cuGraphExecMemsetNodeSetParams", unsafe {
                    sys::cuGraphExecMemsetNodeSetParams(executable, node, &**params, current_context()?)
                })
            }
        }
    }
}

/// The context that is current on this thread.
pub(super) fn current_context() -> Result<sys::CUcontext> {
    let mut context = std::ptr::null_mut();
    // SAFETY: `context` receives the handle.
    check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut context) })?;
    Ok(context)
}
