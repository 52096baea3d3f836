//! Fused kernels: compiles the generated code on top of `chain.cuh` at run time, and prepares the launches.

use std::mem::{offset_of, size_of};
use std::path::Path;

use candle::cuda_backend::WrapErr;
use candle::CudaDevice;
use cudarc::driver::{DeviceRepr, LaunchConfig, PushKernelArg};

use super::compile::compile;
use super::module::Kernels;
use crate::cuda::driver::{CapturedGraph, KernelNode, LaunchNode, Node, Stream};
use crate::{Error, Result};

/// Maximum ops of a fused kernel.
pub(in crate::cuda) const MAX_OPS: usize = 12;
/// Maximum operands in memory.
const MAX_OPERANDS: usize = 16;

/// The argument of a fused kernel: pointers to its results and operands in memory.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(in crate::cuda) struct FusedArgument {
    to: [u64; MAX_OPS],
    from: [u64; MAX_OPERANDS],
}

// SAFETY: plain numbers, laid out as `chain.cuh` declares them.
unsafe impl DeviceRepr for FusedArgument {}

impl FusedArgument {
    /// Sets the pointer to an operand. `None` if the argument has no room for it.
    pub fn read(&mut self, operand: usize, from: u64) -> Option<()> {
        *self.from.get_mut(operand)? = from;
        Some(())
    }

    /// Sets the pointer to a stored result. `None` if the argument has no room for it.
    pub fn store(&mut self, op: usize, to: u64) -> Option<()> {
        *self.to.get_mut(op)? = to;
        Some(())
    }

    /// Offset of the pointer to an operand, in bytes.
    pub fn operand_word(operand: usize) -> usize {
        offset_of!(FusedArgument, from) + operand * size_of::<u64>()
    }

    /// Offset of the pointer to a stored result, in bytes.
    pub fn result_word(op: usize) -> usize {
        offset_of!(FusedArgument, to) + op * size_of::<u64>()
    }
}

/// The code of a fused kernel and its launch.
pub(in crate::cuda) struct KernelSource {
    pub name: &'static str,
    /// CUDA C++ on top of `chain.cuh`: a function called `KERNEL` that takes a [`FusedArgument`].
    pub code: String,
    pub config: LaunchConfig,
    pub argument: FusedArgument,
}

/// Launches of fused kernels.
pub(in crate::cuda) struct Launches {
    /// For each kernel its launch, or the reason why there is none.
    pub of: Vec<std::result::Result<KernelNode, String>>,
    /// The captured graph whose nodes are the templates of these launches, and the loaded kernels, if there are any.
    pub owners: Option<(CapturedGraph, Kernels)>,
}

/// Compiles kernels, captures their launches without running them, and reads the launches back. If there is a folder,
/// compiled code is stored there for the next start. A kernel that the compiler or the driver refuses gets a reason
/// instead of a launch; without a compiler, all kernels do. Other threads may launch work while kernels are compiled.
///
/// # Errors
/// A failed driver call.
pub(in crate::cuda) fn launches(
    stream: &Stream,
    device: &CudaDevice,
    sources: &[KernelSource],
    folder: Option<&Path>,
) -> Result<Launches> {
    // Load modules before the capture: loading one would invalidate it.
    let compiled = compile(device, sources.iter().map(|source| (source.name, source.code.as_str())), folder)?;
    let mut kernels = Kernels::default();
    let functions = compiled.into_iter().map(|attempt| attempt.and_then(|kernel| kernels.load(device, &kernel)));
    let functions: Vec<_> = functions.collect();
    let expected = functions.iter().flatten().count();
    if expected == 0 {
        let of = functions.into_iter().filter_map(|attempt| attempt.err().map(Err)).collect();
        return Ok(Launches { of, owners: None });
    }
    let on = device.cuda_stream();
    let record = || {
        for (source, function) in sources.iter().zip(&functions) {
            let Ok(function) = function else { continue };
            let mut launch = on.launch_builder(function);
            launch.arg(&source.argument);
            // SAFETY: the argument has the type that the kernel declares. The launch is only captured and never runs:
            // the graph is kept for its nodes' attributes, and a replay relocates the pointers first.
            unsafe { launch.launch(source.config) }.w().map_err(Error::from)?;
        }
        Ok(())
    };
    let ((), graph) = stream.capture_only(record)?;
    let kernel = |node| match node {
        Node::Launch(launch) => match *launch {
            LaunchNode::Kernel(kernel) => Some(kernel),
            _ => None,
        },
        _ => None,
    };
    let captured: Vec<KernelNode> = graph.nodes()?.into_iter().filter_map(kernel).collect();
    let got = captured.len();
    let mut captured = captured.into_iter();
    let of = functions.into_iter().map(|attempt| attempt.map(|_| captured.next()).transpose());
    match of.collect::<Option<Vec<_>>>().filter(|_| got == expected) {
        Some(of) => Ok(Launches { of, owners: Some((graph, kernels)) }),
        None => {
            let reason = format!("a capture of {expected} launches gave back {got}");
            Err(Error::NotCapturable { reason })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_have_the_offsets_that_the_kernel_declares() {
        assert_eq!(size_of::<FusedArgument>(), (12 + 16) * 8);
        assert_eq!([0, 3].map(FusedArgument::result_word), [0, 3 * 8]);
        assert_eq!([0, 2].map(FusedArgument::operand_word), [12 * 8, 12 * 8 + 2 * 8]);
    }

    #[test]
    fn more_ops_or_operands_than_fit_are_refused() {
        let mut argument = FusedArgument::default();
        assert_eq!((0..=MAX_OPS).filter(|&op| argument.store(op, 1).is_some()).count(), MAX_OPS);
        assert_eq!((0..=MAX_OPERANDS).filter(|&operand| argument.read(operand, 1).is_some()).count(), MAX_OPERANDS);
    }
}
