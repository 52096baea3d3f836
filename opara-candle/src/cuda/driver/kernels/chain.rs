//! Launches of `chain.cu`: steps one after another, on elements or on rows of them.

use std::mem::{offset_of, size_of};

use candle::cuda_backend::WrapErr;
use candle::CudaDevice;
use cudarc::driver::{DeviceRepr, LaunchConfig, PushKernelArg};

use super::{blocks, function};
use crate::cuda::driver::{Captured, KernelNode, Launch, Node, Stream};
use crate::cuda::ops::ptx;
use crate::fuse::{Places, DIMS};
use crate::{Error, Result};

/// The most steps.
pub(in crate::cuda) const STEPS: usize = 12;
/// How many results can be saved for later than the next step.
pub(in crate::cuda) const SLOTS: usize = 4;
/// The most columns of a row.
pub(in crate::cuda) const COLUMNS: u64 = 4096;
/// The most operands of a step.
const OPERANDS: usize = 3;
/// The most operands in memory.
const READS: usize = 16;
/// Elements of a row that a thread makes.
const OF_A_THREAD: u32 = 4;
/// Elements from which on a thread makes several: so many fill an H200.
const MANY: u32 = 132 * 2048 * 4;

/// Type of a value in memory, and of a step's arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::cuda) enum Type {
    F32,
    F16,
    Bf16,
}

/// What a step computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::cuda) enum Code {
    /// A copy, or a cast to the step's type.
    Copy,
    Add,
    Sub,
    Mul,
    Div,
    Max,
    Min,
    Affine,
    Sqr,
    Sqrt,
    Neg,
    Abs,
    Recip,
    Relu,
    Exp,
    Tanh,
    Silu,
    Gelu,
    GeluErf,
    Sigmoid,
    /// Of each row the sum.
    RowSum,
    RowMax,
    RowMin,
    Softmax,
    LayerNorm,
    RmsNorm,
}

impl Code {
    /// Whether it makes one number of a row.
    pub fn folds(self) -> bool {
        matches!(self, Self::RowSum | Self::RowMax | Self::RowMin)
    }
}

/// Where a step takes an operand from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cuda) enum Source {
    /// The result of the step before.
    Last,
    /// One that was saved in this slot.
    Saved(usize),
    /// Elements of a type in memory, from an address on.
    Memory(u64, Type, Places),
}

/// What becomes of a step's result, beside that the next step can take it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::cuda) struct Target {
    /// Where it is stored.
    pub address: Option<u64>,
    /// The slot that it is saved in.
    pub slot: Option<usize>,
}

/// An operand in memory.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Read {
    from: u64,
    dims: [u32; DIMS],
    strides: [u32; DIMS],
    of: Type,
    rank: u8,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Step {
    to: u64,
    mul: f32,
    add: f32,
    code: Code,
    of: Type,
    operands: u8,
    /// [`LAST`], then slots, then what is read.
    source: [u8; OPERANDS],
    slot: u8,
    /// Whether it [`TAKES`] or [`MAKES`] numbers of rows.
    numbers: u8,
}

const LAST: u8 = 0;
const SAVED: u8 = 1;
const READ: u8 = SAVED + SLOTS as u8;
const TAKES: u8 = 1;
const MAKES: u8 = 2;

/// What a step computes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::cuda) struct What {
    pub code: Code,
    /// Type of the arithmetic and of the result.
    pub of: Type,
    /// Factor and summand of an affine step; of a norm the first is what is added to what it divides by, of a sum how many
    /// neighbours a thread of candle's takes.
    pub constants: [f32; 2],
    /// Whether it is done on one number of each row instead of on each element.
    pub on_numbers: bool,
}

/// Steps on operands of one number of elements, or of rows: the argument of `opara_chain`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(in crate::cuda) struct Chain {
    elements: u32,
    columns: u32,
    steps: u32,
    reads: u32,
    step: [Step; STEPS],
    read: [Read; READS],
}

// SAFETY: plain numbers, laid out as the kernel declares them.
unsafe impl DeviceRepr for Chain {}

impl Chain {
    /// Without steps; of rows, if there are columns. `None` if 31 bits do not count the elements.
    pub fn new(elements: u64, columns: Option<u64>) -> Option<Self> {
        let slot = SLOTS as u8;
        let (code, of, source) = (Code::Copy, Type::F32, [LAST; OPERANDS]);
        let step = Step { to: 0, mul: 0., add: 0., code, of, operands: 0, source, slot, numbers: 0 };
        let read = Read { from: 0, dims: [0; DIMS], strides: [0; DIMS], of, rank: 0 };
        let elements = u32::try_from(elements).ok().filter(|&n| n <= i32::MAX as u32)?;
        let columns = columns.unwrap_or(0).try_into().ok()?;
        Some(Self { elements, columns, steps: 0, reads: 0, step: [step; STEPS], read: [read; READS] })
    }

    /// Adds a step. `None` if there are too many, or if they read too much.
    pub fn step(&mut self, what: What, operands: &[Source], target: Target) -> Option<()> {
        let step = self.step.get_mut(self.steps as usize)?;
        for (source, operand) in step.source.iter_mut().zip(operands) {
            *source = match *operand {
                Source::Last => LAST,
                Source::Saved(slot) => SAVED + slot as u8,
                Source::Memory(from, of, places) => {
                    let (dims, strides, rank) = places.raw();
                    *self.read.get_mut(self.reads as usize)? = Read { from, dims, strides, of, rank };
                    self.reads += 1;
                    READ + (self.reads - 1) as u8
                }
            };
        }
        let What { code, of, constants: [mul, add], on_numbers } = what;
        (step.code, step.of, step.operands, step.mul, step.add) = (code, of, operands.len() as u8, mul, add);
        step.numbers = match (on_numbers, code.folds()) {
            (true, _) => TAKES | MAKES,
            (false, true) => MAKES,
            (false, false) => 0,
        };
        step.to = target.address.unwrap_or(0);
        step.slot = target.slot.unwrap_or(SLOTS) as u8;
        self.steps += 1;
        Some(())
    }

    /// Offset among the arguments of the pointer to this operand of the last step, which is in memory.
    pub fn operand_word(&self, operand: usize) -> usize {
        let read = usize::from(self.step[self.last()].source[operand].saturating_sub(READ));
        offset_of!(Chain, read) + read * size_of::<Read>() + offset_of!(Read, from)
    }

    /// Offset of the pointer to where the last step's result is stored.
    pub fn result_word(&self) -> usize {
        offset_of!(Chain, step) + self.last() * size_of::<Step>() + offset_of!(Step, to)
    }

    fn last(&self) -> usize {
        (self.steps as usize).saturating_sub(1)
    }

    /// The kernel's name, and how it is launched.
    pub fn launch(&self) -> (&'static str, LaunchConfig) {
        match (self.columns, self.elements) {
            (0, MANY..) => ("opara_chain4", blocks(self.elements.div_ceil(4) as usize)),
            (0, _) => ("opara_chain", blocks(self.elements as usize)),
            (columns, elements) => {
                let threads = columns.div_ceil(OF_A_THREAD).next_multiple_of(32);
                // Of each column a number, and of what is missing to a power of two.
                let shared_mem_bytes = columns.next_power_of_two() * size_of::<f32>() as u32;
                let grid_dim = (elements / columns, 1, 1);
                ("opara_chain_rows", LaunchConfig { grid_dim, block_dim: (threads, 1, 1), shared_mem_bytes })
            }
        }
    }
}

/// The launches of chains, as a capture reads them back, and the graph that they are templates of. None of them runs
/// there.
///
/// # Errors
/// A call of the driver that failed.
pub(in crate::cuda) fn launches(
    stream: &Stream,
    device: &CudaDevice,
    chains: &[Chain],
) -> Result<(Vec<KernelNode>, Captured)> {
    // Before the capture, which does not bear a module that is loaded.
    let kernel = |chain: &Chain| function(device, chain.launch().0, "chain", ptx::CHAIN);
    let functions = chains.iter().map(kernel).collect::<candle::Result<Vec<_>>>()?;
    let on = device.cuda_stream();
    let record = || {
        for (chain, function) in chains.iter().zip(&functions) {
            let mut launch = on.launch_builder(function);
            launch.arg(chain);
            // SAFETY: the argument is the one that the kernel declares. The launch is captured and never runs: the
            // graph is kept for its nodes' attributes, and whoever launches one of them elsewhere moves its pointers.
            unsafe { launch.launch(chain.launch().1) }.w().map_err(Error::from)?;
        }
        Ok(())
    };
    let ((), graph) = stream.capture(record).map_err(|broken| broken.error)?;
    let kernel = |node| match node {
        Node::Launch(launch) => match *launch {
            Launch::Kernel(kernel) => Some(kernel),
            _ => None,
        },
        _ => None,
    };
    let launches: Vec<KernelNode> = graph.nodes()?.into_iter().filter_map(kernel).collect();
    if launches.len() != chains.len() {
        let reason = format!("a capture of {} launches gave back {}", chains.len(), launches.len());
        return Err(Error::NotCapturable { reason });
    }
    Ok((launches, graph))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn what(code: Code, of: Type) -> What {
        What { code, of, constants: [0.; 2], on_numbers: false }
    }

    #[test]
    fn pointers_stand_where_the_kernel_looks_for_them() {
        let mut chain = Chain::new(8, None).unwrap();
        let of = |at| Source::Memory(at, Type::F16, Places::default());
        let target = Target { address: Some(0xc000), slot: None };
        for _ in 0..2 {
            chain.step(what(Code::Add, Type::F16), &[of(0xa000), of(0xb000)], target).unwrap();
        }
        assert_eq!((size_of::<Read>(), size_of::<Step>(), size_of::<Chain>()), (48, 24, 1072));
        let words = [chain.operand_word(0), chain.operand_word(1), chain.result_word()];
        assert_eq!(words, [16 + 12 * 24 + 2 * 48, 16 + 12 * 24 + 3 * 48, 16 + 24]);
    }

    #[test]
    fn what_is_too_much_is_refused() {
        assert!(Chain::new(1 << 31, None).is_none());
        let mut chain = Chain::new(1, None).unwrap();
        let mut negate = || chain.step(what(Code::Neg, Type::F32), &[Source::Last], Target::default());
        assert_eq!((0..=STEPS).filter(|_| negate().is_some()).count(), STEPS);
        let mut chain = Chain::new(1, None).unwrap();
        let read = Source::Memory(0xa000, Type::F32, Places::default());
        let mut add = || chain.step(what(Code::Add, Type::F32), &[read, read], Target::default());
        assert_eq!((0..STEPS).filter(|_| add().is_some()).count(), READS / 2);
    }

    #[test]
    fn a_thread_makes_several_elements_where_there_are_many() {
        let launch = |elements, columns| {
            let (name, config) = Chain::new(elements, columns).unwrap().launch();
            (name, config.grid_dim.0, config.block_dim.0, config.shared_mem_bytes)
        };
        assert_eq!(launch(1000, None), ("opara_chain", 8, 128, 0));
        assert_eq!(launch(u64::from(MANY), None), ("opara_chain4", MANY / 512, 128, 0));
        assert_eq!(launch(1536 * 128, Some(128)), ("opara_chain_rows", 1536, 32, 512));
        assert_eq!(launch(10 * 768, Some(768)), ("opara_chain_rows", 10, 192, 4096));
        assert_eq!(launch(COLUMNS, Some(COLUMNS)), ("opara_chain_rows", 1, 1024, 16384));
    }
}
