//! Launches of `chain.cu`: element-wise steps one after another.

use std::mem::{offset_of, size_of};

use candle::cuda_backend::WrapErr;
use candle::CudaDevice;
use cudarc::driver::{DeviceRepr, PushKernelArg};

use super::{blocks, function};
use crate::cuda::driver::{Captured, Launch, Node, Stream};
use crate::cuda::ops::ptx;
use crate::{Error, Result};

/// The most operands that are loaded.
pub(in crate::cuda) const LOADS: usize = 8;
/// The most steps, and so results that are stored.
pub(in crate::cuda) const STEPS: usize = 12;
/// The most dimensions of an operand whose elements are not in a row.
pub(in crate::cuda) const DIMS: usize = 4;

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
}

/// Where the elements of an operand are: in a row if the rank is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(in crate::cuda) struct Places {
    dims: [u32; DIMS],
    strides: [u32; DIMS],
    rank: u32,
}

impl Places {
    /// Those of so many elements in each dimension, so far from each other. `None` if they are too many to count or fall
    /// into too many dimensions, neighbouring ones that lie like one counting as one.
    pub fn new(dims: &[u64], strides: &[u64]) -> Option<Self> {
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for (&dim, &stride) in dims.iter().zip(strides).filter(|(&dim, _)| dim != 1) {
            match joined.last_mut() {
                Some(outer) if outer.1 == stride.checked_mul(dim)? => *outer = (outer.0.checked_mul(dim)?, stride),
                _ => joined.push((dim, stride)),
            }
        }
        let mut places = Self::default();
        if joined.is_empty() || matches!(joined[..], [(_, 1)]) {
            return Some(places);
        }
        let last =
            joined.iter().try_fold(0u64, |last, (dim, stride)| last.checked_add((dim - 1).checked_mul(*stride)?))?;
        if joined.len() > DIMS || last > u64::from(u32::MAX) {
            return None;
        }
        places.rank = joined.len() as u32;
        for (at, (dim, stride)) in joined.into_iter().enumerate() {
            (places.dims[at], places.strides[at]) = (u32::try_from(dim).ok()?, u32::try_from(stride).ok()?);
        }
        Some(places)
    }

    /// Whether element `i` is at place `i`.
    pub fn are_in_a_row(&self) -> bool {
        self.rank == 0
    }
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Load {
    from: u64,
    places: Places,
    of: u32,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Step {
    mul: f32,
    add: f32,
    code: Code,
    of: Type,
    operands: [u8; 2],
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Store {
    to: u64,
    value: u32,
    of: u32,
}

/// Element-wise steps on operands of one number of elements: the argument of `opara_chain`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(in crate::cuda) struct Chain {
    elements: u32,
    loads: u8,
    steps: u8,
    stores: u8,
    load: [Load; LOADS],
    step: [Step; STEPS],
    store: [Store; STEPS],
}

// SAFETY: plain numbers, laid out as the kernel declares them.
unsafe impl DeviceRepr for Chain {}

/// What a step can take: an operand, or the result of an earlier step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cuda) struct Value(u8);

impl Chain {
    /// Without steps. `None` if 31 bits do not count the elements.
    pub fn new(elements: u64) -> Option<Self> {
        let load = Load { from: 0, places: Places::default(), of: 0 };
        let step = Step { mul: 0., add: 0., code: Code::Copy, of: Type::F32, operands: [0; 2] };
        let store = Store { to: 0, value: 0, of: 0 };
        let elements = u32::try_from(elements).ok().filter(|&n| n <= i32::MAX as u32)?;
        Some(Self {
            elements,
            loads: 0,
            steps: 0,
            stores: 0,
            load: [load; LOADS],
            step: [step; STEPS],
            store: [store; STEPS],
        })
    }

    /// Loads an operand. Gives the value, and the offset of the pointer among the arguments; the same for the same operand.
    pub fn load(&mut self, from: u64, of: Type, places: Places) -> Option<(Value, usize)> {
        let known = &self.load[..self.loads.into()];
        let same = |load: &Load| (load.from, load.places, load.of) == (from, places, of as u32);
        let at = known.iter().position(same).unwrap_or(known.len());
        *self.load.get_mut(at)? = Load { from, places, of: of as u32 };
        self.loads = self.loads.max(at as u8 + 1);
        let word = offset_of!(Chain, load) + at * size_of::<Load>() + offset_of!(Load, from);
        Some((Value(at as u8), word))
    }

    /// Adds a step in the arithmetic of a type; one operand that takes one, twice.
    pub fn step(&mut self, code: Code, of: Type, [a, b]: [Value; 2], [mul, add]: [f32; 2]) -> Option<Value> {
        let at = usize::from(self.steps);
        *self.step.get_mut(at)? = Step { mul, add, code, of, operands: [a.0, b.0] };
        self.steps += 1;
        Some(Value((LOADS + at) as u8))
    }

    /// Stores a value; gives the offset of the pointer among the arguments.
    pub fn store(&mut self, value: Value, of: Type, to: u64) -> Option<usize> {
        let at = usize::from(self.stores);
        *self.store.get_mut(at)? = Store { to, value: value.0.into(), of: of as u32 };
        self.stores += 1;
        Some(offset_of!(Chain, store) + at * size_of::<Store>() + offset_of!(Store, to))
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
) -> Result<(Vec<Launch>, Captured)> {
    // Before the capture, which does not bear a module that is loaded.
    let function = function(device, "opara_chain", "chain", ptx::CHAIN)?;
    let on = device.cuda_stream();
    let record = || {
        for chain in chains {
            let mut launch = on.launch_builder(&function);
            launch.arg(chain);
            // SAFETY: the argument is the one that the kernel declares. The launch is captured and never runs: the
            // graph is kept for its nodes' attributes, and whoever launches one of them elsewhere moves its pointers.
            unsafe { launch.launch(blocks(chain.elements as usize)) }.w().map_err(Error::from)?;
        }
        Ok(())
    };
    let ((), graph) = stream.capture(record).map_err(|broken| broken.error)?;
    let launches = graph.nodes()?.into_iter().filter_map(|node| match node {
        Node::Launch(launch) => Some(*launch),
        _ => None,
    });
    let launches: Vec<Launch> = launches.collect();
    if launches.len() != chains.len() {
        let reason = format!("a capture of {} launches gave back {}", chains.len(), launches.len());
        return Err(Error::NotCapturable { reason });
    }
    Ok((launches, graph))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_that_lie_like_one_are_one() {
        let places = |dims: &[u64], strides: &[u64]| {
            let places = Places::new(dims, strides)?;
            let rank = places.rank as usize;
            Some((places.dims[..rank].to_vec(), places.strides[..rank].to_vec()))
        };
        let row = Some((vec![], vec![]));
        assert_eq!(places(&[], &[]), row, "a number");
        assert_eq!(places(&[2, 3, 4], &[12, 4, 1]), row);
        assert_eq!(places(&[1, 3, 1, 4], &[7, 4, 9, 1]), row, "dimensions of one are none");
        assert_eq!(places(&[2, 3, 4], &[0, 0, 1]), Some((vec![6, 4], vec![0, 1])), "a row for each of six");
        assert_eq!(places(&[6, 4], &[1, 0]), Some((vec![6, 4], vec![1, 0])), "a column");
        assert_eq!(places(&[5], &[0]), Some((vec![5], vec![0])), "one number for all");
        assert_eq!(places(&[2, 8, 3, 4], &[96, 4, 32, 1]), Some((vec![2, 8, 3, 4], vec![96, 4, 32, 1])));
        assert_eq!(places(&[2, 2, 2, 2, 2], &[1, 2, 4, 8, 16]), None, "too many");
        assert_eq!(places(&[1 << 20, 1 << 13], &[1 << 13, 2]), None, "too far");
    }

    #[test]
    fn pointers_stand_where_the_kernel_looks_for_them() {
        let mut chain = Chain::new(8).unwrap();
        let row = Places::default();
        let (x, first) = chain.load(0xa000, Type::F32, row).unwrap();
        let (y, second) = chain.load(0xb000, Type::F16, row).unwrap();
        assert_eq!(chain.load(0xa000, Type::F32, row).unwrap(), (x, first), "once");
        let sum = chain.step(Code::Add, Type::F32, [x, y], [0.; 2]).unwrap();
        let stored = chain.store(sum, Type::F32, 0xc000).unwrap();
        assert_eq!((first, second, stored, size_of::<Chain>()), (8, 56, 8 + 8 * 48 + 12 * 12, 728));
    }

    #[test]
    fn what_is_too_much_is_refused() {
        assert!(Chain::new(1 << 31).is_none());
        let mut chain = Chain::new(1).unwrap();
        let row = Places::default();
        let loaded = (0..=LOADS as u64).map(|at| chain.load(at, Type::F32, row)).filter(Option::is_some).count();
        let (x, _) = chain.load(0, Type::F32, row).unwrap();
        let steps = (0..=STEPS).map(|_| chain.step(Code::Neg, Type::F32, [x; 2], [0.; 2])).filter(Option::is_some);
        assert_eq!((loaded, steps.count()), (LOADS, STEPS));
    }
}
