//! The trace of one forward pass: its launches, the buffers that they read and write, and their scopes in the module.
//!
//! A [`Trace`] is plain data. On CUDA it is read back from a captured graph, on the CPU it is recorded by
//! `opara_candle::ops`; every later stage works on it without knowing which.

mod attending;
mod block_type;
mod element;
mod file;
mod ids;
mod meaning;
mod region;
mod window;

pub use attending::{Attending, Pages};
pub use block_type::BlockType;
pub use element::Element;
pub use file::{FileError, TraceFileError};
pub use ids::{BufferId, OpId};
pub use meaning::{is_contiguous, Bilinear, Dim, Experts, Function, Indexed, Meaning, Named, Order, Rotary, View};
pub use region::Region;
pub use window::Window;

use serde::{Deserialize, Serialize};

use crate::kernel_catalog::KernelName;

/// One recorded forward pass.
///
/// Serde checks each field by itself. [`write_to`](Trace::write_to) also checks that they are consistent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// The device that it was recorded on.
    pub device: DeviceSpec,
    /// Launches in the order in which the module made them.
    pub ops: Vec<Op>,
    /// All allocations that the launches use. An address that is reused after a free is a new buffer.
    pub buffers: Vec<Buffer>,
    /// Peak bytes of tensors during the pass, without inputs and weights; 0 if unknown.
    pub peak_bytes: u64,
    /// Schedules of the pass that were replayed on the device and measured.
    #[serde(default)]
    pub measured: Vec<Measured>,
}

/// The measurement of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// Name of the scheduler that made it, or a description.
    pub schedule: String,
    /// Nanoseconds of a replay on the device, the median of many.
    pub nanos: u64,
    /// Share of the multiprocessors' time that kernels occupied in a replay, by their resources, in parts per thousand. `None` if
    /// single kernels were not measured.
    pub busy: Option<u32>,
}

/// The device's limits for resident thread blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSpec {
    /// Name as the driver gives it, or `cpu`.
    pub name: String,
    /// Streaming multiprocessors, or cores of a CPU.
    pub processors: u32,
    /// Resident threads of one multiprocessor.
    pub threads_per_processor: u32,
    /// 32-bit registers of one multiprocessor.
    pub registers_per_processor: u32,
    /// Bytes of shared memory of one multiprocessor.
    pub shared_memory_per_processor: u32,
}

/// One launch: a kernel, a memset, a copy, or an operator on the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Op {
    /// Kernel or operator name, with its entry in the catalogue.
    pub name: KernelName,
    /// Path of the scopes or spans around the launch, separated by `/`; empty if there are none.
    pub label: String,
    /// The kind of launch, and its resources.
    pub work: Work,
    /// All memory that it reads or writes.
    pub accesses: Vec<Access>,
    /// Nanoseconds that it takes alone on the device, if measured.
    pub nanos: Option<u64>,
    /// Its meaning, if it is known.
    #[serde(default)]
    pub meaning: Option<Box<Meaning>>,
}

/// The kind of launch of an [`Op`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Work {
    /// A CUDA kernel.
    Kernel(Launch),
    /// A device memset of this many bytes.
    Memset(u64),
    /// A device-to-device copy of this many bytes.
    Memcpy(u64),
    /// An operator that runs on host threads.
    Host {
        /// Bytes that it reads and writes.
        bytes: u64,
        /// Floating-point operations, a multiply-add counting as two.
        flops: u64,
    },
}

/// Geometry and resources of a kernel launch, from the driver's function attributes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// Blocks of the grid, x y z.
    pub grid: [u32; 3],
    /// Threads of a block, x y z.
    pub block: [u32; 3],
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of shared memory of a block, static.
    pub static_shared: u32,
    /// Bytes of shared memory of a block, dynamic.
    pub dynamic_shared: u32,
    /// Blocks that fit on one multiprocessor at a time, as the driver's occupancy calculator says.
    pub resident_blocks: u32,
}

impl Launch {
    /// Number of thread blocks.
    pub fn blocks(&self) -> u64 {
        self.grid.iter().map(|&n| n as u64).product()
    }

    /// Threads of one block.
    pub fn threads(&self) -> u32 {
        self.block.iter().product()
    }

    /// Shared memory of one block in bytes.
    pub fn shared(&self) -> u32 {
        self.static_shared + self.dynamic_shared
    }
}

/// One part of a buffer that an op touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// The buffer.
    pub buffer: BufferId,
    /// The bytes of the buffer.
    pub region: Region,
    /// Reads, writes, or both.
    pub mode: AccessMode,
}

/// The effect of an op on the bytes of an [`Access`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccessMode {
    /// Reads them.
    Read,
    /// Overwrites all of them without reading.
    Write,
    /// May read and may write any of them.
    ReadWrite,
}

impl AccessMode {
    /// May bytes be read?
    pub fn reads(self) -> bool {
        self != AccessMode::Write
    }

    /// May bytes be written?
    pub fn writes(self) -> bool {
        self != AccessMode::Read
    }
}

/// One allocation, or memory that outlives the forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// Size in bytes.
    pub bytes: u64,
    /// Its owner.
    pub role: Role,
}

/// The owner of a [`Buffer`]; it decides whether the memory planner may move the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Static copy of the n-th input.
    Input(usize),
    /// Holds the n-th output; it must survive the replay.
    Output(usize),
    /// The n-th tensor of a step's state, which is the caller's: read and written in place, and changed between calls.
    State(usize),
    /// Memory that was there before the forward pass: weights, tables, a library's own workspace.
    External,
    /// Allocated and freed inside the forward pass; the planner places it in the arena.
    Intermediate,
    /// A library's workspace, allocated and freed inside the forward pass. (In eager execution the library uses memory of its own.)
    /// The planner places it in an arena that all executors share.
    Workspace,
    /// Computed once, while the executor is built, by folded ops.
    Constant,
}

/// A trace that is inconsistent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("op {op} (`{name}`) of the trace is invalid: {reason}")]
pub struct InvalidTrace {
    /// Index of the op.
    pub op: OpId,
    /// Its name.
    pub name: String,
    /// The contradiction.
    pub reason: String,
}

impl Trace {
    /// `factor` times the peak memory of the pass in bytes, if the peak is known.
    pub fn memory_limit(&self, factor: f64) -> Option<u64> {
        (self.peak_bytes > 0).then_some((self.peak_bytes as f64 * factor) as u64)
    }

    /// Checks that every access points at a buffer that exists and stays inside it.
    ///
    /// # Errors
    /// [`InvalidTrace`] naming the first op that does not.
    pub fn validate(&self) -> Result<(), InvalidTrace> {
        for (id, op) in self.ops.iter().enumerate() {
            for access in &op.accesses {
                let inside = self.buffers.get(access.buffer).is_some_and(|b| access.region.end() <= b.bytes);
                if !inside {
                    return Err(InvalidTrace {
                        op: id,
                        name: op.name.to_string(),
                        reason: format!("access {access:?} lies outside every recorded buffer"),
                    });
                }
            }
            for view in op.meaning.iter().flat_map(|meaning| meaning.views()) {
                let bytes = self.buffers.get(view.buffer).map(|b| b.bytes);
                if view.elements().is_none() || bytes.is_none_or(|bytes| view.end().is_none_or(|end| end > bytes)) {
                    let reason = format!("the meaning's {view:?} lies outside every recorded buffer");
                    return Err(InvalidTrace { op: id, name: op.name.to_string(), reason });
                }
            }
        }
        Ok(())
    }

    /// For each buffer, the ops that touch it, in recorded order.
    pub fn users(&self) -> Vec<Vec<OpId>> {
        let mut users = vec![Vec::new(); self.buffers.len()];
        for (id, op) in self.ops.iter().enumerate() {
            for access in &op.accesses {
                if users[access.buffer].last() != Some(&id) {
                    users[access.buffer].push(id);
                }
            }
        }
        users
    }

    /// For each buffer, whether an op writes to it.
    pub fn written(&self) -> Vec<bool> {
        let mut is_written = vec![false; self.buffers.len()];
        let accesses = self.ops.iter().flat_map(|op| &op.accesses);
        accesses.filter(|access| access.mode.writes()).for_each(|access| is_written[access.buffer] = true);
        is_written
    }
}
