//! Launches of chains: kernels that are written on top of `chain.cuh` and compiled at run time, and their argument.

use std::mem::{offset_of, size_of};
use std::path::Path;

use candle::cuda_backend::WrapErr;
use candle::CudaDevice;
use cudarc::driver::{DeviceRepr, LaunchConfig, PushKernelArg};

use super::compile::compile;
use super::module::Kernels;
use crate::cuda::driver::{Captured, KernelNode, Launch, Node, Stream};
use crate::{Error, Result};

/// The most steps.
pub(in crate::cuda) const STEPS: usize = 12;
/// The most operands in memory.
const READS: usize = 16;

/// The argument of a chain's kernel: where results are stored, and operands are.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(in crate::cuda) struct Chain {
    to: [u64; STEPS],
    from: [u64; READS],
}

// SAFETY: plain numbers, laid out as `chain.cuh` declares them.
unsafe impl DeviceRepr for Chain {}

impl Chain {
    /// Where an operand is; `None` if there are not so many.
    pub fn read(&mut self, read: usize, from: u64) -> Option<()> {
        *self.from.get_mut(read)? = from;
        Some(())
    }

    /// Where a step's result is stored; `None` if there are not so many steps.
    pub fn store(&mut self, step: usize, to: u64) -> Option<()> {
        *self.to.get_mut(step)? = to;
        Some(())
    }

    /// Offset of the pointer to an operand.
    pub fn operand_word(read: usize) -> usize {
        offset_of!(Chain, from) + read * size_of::<u64>()
    }

    /// Offset of the pointer to where a step's result is stored.
    pub fn result_word(step: usize) -> usize {
        offset_of!(Chain, to) + step * size_of::<u64>()
    }
}

/// A kernel and its launch.
pub(in crate::cuda) struct Written {
    pub name: &'static str,
    /// In CUDA C++, on top of `chain.cuh`: a function called `KERNEL`, which takes a [`Chain`].
    pub code: String,
    pub config: LaunchConfig,
    pub argument: Chain,
}

/// Launches of chains.
pub(in crate::cuda) struct Launches {
    /// For each chain its launch, or why there is none.
    pub of: Vec<std::result::Result<KernelNode, String>>,
    /// The graph that they are templates of, and what they launch, if there are any.
    pub owners: Option<(Captured, Kernels)>,
}

/// The launches of chains, as a capture reads them back. Kernels are kept in the folder for the next start; those that the
/// compiler or the driver refuses, or all where there is no compiler, are left out. No launch runs there. Others may launch while
/// kernels are compiled.
///
/// # Errors
/// A call of the driver that failed.
pub(in crate::cuda) fn launches(
    stream: &Stream,
    device: &CudaDevice,
    chains: &[Written],
    folder: Option<&Path>,
) -> Result<Launches> {
    // Before the capture, which does not bear a module that is loaded.
    let compiled = compile(device, chains.iter().map(|chain| (chain.name, chain.code.as_str())), folder)?;
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
        for (chain, function) in chains.iter().zip(&functions) {
            let Ok(function) = function else { continue };
            let mut launch = on.launch_builder(function);
            launch.arg(&chain.argument);
            // SAFETY: the argument is the one that the kernel declares. The launch is captured only and never runs: the
            // graph is kept for its nodes' attributes, and whoever launches one of them elsewhere moves its pointers.
            unsafe { launch.launch(chain.config) }.w().map_err(Error::from)?;
        }
        Ok(())
    };
    let ((), graph) = stream.capture_only(record)?;
    let kernel = |node| match node {
        Node::Launch(launch) => match *launch {
            Launch::Kernel(kernel) => Some(kernel),
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
    fn pointers_stand_where_the_kernel_looks_for_them() {
        assert_eq!(size_of::<Chain>(), (12 + 16) * 8);
        assert_eq!([0, 3].map(Chain::result_word), [0, 3 * 8]);
        assert_eq!([0, 2].map(Chain::operand_word), [12 * 8, 12 * 8 + 2 * 8]);
    }

    #[test]
    fn what_is_too_much_is_refused() {
        let mut chain = Chain::default();
        assert_eq!((0..=STEPS).filter(|&step| chain.store(step, 1).is_some()).count(), STEPS);
        assert_eq!((0..=READS).filter(|&read| chain.read(read, 1).is_some()).count(), READS);
    }
}
