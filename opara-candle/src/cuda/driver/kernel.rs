//! Kernel nodes: the kernel, its launch shape and its arguments.

use std::ffi::{c_char, CStr};
use std::sync::Arc;

use cudarc::driver::sys;
use hashbrown::HashMap;
use opara_interpose::code_of;

use super::arguments::{places, Arguments};
use super::by_length::ByLength;
use super::{check, get};
use crate::trace::Launch;
use crate::Result;

/// A kernel launch with its arguments.
#[derive(Clone)]
pub(in crate::cuda) struct KernelNode {
    pub name: Arc<str>,
    pub launch: Launch,
    pub arguments: Arguments,
    /// The hash of the PTX text that Rust code loaded it from; `None` for kernels of libraries and of C++.
    pub code: Option<u64>,
    /// The numbers of it that follow from the length of a text.
    pub by_length: Option<Arc<ByLength>>,
    /// Launch shape and function; the argument pointers are null.
    pub(super) params: sys::CUDA_KERNEL_NODE_PARAMS,
    /// The node that attributes are copied from.
    pub(super) template: sys::CUgraphNode,
}

/// The properties of a kernel that do not depend on the launch.
struct Function {
    name: Arc<str>,
    registers: u32,
    static_shared: u32,
    places: Arc<[(usize, usize)]>,
    code: Option<u64>,
}

/// Kernels seen so far: graphs of thousands of nodes launch only a few different kernels.
#[derive(Default)]
pub(super) struct Functions {
    known: HashMap<sys::CUfunction, Function>,
    /// Resident blocks by kernel, threads per block, and dynamic shared memory.
    resident: HashMap<(sys::CUfunction, u32, u32), u32>,
}

impl Functions {
    /// Reads name, attributes and arguments of a kernel node.
    ///
    /// # Safety
    /// `params` must describe a launch whose kernel and arguments exist. Unless `node` is null, the driver must have
    /// returned `params` for it.
    pub unsafe fn kernel(
        &mut self,
        node: sys::CUgraphNode,
        mut params: sys::CUDA_KERNEL_NODE_PARAMS,
    ) -> Result<KernelNode> {
        // SAFETY: the launch is valid by the caller's promise, and so are its kernel and function.
        unsafe {
            if params.func.is_null() {
                check("cuKernelGetFunction", sys::cuKernelGetFunction(&mut params.func, params.kern))?;
            }
            let resident_blocks = self.resident_blocks(&params)?;
            let function = self.function(params.func)?;
            let launch = Launch {
                grid: [params.gridDimX, params.gridDimY, params.gridDimZ],
                block: [params.blockDimX, params.blockDimY, params.blockDimZ],
                registers: function.registers,
                static_shared: function.static_shared,
                dynamic_shared: params.sharedMemBytes,
                resident_blocks,
            };
            let arguments = Arguments::read(function.places.clone(), &params)?;
            params.kernelParams = std::ptr::null_mut();
            params.extra = std::ptr::null_mut();
            params.kern = std::ptr::null_mut();
            let (name, code) = (function.name.clone(), function.code);
            Ok(KernelNode { name, launch, arguments, code, by_length: None, params, template: node })
        }
    }

    /// # Safety
    /// `function` must be a loaded kernel.
    unsafe fn function(&mut self, function: sys::CUfunction) -> Result<&Function> {
        use sys::CUfunction_attribute::*;
        if !self.known.contains_key(&function) {
            // SAFETY: the function is loaded by the caller's promise; names are strings that the driver owns.
            let described = unsafe {
                let name: *const c_char = get("cuFuncGetName", |name| sys::cuFuncGetName(name, function))?;
                let name = if name.is_null() { "unknown".into() } else { CStr::from_ptr(name).to_string_lossy() };
                let attribute = |which| {
                    get("cuFuncGetAttribute", |value| sys::cuFuncGetAttribute(value, which, function))
                        .map(|v: i32| v as u32)
                };
                Function {
                    name: name.into(),
                    registers: attribute(CU_FUNC_ATTRIBUTE_NUM_REGS)?,
                    static_shared: attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
                    places: places(function)?.into(),
                    code: code_of(function),
                }
            };
            self.known.insert(function, described);
        }
        Ok(&self.known[&function])
    }

    /// # Safety
    /// The function in `params` must be loaded.
    unsafe fn resident_blocks(&mut self, params: &sys::CUDA_KERNEL_NODE_PARAMS) -> Result<u32> {
        let threads = params.blockDimX * params.blockDimY * params.blockDimZ;
        let key = (params.func, threads, params.sharedMemBytes);
        if let Some(&blocks) = self.resident.get(&key) {
            return Ok(blocks);
        }
        // SAFETY: the function is loaded by the caller's promise.
        let blocks: i32 = unsafe {
            get("cuOccupancyMaxActiveBlocksPerMultiprocessor", |blocks| {
                let shared = params.sharedMemBytes as usize;
                sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, params.func, threads as i32, shared)
            })?
        };
        self.resident.insert(key, blocks as u32);
        Ok(blocks as u32)
    }
}
