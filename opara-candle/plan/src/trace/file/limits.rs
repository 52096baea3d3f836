//! Limits of trace files. Saving and loading check the same limits, so that a saved file can be loaded.
//!
//! Limits of counts are hundreds of times the counts of NASNet-A, the largest of the models. Sizes are limited to more than any
//! device has, and such that unchecked sums and products of later stages fit 64 bits.

use std::fmt::Display;

use super::super::{DeviceSpec, Launch, Op, Role, Trace, Work};
use super::FileError;

/// Launches.
pub(super) const OPS: u64 = 1 << 20;
/// Buffers, and so also inputs, outputs and state.
pub(super) const BUFFERS: u64 = 1 << 20;
/// Accesses of all ops together.
pub(super) const ACCESSES: u64 = 1 << 22;
/// Measured schedules.
pub(super) const MEASURED: u64 = 10_000;
/// Nanoseconds of one: some days.
const NANOS: u64 = 1 << 50;
/// Total bytes of all names and labels. The file holds each string once, so a small file could expand to any amount.
pub(super) const TEXT: u64 = 1 << 27;
/// Bytes of one section, compressed or not. Deflate can make a thousand bytes of one, and each known section is expanded
/// in memory; NASNet-A's longest is some hundred times shorter.
pub(super) const SECTION: u64 = 1 << 25;
/// Sections, known or skipped.
pub(super) const SECTIONS: u64 = 256;

/// Bytes or operations of a whole trace.
const TOTAL: u64 = 1 << 60;
/// Thread blocks of a grid.
const BLOCKS: u64 = 1 << 40;
/// Threads and registers of a multiprocessor, bytes of shared memory.
const RESOURCE: u64 = 1 << 28;
/// Multiprocessors, blocks resident on one, threads of a block, registers of a thread: products of two fit 32 bits.
const FACTOR: u64 = (1 << 16) - 1;

/// Fails if `found` exceeds the limit.
pub(super) fn at_most(what: impl Display, found: u128, limit: u64) -> Result<(), FileError> {
    if found > limit as u128 {
        return Err(FileError::Limit { what: what.to_string(), found, limit });
    }
    Ok(())
}

/// Checks a whole trace: all limits, then [`Trace::validate`].
pub(super) fn check(trace: &Trace) -> Result<(), FileError> {
    at_most("ops of the trace", trace.ops.len() as u128, OPS)?;
    at_most("buffers of the trace", trace.buffers.len() as u128, BUFFERS)?;
    let sum = |count: fn(&Op) -> u128| trace.ops.iter().map(count).sum::<u128>();
    at_most("accesses of all ops", sum(|op| op.accesses.len() as u128), ACCESSES)?;
    at_most("bytes of all names and labels", sum(|op| (op.name.len() + op.label.len()) as u128), TEXT)?;
    at_most("bytes moved by all ops", sum(|op| moved(&op.work)), TOTAL)?;
    at_most("operations of all ops", sum(|op| operations(&op.work)), TOTAL)?;
    at_most("bytes of all buffers", trace.buffers.iter().map(|b| b.bytes as u128).sum(), TOTAL)?;
    at_most("bytes held at a time", trace.peak_bytes as u128, TOTAL)?;
    at_most("measured schedules", trace.measured.len() as u128, MEASURED)?;
    let nanos = trace.measured.iter().map(|one| one.nanos).chain(trace.ops.iter().filter_map(|op| op.nanos)).max();
    at_most("nanoseconds of an op or a schedule", nanos.unwrap_or(0) as u128, NANOS)?;
    let names = trace.measured.iter().map(|one| one.schedule.len() as u128).sum();
    at_most("bytes of the names of measured schedules", names, TEXT)?;
    device(&trace.device)?;
    for (id, buffer) in trace.buffers.iter().enumerate() {
        if let Role::Input(index) | Role::Output(index) | Role::State(index) = buffer.role {
            at_most(format_args!("number of the input, output or state in buffer {id}"), index as u128, BUFFERS)?;
        }
    }
    for (id, op) in trace.ops.iter().enumerate() {
        if let Work::Kernel(kernel) = &op.work {
            launch(id, kernel)?;
        }
    }
    trace.validate().map_err(FileError::Invalid)
}

fn moved(work: &Work) -> u128 {
    match *work {
        Work::Kernel(_) => 0,
        Work::Memset(bytes) | Work::Memcpy(bytes) | Work::Host { bytes, .. } => bytes as u128,
    }
}

fn operations(work: &Work) -> u128 {
    match *work {
        Work::Host { flops, .. } => flops as u128,
        Work::Kernel(_) | Work::Memset(_) | Work::Memcpy(_) => 0,
    }
}

fn device(device: &DeviceSpec) -> Result<(), FileError> {
    at_most("bytes of the device's name", device.name.len() as u128, SECTION / 2)?;
    at_most("multiprocessors of the device", device.processors as u128, FACTOR)?;
    at_most("threads of a multiprocessor", device.threads_per_processor as u128, RESOURCE)?;
    at_most("registers of a multiprocessor", device.registers_per_processor as u128, RESOURCE)?;
    at_most("shared memory of a multiprocessor", device.shared_memory_per_processor as u128, RESOURCE)
}

fn launch(op: usize, launch: &Launch) -> Result<(), FileError> {
    // Not by `Launch::blocks` and the like, whose products could overflow.
    let product = |sides: [u32; 3]| sides.map(u128::from).iter().product::<u128>();
    let numbers = [
        ("thread blocks", product(launch.grid), BLOCKS),
        ("threads of a block", product(launch.block), FACTOR),
        ("registers of a thread", launch.registers as u128, FACTOR),
        ("static shared memory", launch.static_shared as u128, RESOURCE),
        ("dynamic shared memory", launch.dynamic_shared as u128, RESOURCE),
        ("resident blocks", launch.resident_blocks as u128, FACTOR),
    ];
    numbers.into_iter().try_for_each(|(what, found, limit)| at_most(format_args!("{what} of op {op}"), found, limit))
}
