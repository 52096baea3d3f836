//! Graph nodes that access arguments of the module, whose addresses may change at every launch.

use cudarc::driver::sys;

use super::{check, Arguments};
use crate::Result;

/// A node that reads or writes arguments of the module, with its parameters and the positions of the addresses in them.
pub(super) struct Bound {
    pub node: sys::CUgraphNode,
    pub launch: BoundLaunch,
    /// Position of the address, number of the argument, and byte offset into it.
    pub places: Vec<(usize, usize, u64)>,
}

// SAFETY: `node` is a handle of a graph that its owner keeps, and the parameters are copies.
unsafe impl Send for Bound {}

pub(super) enum BoundLaunch {
    Kernel(Box<sys::CUDA_KERNEL_NODE_PARAMS>, Arguments),
    /// Position 0 is the source, 1 the target.
    Memcpy(Box<sys::CUDA_MEMCPY3D>),
    Memset(Box<sys::CUDA_MEMSET_NODE_PARAMS>),
}

impl Bound {
    /// Has the address of one of its arguments changed?
    pub fn moves(&self, before: &[u64], arguments: &[u64]) -> bool {
        self.places.iter().any(|&(_, argument, _)| before.get(argument) != Some(&arguments[argument]))
    }

    /// Sets these addresses of the arguments, from the next launch on.
    ///
    /// # Safety
    /// `executable` must have been made from the node's graph, and the arguments must be like the captured ones.
    pub unsafe fn bind_to(&mut self, executable: sys::CUgraphExec, addresses: &[u64]) -> Result<()> {
        let node = self.node;
        match &mut self.launch {
            BoundLaunch::Kernel(params, arguments) => {
                for &(word, argument, delta) in &self.places {
                    arguments.set_word(word, addresses[argument] + delta);
                }
                let mut params = **params;
                arguments.with_raw(|kernel_params, extra| {
                    params.kernelParams = kernel_params;
                    params.extra = extra;
                    // SAFETY: the caller vouches for node and executable; the arguments are copied by the call.
                    check("cuGraphExecKernelNodeSetParams", unsafe {
                        sys::cuGraphExecKernelNodeSetParams_v2(executable, node, &params)
                    })
                })
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
